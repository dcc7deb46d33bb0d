"""Ctrl-C while a program is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# A module in place of TensorFlow that takes long to import.
_SLOW = "import sys, time\nprint('importing', flush=True)\nfor _ in range(600): time.sleep(0.1)"


def by_default() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.parametrize("beforehand", [by_default, ignored])
def test_ends_without_a_traceback(tmp_path: Path, beforehand: Callable[[], None]) -> None:
    (tmp_path / "tensorflow.py").write_text(_SLOW)
    program = subprocess.Popen(
        [sys.executable, "-m", "nmt.nmt", "--help"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=beforehand,
    )
    assert program.stdout
    with program:
        assert program.stdout.readline() == "importing\n"
        program.send_signal(signal.SIGINT)
        if beforehand is ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(0.5)
            program.kill()
        output, errors = program.communicate(timeout=60)
    assert (output, errors) == ("", "")
    assert program.returncode == (-signal.SIGKILL if beforehand is ignored else -signal.SIGINT)


@pytest.mark.parametrize("text", ["", ": it is kept"])
def test_is_an_exception_while_the_program_works(text: str) -> None:
    """Before and after its work it ends the process at once."""
    code = (
        "import sys; sys.argv = ['-m']; import signal, nmt; from nmt.options.command import exit_code\n"
        "def work():\n"
        "    try: signal.raise_signal(signal.SIGINT)\n"
        f"    except KeyboardInterrupt: raise KeyboardInterrupt({text!r}) from None\n"
        "code = exit_code(work); assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL; sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, preexec_fn=by_default
    )
    assert (done.returncode, done.stderr) == (130, f"interrupted{text}\n")
