"""The end of a process: the function that runs last, and the exit code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tfdist.processes import exit_code


def run(program: str) -> subprocess.CompletedProcess[str]:
    begin = "import atexit, sys\nfrom tfdist.processes import exit_code\n"
    return subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, timeout=60)


def test_last_of_all() -> None:
    found = run("""
atexit.register(print, "registered before")
exit_code.when_python_ends(lambda: print("last", sys.is_finalizing()))
atexit.register(print, "registered after")
""")
    assert found.stdout == "registered after\nregistered before\nlast True\n", found


def test_a_program_that_sets_the_same() -> None:
    found = run("exit_code.when_python_ends(lambda: print('last'))\nsys.ps2 = '> '\nprint('goes on')")
    assert found.stdout == "goes on\nlast\n", found


def test_a_child_does_not_do_it() -> None:
    found = run("""
import os
exit_code.when_python_ends(lambda: print("last", flush=True))
pid = os.fork()
if pid == 0:
    sys.exit()
os.waitpid(pid, 0)
""")
    assert found.stdout == "last\n", found


@pytest.mark.parametrize(("given", "code"), [(None, 0), (0, 0), (3, 3), (-1, 255), ("words", 1), (True, 1)])
def test_codes(given: object, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exit_code._Ending, "code", 0)
    exit_code.note(given)
    assert exit_code.exit_code() == code


def test_leaving_with_the_code() -> None:
    found = run("exit_code.note(7)\nprint('words')\nexit_code.leave()")
    assert (found.returncode, found.stdout) == (7, "words\n")


def test_what_is_done_where_python_has_no_end() -> None:
    done = []
    exit_code.when_over(lambda: done.append(1))
    exit_code.over()
    exit_code.over()
    assert done == [1]
