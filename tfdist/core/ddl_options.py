"""Options of IBM's DDL: parses strings such as ``-mode b:4x2 -dev 0 -dbg_level 1`` and reports what they mean here.

``-mode`` names an algorithm and the topology of the ranks. The product of the topology's numbers is the number of
ranks, which is compared with the job's. All other options configure DDL for things that tfdist finds out automatically.
"""

from __future__ import annotations

import dataclasses
import math
import re

from tfdist.core.log import announce

_MODE = re.compile(r"(?:[A-Za-z]+:)?(\d+(?:x\d+)*)")
_NAME = re.compile(r"-+[A-Za-z]")  # -1 is a value
_told: set[str] = set()


@dataclasses.dataclass(frozen=True)
class DdlOptions:
    """Parsed options.

    Attributes:
      mode: the option that contains the number of ranks, as it was written; empty if there is none.
      ranks: number of ranks in ``mode``; 0 if there is none.
      meaningless: all other options, each with its values.
    """

    mode: str = ""
    ranks: int = 0
    meaningless: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DdlOptions:
        """Parse a string of options. The last one of several modes counts."""
        mode, ranks, meaningless = "", 0, []
        for option in _options(text):
            topology = _MODE.fullmatch(option.removeprefix("-mode ")) if option.startswith("-mode ") else None
            if topology:
                mode, ranks = option, math.prod(map(int, topology[1].split("x")))
            else:
                meaningless.append(option)
        return cls(mode, ranks, tuple(dict.fromkeys(meaningless)))

    def remarks(self, size: int) -> list[str]:
        """Return the remarks on these options in a job of ``size`` ranks, one line each."""
        told = []
        if self.mode and self.ranks != size:
            told.append(
                f"{self.mode} is for a job of {self.ranks} ranks, but this job has {size}, and continues. Start "
                f"{self.ranks} ranks (tfdist-run -n {self.ranks} python …), or correct -mode"
            )
        if self.meaningless:
            told.append(
                f"{', '.join(self.meaningless)}: without a meaning here: leave them out. tfdist reads only the number "
                "of ranks in -mode r:AxB. It measures how the ranks add; TFDIST_OPTIONS can set it"
            )
        return told


def understand(options: str, source: str, size: int) -> None:
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


def _options(text: str) -> list[str]:
    """Return the options, names with their values. Words before the first name are one option."""
    found: list[str] = []
    for word in text.split():
        if _NAME.match(word) or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found
