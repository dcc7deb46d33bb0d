"""Standard output that is closed, full, or that nobody reads."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.launch import ROOT

PROGRAM = """
import sys
from nmt.core.standard_output import check_open, write_lines
from nmt.options.command import exit_code
def work():
    check_open()
    said = [write_lines(["a"] * 50_000) for _ in range(9)]
    print(all(said), file=sys.stderr)
sys.exit(exit_code(work, speaker="p: "))
"""


@pytest.mark.parametrize(
    ("output", "code", "told"),
    [
        ("| head -1; exit ${PIPESTATUS[0]}", 0, "False"),
        ("> /dev/full", 1, "p: standard output: cannot be written (No space left on device); free or choose another"),
        (">&-", 1, "p: standard output is closed, but the result is written there: redirect it to a file or a pipe"),
        ("> /dev/null", 0, "True"),
    ],
)
def test_one_message_at_most(output: str, code: int, told: str) -> None:
    command = ["bash", "-c", f'"$0" -c "$1" {output}', sys.executable, PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1) and done.stderr.startswith(told), done.stderr
