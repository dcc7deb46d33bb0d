"""A rank that ends before MPI has begun ends the job; other jobs run undisturbed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import TFDIST_RUN, Finished, mpirun, run
from tfdist.launch import launchers
from tfdist.processes import absent_ranks


@pytest.fixture(autouse=True, scope="module")
def with_mpich() -> None:
    """Skip without MPICH, because Open MPI's launcher ends the job when a rank ends with an error."""
    if "MPICH" not in launchers.facts_here(sys.executable)["mpi"]:
        pytest.skip("MPICH's launcher does not end a job one of whose ranks has not begun MPI")


def job(tmp_path: Path, ranks: int, text: str, *options: str) -> Finished:
    script = tmp_path / "script.py"
    script.write_text(f'import os, sys, time\nrank = int(os.environ["PMI_RANK"])\n{text}\n')
    return run([sys.executable, str(TFDIST_RUN), "-n", str(ranks), *options, "python", str(script)], 60)


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        ('raise RuntimeError("no data")', "[1] RuntimeError: no data"),
        pytest.param("sys.exit(3)", "", marks=pytest.mark.long("as an exception")),
        ("sys.exit(0)", ""),
    ],
)
def test_others_do_not_wait_for_it(tmp_path: Path, fails: str, said: str) -> None:
    finished = job(tmp_path, 3, f"if rank == 1:\n    {fails}\nfrom mpi4py import MPI")
    assert finished.code == 1 and finished.seconds < 30, finished
    assert said in finished.errors
    assert (
        "tfdist-run: rank 1 has ended before MPI began, where rank 0 waits for it: the job is ended" in finished.errors
    )


def test_a_script_of_ours(tmp_path: Path) -> None:
    finished = job(tmp_path, 2, 'if rank == 0:\n    raise RuntimeError("no data")\nimport tfdist')
    assert finished.code == 1, finished
    assert "[0] RuntimeError: no data" in finished.errors
    assert "rank 0 has ended before MPI began, where rank 1 waits for it" in finished.errors


def test_a_rank_looks_where_mpirun_alone_has_started_it(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text('import os\nif os.environ["PMI_RANK"] == "1":\n    raise RuntimeError("no data")\nimport tfdist')
    finished = mpirun(3, [str(script)], 60)
    assert finished.code == 1, finished
    assert finished.errors.count("tfdist: rank 1 has ended before MPI began, where rank 0 waits for it") == 1, finished


SIMILAR = pytest.mark.long("the same wait as without MPI, elsewhere")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("time.sleep(6 * rank)", id="without MPI"),
        pytest.param(
            "from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()\nMPI.Finalize()\ntime.sleep(6 * rank)", id="after MPI"
        ),
        pytest.param("from mpi4py import MPI\ntime.sleep(6 * rank)", id="at MPI's end", marks=SIMILAR),
        pytest.param("time.sleep(6 * rank)\nfrom mpi4py import MPI", id="late", marks=SIMILAR),
    ],
)
def test_ranks_that_end_or_come_at_different_times_are_well(tmp_path: Path, text: str) -> None:
    finished = job(tmp_path, 2, text)
    assert finished.code == 0 and "before MPI began" not in finished.errors and finished.seconds > 6, finished


# In place of ssh: it runs the command on this machine.
SSH = """#!/bin/sh
while [ "$1" = -o ] || [ "$1" = -x ]; do [ "$1" = -x ] || shift; shift; done
shift
exec sh -c "$*"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Path:
    path = tmp_path / "ssh"
    path.write_text(SSH)
    path.chmod(0o755)
    return path


def test_on_another_machine(tmp_path: Path, ssh: Path) -> None:
    """Its connection is gone before anybody looks."""
    options = ["--no-check", "--ssh", str(ssh), "-H", "localhost:1,127.0.0.2:1"]
    text = 'if rank == 1:\n    os.write(2, b"no data\\n")\n    os._exit(1)\nfrom mpi4py import MPI'
    finished = job(tmp_path, 2, text, *options)
    assert finished.code == 1 and "[1] no data" in finished.errors, finished
    assert "rank 1 has ended before MPI began, where rank 0 waits for it: the job is ended" in finished.errors


def test_on_another_machine_without_tfdist_run(tmp_path: Path, ssh: Path) -> None:
    """The rank that waits looks by itself."""
    (tmp_path / "script.py").write_text(
        "import os\nif os.environ['PMI_RANK'] == '1':\n    os._exit(1)\nimport tfdist\n"
    )
    options = ["-launcher", "ssh", "-launcher-exec", str(ssh), "-hosts", "localhost:1,127.0.0.2:1"]
    finished = run(["mpirun", "-n", "2", *options, sys.executable, str(tmp_path / "script.py")], 60)
    assert finished.code and finished.seconds < 30, finished
    assert "tfdist: rank 1 has ended before MPI began, where rank 0 waits for it: the job ends" in finished.errors


def test_time_in_which_a_rank_was_stopped_is_no_waiting() -> None:
    script = (
        "import subprocess, sys\n"
        f"p = [sys.executable, '-I', '-S', {absent_ranks.__file__!r}, '0', '1', '2.5']\n"
        "print('begun', flush=True)\n"
        "subprocess.Popen(p, stdin=subprocess.PIPE).wait()"
    )
    rank = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    rank.stdout.readline()
    time.sleep(0.5)
    os.kill(rank.pid, signal.SIGSTOP)
    time.sleep(4)
    assert not select.select([rank.stdout], [], [], 0)[0]
    os.kill(rank.pid, signal.SIGCONT)
    output, errors = rank.communicate(timeout=20)
    assert "rank 0 has waited 3 s for MPI to begin" in errors and output == "cmd=abort exitcode=1\n", (output, errors)
