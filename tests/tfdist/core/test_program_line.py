"""Where a program is."""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from tfdist.core.program_line import program_line


def test_the_line_of_the_script_and_not_of_what_it_calls() -> None:
    here = threading.get_ident()
    told: list[str] = []

    def compare(value: Any, axis: int) -> Any:
        told.append(program_line(here))
        return value

    def slow() -> None:
        functools.reduce(lambda a, b: a, [1, 2])
        np.apply_over_axes(compare, np.ones(1), [0])  # in a function of a package's

    slow()
    assert told == [f"compare (test_program_line.py:{compare.__code__.co_firstlineno + 1})"]


def test_inside_a_package_the_caller_is_told() -> None:
    entered, leave = threading.Event(), threading.Event()

    def waits() -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=waits)
    thread.start()
    entered.wait()
    try:
        assert program_line(thread.ident or 0) == f"waits (test_program_line.py:{waits.__code__.co_firstlineno + 2})"
    finally:
        leave.set()
        thread.join()


def test_a_thread_that_is_over() -> None:
    assert program_line(0) == ""
