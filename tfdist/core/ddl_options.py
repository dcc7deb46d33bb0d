"""Options of IBM's DDL: parses strings such as ``-mode b:4x2 -dbg_level 1 -dump_iter 100``, and what they mean here.

DDL's own README (doc/README.md of PowerAI's package ``ddl``) is the source. ``-mode`` has a letter for the algorithm,
and the topology of the ranks, either of which may be missing. The letter chooses an engine here. The product of the
topology's numbers is the number of ranks, which is compared with the job's. Settings of tfdist have priority.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping

from tfdist.core.log import announce
from tfdist.core.settings import COLLECTIVES, NCCL, Settings

_MODE = re.compile(r"(?:([A-Za-z]+):?)?([1-9]\d*(?:x[1-9]\d*)*)?")
_NAME = re.compile(r"-+[A-Za-z]")  # -1 is a value
_NCCL = "NCCL where each rank has a GPU of its own, and else TFDIST_ENGINE=auto"
_SUMS = "the sums by shards that TFDIST_ENGINE=auto makes"
# Engine by letter of -mode, and what stands for the algorithm where it is another one.
_LETTERS = {
    "b": (NCCL, _NCCL),
    "n": (NCCL, _NCCL),
    "r": (COLLECTIVES, "TensorFlow's ring (on processors TFDIST_ENGINE=auto is faster)"),
    "m": ("mpi", ""),
    "c": ("auto", _SUMS),
    "p": ("auto", ""),
}
DDL_SOURCES = IMPORT, INIT = "DDL_OPTIONS", "ddl.init"
_LEVELS = {"0": "info", "1": "debug", "2": "trace"}
_told: set[str] = set()


@dataclasses.dataclass(frozen=True)
class DdlOptions:
    """Parsed options.

    Attributes:
      mode: the option ``-mode`` as it was written; empty if there is none.
      letter: letter of ``-mode``; empty if there is none.
      ranks: number of ranks in ``-mode``; 0 if there is none.
      level: ``log_level`` for ``-dbg_level``; empty if there is none.
      every: number of steps of ``-dump_iter``; 0 if there is none.
      meaningless: all other options, each with its values.
    """

    mode: str = ""
    letter: str = ""
    ranks: int = 0
    level: str = ""
    every: int = 0
    meaningless: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DdlOptions:
        """Parse a string of options. The last one of several options of the same name counts."""
        found, meaningless = cls(), []
        for option in _options(text):
            name, _, value = option.partition(" ")
            topology = _MODE.fullmatch(value) if name == "-mode" and value else None
            letter = (topology[1] or "").lower() if topology else ""
            if topology and (not letter or letter in _LETTERS):
                ranks = math.prod(map(int, topology[2].split("x"))) if topology[2] else 0
                found = dataclasses.replace(found, mode=option, letter=letter, ranks=ranks)
            elif name == "-dbg_level" and value in _LEVELS:
                found = dataclasses.replace(found, level=_LEVELS[value])
            elif name == "-dump_iter" and re.fullmatch(r"[1-9]\d*", value):
                found = dataclasses.replace(found, every=int(value))
            else:
                meaningless.append(option)
        return dataclasses.replace(found, meaningless=tuple(dict.fromkeys(meaningless)))

    def values(self, a_gpu_each: bool) -> dict[str, str]:
        """Return the settings that these options choose, by name.

        Args:
          a_gpu_each: True if each rank has a GPU of its own.
        """
        engine = _LETTERS[self.letter][0] if self.letter else ""
        engine = "auto" if engine == NCCL and not a_gpu_each else engine
        every = str(self.every) if self.every else ""
        given = {"engine": engine, "log_level": self.level, "wait_table": every}
        return {name: value for name, value in given.items() if value}

    def remarks(self, size: int | None) -> list[str]:
        """Return the remarks on these options in a job of ``size`` ranks (None: not known yet), one line each."""
        told = []
        if self.ranks and size is not None and self.ranks != size:
            told.append(
                f"{self.mode} is for a job of {self.ranks} ranks, but this job has {size}, and continues. Start "
                f"{self.ranks} ranks (tfdist-run -n {self.ranks} python …), or correct -mode"
            )
        if self.letter and (instead := _LETTERS[self.letter][1]):
            told.append(f"{self.mode}: here this is {instead}")
        if self.meaningless:
            told.append(
                f"{', '.join(self.meaningless)}: without a meaning here: leave them out. tfdist reads -mode with the "
                "letters b, n, r, m, c and p, -dbg_level 0 to 2, and -dump_iter"
            )
        return told


def tell(options: str, source: str, size: int) -> None:
    """Log the remarks on a job's options, each remark once.

    Args:
      options: DDL's options, as they were written.
      source: name of the place where they were written, for the log.
      size: number of ranks of the job.
    """
    for remark in DdlOptions.parse(options).remarks(size):
        if remark not in _told:
            _told.add(remark)
            announce(f"{source}: {remark}")


def applied(settings: Settings, options: str, source: str, a_gpu_each: bool) -> Settings:
    """Return the settings with what DDL's options choose. Settings that the user has given stay.

    Args:
      settings: the settings.
      options: DDL's options, as they were written.
      source: name of the place where they were written.
      a_gpu_each: True if each rank has a GPU of its own.
    """
    chosen: Mapping[str, str] = DdlOptions.parse(options).values(a_gpu_each)
    given = {n: o for n, o in settings.origins.items() if o not in DDL_SOURCES}
    return settings.with_values({n: v for n, v in chosen.items() if n not in given}, source)


def _options(text: str) -> list[str]:
    """Return the options, names with their values. Words before the first name are one option."""
    found: list[str] = []
    for word in text.split():
        if _NAME.match(word) or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found
