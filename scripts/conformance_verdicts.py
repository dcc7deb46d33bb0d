"""Verdicts of ``scripts/conformance``: compare the ranks with each other, then with one process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from conformance_jobs import NOT_ENDED, Arrays, Ended
from conformance_programs.catalogue import Program

EQUAL = 1e-5  # relative to a variable's greatest entry: float32 rounding over a few steps
TOGETHER = 1e-6  # between ranks, which apply the same averages
_OF_OTHERS = ("PeerError", NOT_ENDED)
FAILURES = ("APART", "WRONG", "FAILED")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A row of the table.

    Attributes:
      program: name of the program.
      style: style of the program.
      compared: names of the compared arrays.
      difference: largest difference to one process; None if no arrays are compared.
      between_ranks: largest difference between ranks; None if no arrays are compared.
      verdict: equal, refused, told, differs, or one of FAILURES.
      reason: explanation of the verdict; empty if equal.
      seconds: seconds on the slowest rank.
    """

    program: str
    style: str
    compared: tuple[str, ...]
    difference: float | None
    between_ranks: float | None
    verdict: str
    reason: str
    seconds: float


def judge(program: Program, reference: Ended, ranks: Sequence[Ended]) -> Verdict:
    """Return the verdict on a program."""
    names = tuple(reference.arrays or ranks[0].arrays)
    seconds = max(e.seconds for e in ranks)

    def verdict(word: str, reason: str = "", to_one: float | None = None, between: float | None = None) -> Verdict:
        return Verdict(program.name, program.style, names, to_one, between, word, reason, seconds)

    if reference.error:
        return verdict("FAILED", f"as one process: {reference.error}")
    if all(e.refused for e in ranks):
        return verdict("refused", ranks[0].error)
    failed = [(rank, e.error) for rank, e in enumerate(ranks) if e.error]
    if failed:
        failed.sort(key=lambda f: any(sign in f[1] for sign in _OF_OTHERS))  # errors of waiting come last
        return verdict("FAILED", f"rank {failed[0][0]}: {failed[0][1]}")
    between, where = max(largest(e.arrays, ranks[0].arrays) for e in ranks)
    to_one, at = max(largest(e.arrays, reference.arrays) for e in ranks)
    told = [line for e in ranks for line in e.said if program.told and program.told in line]
    if between > TOGETHER and told:
        return verdict("told", told[0], to_one, between)
    if between > TOGETHER:
        return verdict("APART", f"{where} is not the same on all ranks", to_one, between)
    if to_one <= EQUAL:
        return verdict("equal", "", to_one, between)
    if program.differs:
        return verdict("differs", f"as it must: {program.differs}", to_one, between)
    return verdict("WRONG", f"{at} is not what one process gets", to_one, between)


def largest(found: Arrays, expected: Arrays) -> tuple[float, str]:
    """Return the largest difference relative to an array's greatest entry, and the array; infinite if names differ."""
    if found.keys() != expected.keys():
        return np.inf, " ".join(sorted(found.keys() ^ expected.keys()))
    return max(((_difference(found[n], expected[n]), n) for n in expected), default=(np.inf, "no array"))


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Return a row for JSON; infinite differences are null, since JSON has no infinity."""
    row = dataclasses.asdict(verdict)
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or not np.isfinite(found).all() or not np.isfinite(expected).all():
        return np.inf
    found, expected = found.astype("float64"), expected.astype("float64")
    scale = max(np.max(np.abs(expected), initial=0), 1e-30)
    return float(np.max(np.abs(found - expected), initial=0) / scale)


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as a table in text."""
    head = ("program", "style", "compared", "largest difference", "between ranks", "verdict")
    cells = [head, *(_cells(v) for v in verdicts)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip() for row in cells
    )


def _cells(v: Verdict) -> tuple[str, ...]:
    names = ", ".join(v.compared)
    compared = names if len(names) <= 30 else f"{len(v.compared)}: {names[:24]}..."
    numbers = tuple("-" if d is None else f"{d:.1e}" for d in (v.difference, v.between_ranks))
    joined = ", " if v.reason.startswith("as it must") else ": "
    return (v.program, v.style, compared, *numbers, v.verdict + (joined + v.reason if v.reason else ""))
