"""Findings: the lines of the doctor's report."""

from __future__ import annotations

from typing import NamedTuple

OK, NOTE, FIX = "OK", "NOTE", "FIX"  # fine; works, but slowly or in part; does not work


class Finding(NamedTuple):
    """One line.

    Attributes:
      state: ``OK``, ``NOTE`` or ``FIX``.
      what: what was checked.
      told: what was found, and the remedy unless it is fine.
    """

    state: str
    what: str
    told: str

    def __str__(self) -> str:
        return f"{self.state:<5} {self.what:<16} {self.told}"


def of(problem: str, what: str, told: str, state: str = FIX) -> Finding:
    """Return a finding: ``problem`` in the given state, or ``told`` as fine if there is no problem."""
    return Finding(state, what, problem) if problem else Finding(OK, what, told)
