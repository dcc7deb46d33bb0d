"""Systems without what only Linux has, and processors that write to memory in another order than x86's.

Jobs run without files of /proc, the calls for the use of processors, memory without a name, and access to other
processes. The test of barriers checks that memory barriers order what the ranks share.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.launch import Finished, mpirun
from tests.tfdist.sgd_step import STEP
from tfdist.core import system
from tfdist.mpi._barrier import ROW_BYTES, Barrier

ELSEWHERE = """
import ctypes, importlib.util, os, sys

for name in (
    "sched_getaffinity", "sched_setaffinity", "sched_yield", "memfd_create", "pidfd_open", "posix_fallocate",
):
    if hasattr(os, name):
        delattr(os, name)

class Library(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("process_vm_readv", "process_vm_writev", "prctl"):
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = Library

def without_proc(event, arguments):
    if event in ("open", "os.listdir") and str(arguments[0]).startswith("/proc"):
        raise FileNotFoundError(2, "no such file", str(arguments[0]))

sys.addaudithook(without_proc)
spec = importlib.util.spec_from_file_location("tfdist.core.system", "tfdist/core/system.py")
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
sys.modules[spec.name].SHARED_MEMORY = "/nowhere"
"""
TRAINING = (
    """
import numpy as np
import tensorflow as tf
import tfdist

np.testing.assert_array_equal(tfdist.all_reduce(np.full(1_000_000, tfdist.rank() + 1.0), "sum"), 3.0)
weights = tf.Variable(tf.fill([300_000], float(tfdist.rank())))
"""
    + STEP
    + """
for number in range(3):
    step(float(tfdist.rank()))
np.testing.assert_allclose(weights.numpy(), 0.5 * (1 - 0.5**3), rtol=1e-6)
if len(sys.argv) > 1 and tfdist.rank() == 1:
    os._exit(0)
tfdist.barrier()
"""
)


def elsewhere(folder: Path, program: str, *arguments: str) -> Finished:
    (folder / "program.py").write_text(ELSEWHERE + program)
    told = {"TFDIST_LOG_LEVEL": "debug", "TFDIST_STALL_ABORT_SECONDS": "30", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return mpirun(2, [str(folder / "program.py"), *arguments], 100, told)


def test_ranks_train_by_mpis_messages(tmp_path: Path) -> None:
    finished = elsewhere(tmp_path, TRAINING)
    assert finished.code == 0, finished.errors
    assert "1 exchange a step (through MPI)" in finished.errors, finished.errors
    assert "cannot map each other's memory (module 'os' has no attribute 'memfd_create')" in finished.errors


@pytest.mark.long("test_ends.py has the ends of ranks on Linux")
def test_a_lost_rank_is_a_failure(tmp_path: Path) -> None:
    finished = elsewhere(tmp_path, TRAINING, "leave")
    assert finished.code and finished.seconds < 60, finished.errors


def test_answers_without_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_yield")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(system, "SHARED_MEMORY", "/nowhere")
    assert len(system.processors()) == os.cpu_count()
    system.yield_processor()
    assert os.path.isdir(system.memory_folder()) and system.memory_folder() != "/nowhere"
    with open(tmp_path / "file", "wb") as file:
        system.reserve(file.fileno(), 0, 1000)
    assert (tmp_path / "file").stat().st_size == 1000
    assert system.runs(os.getpid()) and not system.runs(2**22 + 1)
    assert system.process_text(2**22 + 1, "stat") == "" and system.children(2**22 + 1) == []


def test_barriers_order_what_the_ranks_share() -> None:
    """On a weakly ordered processor a rank may see another rank's turn before its numbers, but for memory barriers."""
    memory = [np.zeros(2 * ROW_BYTES, np.uint8) for _ in range(2)]
    seen: list[tuple[int, int]] = []  # (turn, number) of rank 0's line, at each memory barrier
    first, second = (
        Barrier(memory, index, lambda: seen.append(tuple(memory[0].view(np.int64).reshape(2, -1)[1, :2].tolist())))
        for index in range(2)
    )
    first.enter([7])
    assert seen == [(0, 7), (1, 7)], "the numbers are written before a barrier, the turn after it"
    second.enter([8])
    count = len(seen)
    assert second.Test() and len(seen) == count + 1, "a barrier stands between the turn and what is read afterwards"
    assert second.read(1) == [[7], [8]]
