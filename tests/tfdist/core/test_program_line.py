"""``program_line``: the line of the script that a thread is in."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np

import tfdist.core.program_line as program_line_module
from tfdist.core.program_line import program_line


def test_the_line_of_the_script_and_not_of_what_it_calls() -> None:
    here = threading.get_ident()
    told: list[str] = []

    def compare(value: Any, axis: int) -> Any:
        told.append(program_line(here))
        return value

    def slow() -> None:
        functools.reduce(lambda a, b: a, [1, 2])
        np.apply_over_axes(compare, np.ones(1), [0])  # inside a function of a package

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


def test_threads_that_run_on_while_garbage_is_collected() -> None:
    code = f"""
        import gc, importlib.util, threading, time

        spec = importlib.util.spec_from_file_location("program_line", {program_line_module.__file__!r})
        looked = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(looked)
        main, over = threading.get_ident(), threading.Event()

        class Cycle:
            def __init__(self):
                self.own = self

            def __del__(self):
                time.sleep(0)  # lets the main thread run on, in the midst of whatever has begun the collection

        def look():
            while not over.is_set():
                Cycle()
                looked.stacks()
                looked.program_line(main)

        def deep(calls):
            return deep(calls - 1) if calls else 0

        gc.set_threshold(1)
        thread = threading.Thread(target=look)
        thread.start()
        end = time.monotonic() + 3  # without the protection it lasts less than one
        while time.monotonic() < end:
            deep(300)
        over.set()
        thread.join()
        assert gc.isenabled()
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=60, check=False)
    assert ended.returncode == 0
