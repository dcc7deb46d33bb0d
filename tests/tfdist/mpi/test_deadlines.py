"""If a rank is stopped while the ranks set something up together, the other rank names it, and the job ends.

These tests do not need TensorFlow and do not import it.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.launch import ROOT, Finished, mpirun
from tests.tfdist.test_ends import ended, wait_until

ONE_OF_MANY = pytest.mark.long("the same protection around other calls")
# Rank 1 stops at the beginning of a function.
SCRIPT = f"""
import os, signal, sys, types
module, function, pid_file = sys.argv[1:]
rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")))
def stop():
    sys.setprofile(None)
    with open(pid_file, "w") as file:
        file.write(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
def profile(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_name == function and code.co_filename.endswith(f"/{{module}}.py"):
        stop()
if rank == 1 and function == "import":
    stop()
elif rank == 1:
    sys.setprofile(profile)
package = sys.modules["tfdist"] = types.ModuleType("tfdist")
package.__path__ = [{str(ROOT / "tfdist")!r}]
import numpy as np
from tfdist.core.environment import launch
from tfdist.core.log import set_log_prefix
from tfdist.core.settings import Settings
from tfdist.mpi.connect import connect
world = connect(launch(), Settings.from_environment())
set_log_prefix(rank)
world.local_affinities(frozenset())
channel = world.channel("a test", shared=True)
group = world.group([0, 1])
channel = group.channel("another test")
channel.arrive("a meeting")
group.close()
world.end()
world.finish()
print("ended")
"""


def stopped(directory: Path, module: str, function: str, **settings: str) -> Finished:
    script, pid = directory / "script.py", directory / "pid"
    script.write_text(textwrap.dedent(SCRIPT))
    limits = {"TFDIST_STALL_SECONDS": "2", "TFDIST_STALL_ABORT_SECONDS": "3"}
    finished = mpirun(2, [str(script), module, function, str(pid)], 60, {**limits, **settings})
    if function != "nothing":
        wait_until(lambda: ended(int(pid.read_text())), 10)
    return finished


@pytest.mark.parametrize(
    ("module", "function", "place"),
    [
        pytest.param(
            *("_group", "_duplicate", "the making of a communicator of all ranks for rank 1"), marks=ONE_OF_MANY
        ),
        pytest.param(
            *("_world", "local_affinities", "the sharing of the machine's cores for rank 1"), marks=ONE_OF_MANY
        ),
        ("_shared_memory", "_allocate", "the making of shared memory for rank 1"),
        ("_group", "_some", "a group of the ranks 0, 1 for rank 1"),
        pytest.param(*("_states", "close", "the end of the program for rank 1"), marks=ONE_OF_MANY),
    ],
)
def test_a_rank_that_stops_in_a_blocking_call(tmp_path: Path, module: str, function: str, place: str) -> None:
    # (At the end, a rank only waits for ranks on other machines.)
    finished = stopped(tmp_path, module, function, TFDIST_NODE_SIZE="1" if function == "close" else "0")
    assert finished.code not in (0, None), finished
    assert f"rank 0 has waited 3 s in {place}" in finished.errors, finished.errors
    assert finished.seconds < 20


@pytest.mark.long("12 seconds; transport/test_stall_detection.py says who is lost")
def test_a_rank_that_stops_before_its_end(tmp_path: Path) -> None:
    """A rank that has ended waits without limit for ranks that still work, but not for a stopped rank."""
    finished = stopped(tmp_path, "_group", "closed")
    assert finished.code not in (0, None), finished
    assert "waits in vain: rank 1 busy outside tfdist" in finished.errors, finished.errors
    assert "it is stopped" in finished.errors


@pytest.mark.long("23 seconds")
@pytest.mark.parametrize(
    ("module", "function"), [("_world", "_begin"), ("_states", "__init__"), ("_neighbours", "avoid_forbidden_reads")]
)
def test_a_rank_that_stops_before_all_have_begun(tmp_path: Path, module: str, function: str) -> None:
    """The wait is longer, because programs may be read from a slow disk."""
    finished = stopped(tmp_path, module, function)
    assert finished.code not in (0, None), finished
    assert (
        "rank 0 has waited 23 s for MPI to begin. A rank is stopped" in finished.errors
        or "Timeout (0:00:23" in finished.errors
    )


@pytest.mark.parametrize(
    ("module", "function"),
    [pytest.param("", "import", marks=pytest.mark.long("23 seconds")), ("deadline", "end_by_alarm")],
)
def test_a_rank_that_stops_before_mpi_begins_or_ends(tmp_path: Path, module: str, function: str) -> None:
    """No Python thread runs before MPI begins or after it has ended."""
    finished = stopped(tmp_path, module, function)
    assert finished.code not in (0, None), finished


def test_no_rank_stops(tmp_path: Path) -> None:
    finished = stopped(tmp_path, "", "nothing")
    assert finished.code == 0, finished
    assert finished.output.count("ended") == 2
