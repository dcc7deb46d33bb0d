"""Runs a program of the law as one process and on all ranks, and compares the results."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

import tfdist
from tests.multirank import inside, oracle
from tests.multirank.oracle import Arrays

Program = Callable[[int, int], Arrays]
EQUAL = 1e-5  # relative to an array's greatest entry: float32 rounding over a few steps
TOGETHER = 1e-6  # between ranks, which apply the same averages


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a program on one rank: its arrays, the lines that tfdist said, and the error that it raised."""

    arrays: Arrays
    said: Sequence[str] = ()
    error: str = ""


def check(module: str, name: str) -> None:
    """Run a program, and fail unless its results are what its docstring promises. Collective: all ranks.

    Args:
      module: module of the program in this folder.
      name: name of the program.
    """
    program: Program = getattr(importlib.import_module(f"tests.law.{module}"), name)
    rank, size = tfdist.rank(), tfdist.size()
    in_sessions, refused = module.startswith("graph"), _after("Refused", program)

    def run(rank: int, size: int) -> Arrays:
        _start_afresh(in_sessions, rank)
        return {key: np.asarray(value) for key, value in program(rank, size).items()}

    expected = oracle.one_process(lambda: run(0, 1))
    if oracle.every_case() and not refused:
        alone = oracle.one_process(lambda: run(0, size))
        assert oracle.largest(alone, expected)[0] > EQUAL, (
            "a rank alone has the results of the whole batch: it shows nothing"
        )
    with _heard() as said:
        try:
            mine = Ended(run(rank, size), said)
        except Exception as error:
            if not refused:
                raise
            mine = Ended({}, said, str(error))
    judge(program, expected, inside.report(mine, f"the end of {name}"))


def judge(program: Program, expected: Arrays, ranks: Sequence[Ended]) -> None:
    """Fail unless the ranks' results are what the program's docstring promises.

    Args:
      program: the program.
      expected: arrays of one process.
      ranks: end of the program on each rank.

    Raises:
      AssertionError: the ranks are apart, or equal but not to one process, or a promised message did not come.
    """
    told, refused, differs, says = (_after(word, program) for word in ("Told", "Refused", "Differs", "Says"))
    if refused:
        assert all(refused in one.error for one in ranks), f"not refused with {refused!r}: {[r.error for r in ranks]}"
        return
    between, where = max(oracle.largest(one.arrays, ranks[0].arrays) for one in ranks)
    if told:
        assert between > TOGETHER, "the ranks are equal, although it is told that they are not"
        assert any(told in line for one in ranks for line in one.said), f"the ranks are apart: {where}; nobody told it"
        return
    unasked = [line for one in ranks for line in one.said if not says or says not in line]
    assert not unasked, f"tfdist says of a right program: {unasked}"
    assert between <= TOGETHER, f"the ranks are apart: {where} differs by {between:.1e}"
    to_one, where = max(oracle.largest(one.arrays, expected) for one in ranks)
    assert (to_one > EQUAL) == bool(differs), f"{where} differs from one process by {to_one:.1e}; {differs or 'why?'}"


def _after(word: str, program: Program) -> str:
    found = re.search(rf"(?ms)^{word}: (.+?)(\n\n|\Z)", inspect.getdoc(program) or "")
    return " ".join(found[1].split()).rstrip(".") if found else ""


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect tfdist's warnings and the lines of its log while the context is open."""
    original = warnings.warn

    def warn(message: Any, *where: Any, **more: Any) -> None:
        if sys._getframe(1).f_globals["__name__"].startswith("tfdist."):
            lines.append(str(message))
        original(message, *where, **more)

    with inside.captured_log() as lines, mock.patch.object(warnings, "warn", warn):
        yield lines


def _start_afresh(in_sessions: bool, rank: int) -> None:
    """Reset graphs, sessions and seeds, so that the program starts almost as in a new process."""
    import tensorflow as tf

    gc.collect()
    if in_sessions:
        tf.compat.v1.disable_v2_behavior()  # for the rest of the job
    tf.keras.backend.clear_session()
    if in_sessions:
        tf.compat.v1.reset_default_graph()
        tf.compat.v1.set_random_seed(rank)
    else:
        tf.random.set_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
