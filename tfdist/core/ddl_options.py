"""The options of IBM's DDL, a string such as ``-mode b:4x2 -dev 0 -dbg_level 1``: what of it has a meaning here.

``-mode`` names the way in which DDL's ranks add, and the topology in which they were started, whose product is their
number. That number can be compared with the job's; all the rest tells DDL how to do what is found out here.
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
    """Options, understood.

    Attributes:
      mode: the option that says how many ranks there are, as it was written; empty if none does.
      ranks: how many; 0 if it is not said.
      meaningless: the others, each with its values.
    """

    mode: str = ""
    ranks: int = 0
    meaningless: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DdlOptions:
        """Understand a string of options; of several modes, the last one."""
        mode, ranks, meaningless = "", 0, []
        for option in _options(text):
            topology = _MODE.fullmatch(option.removeprefix("-mode ")) if option.startswith("-mode ") else None
            if topology:
                mode, ranks = option, math.prod(map(int, topology[1].split("x")))
            else:
                meaningless.append(option)
        return cls(mode, ranks, tuple(dict.fromkeys(meaningless)))

    def remarks(self, size: int) -> list[str]:
        """What to tell of them in a job of so many ranks, in lines."""
        told = []
        if self.mode and self.ranks != size:
            told.append(
                f"{self.mode} is a job of {self.ranks} ranks, and this is one of {size}, which goes on: start as many "
                f"(tfdist-run -n {self.ranks} python …), or correct -mode"
            )
        if self.meaningless:
            told.append(
                f"{', '.join(self.meaningless)}: without a meaning here, where only the number of ranks in -mode r:AxB "
                "has one: leave them out (how ranks add is measured, and can be set by TFDIST_OPTIONS)"
            )
        return told


def understand(options: str, source: str, size: int) -> None:
    """Say what there is to say of a job's options, once.

    Args:
      options: as they were written.
      source: where.
      size: of the job.
    """
    for remark in DdlOptions.parse(options).remarks(size):
        if remark not in _told:
            _told.add(remark)
            announce(f"{source}: {remark}")


def _options(text: str) -> list[str]:
    """Names with their values, and what stands before the first name."""
    found: list[str] = []
    for word in text.split():
        if _NAME.match(word) or not found:
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found
