"""TensorFlow's collectives: all ranks refuse unsupported settings at the import; failures in a step end the job."""

from __future__ import annotations

import re
import socket
import textwrap
from pathlib import Path

import pytest

from tests.launch import Finished, mpirun
from tfdist.graph.addresses import Ports, own_address, unreachable

ABORT_SECONDS = 5
OWN_RANK = "os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK'))"
# Rank 1 runs ACTION in its fourth step, after the ranks have met and before its gradients are exchanged.
SCRIPT = """
import os, signal, sys, time
import tfdist
import tensorflow as tf
from tfdist.compat import collective_ops
rank, calls, all_reduce = tfdist.rank(), [], collective_ops.all_reduce
def act(value):
    calls.append(value)
    if len(calls) == 4:
        ACTION
    return value
def acting(tensor, *args):
    value = tf.numpy_function(act, [tensor], tensor.dtype) if rank == 1 else tensor
    return all_reduce(tf.ensure_shape(value, tensor.shape), *args)
collective_ops.all_reduce = acting
"""
STYLES = {
    "session": """
        v1 = tf.compat.v1
        v1.disable_eager_execution()
        w = v1.get_variable("w", [1000], initializer=v1.zeros_initializer())
        step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w * float(rank)))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for _ in range(9):
                session.run(step)
        """,
    "function": """
        w = tf.Variable(tf.zeros([1000]))
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * float(rank))
            w.assign_sub(tape.gradient(loss, w))
        for _ in range(9):
            step()
        """,
}
# Code that rank 1 runs, and the expected messages: from tfdist, or from Open MPI's launcher, which may be the first.
ACTIONS = {
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "it is stopped"),
    "killed": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "rank 1 (of 2|with PID)",
        r"was ended by SIGKILL|signal 9 \(Killed\)",
    ),
    "fails": ("raise ValueError('its own error')", "its own error"),
}
IN_DEFAULT = {("function", "stopped"), ("session", "killed")}


def _job(directory: Path, script: str, **settings: str) -> Finished:
    path = directory / "script.py"
    path.write_text(script)
    return mpirun(2, [str(path)], 90, {"TFDIST_ENGINE": "collectives", **settings})


def _assert_refused(finished: Finished, words: str) -> None:
    assert finished.code not in (None, 0), finished
    assert finished.errors.count(words) == 1, finished.errors
    assert "Traceback" not in finished.errors, finished.errors


@pytest.mark.long("a wait is seldom so long")
def test_a_rank_that_computes_longer_than_a_wait_may_last(tmp_path: Path) -> None:
    """The rank computes after the ranks have met, and arrives later: the job continues."""
    script = SCRIPT.replace("ACTION", "time.sleep(12)") + textwrap.dedent(STYLES["function"])
    finished = _job(tmp_path, script, TFDIST_STALL_ABORT_SECONDS=str(ABORT_SECONDS), TFDIST_STALL_SECONDS="2")
    assert finished.code == 0, finished
    assert finished.seconds > 12, finished


@pytest.mark.parametrize(
    ("style", "what"),
    [
        pytest.param(
            s, w, marks=[] if (s, w) in IN_DEFAULT else pytest.mark.long("two of them show it"), id=f"{s}, {w}"
        )
        for s in STYLES
        for w in ACTIONS
    ],
)
def test_a_rank_in_the_midst_of_a_step(style: str, what: str, tmp_path: Path) -> None:
    action, *said = ACTIONS[what]
    script = SCRIPT.replace("ACTION", action) + textwrap.dedent(STYLES[style])
    finished = _job(tmp_path, script, TFDIST_STALL_ABORT_SECONDS=str(ABORT_SECONDS), TFDIST_STALL_SECONDS="2")
    assert finished.code not in (None, 0), finished
    assert finished.seconds < ABORT_SECONDS + 30, finished
    for words in (r"servers serve everybody who reaches them, on all networks: 127.0.0.1:\d+ and \d+, 127", *said):
        assert re.search(words, finished.errors), finished.errors


def test_tensorflow_has_begun_on_one_rank(tmp_path: Path) -> None:
    script = f"import os\nimport tensorflow as tf\nif {OWN_RANK} == '1':\n    tf.constant(1.0)\nimport tfdist\n"
    finished = _job(tmp_path, script)
    _assert_refused(finished, "collectives on rank 1: TensorFlow has executed something before the import of tfdist")


def test_nccl_without_gpus(tmp_path: Path) -> None:
    finished = _job(tmp_path, "import tfdist\n", TFDIST_ENGINE="nccl", CUDA_VISIBLE_DEVICES="")
    _assert_refused(finished, "TFDIST_ENGINE=nccl, but TensorFlow sees no GPU on rank 0, 1: install")


def test_the_way_to_a_port(tmp_path: Path) -> None:
    del tmp_path
    ports = Ports(2, 4)
    addresses = [f"127.0.0.1:{number}" for number in ports.numbers]
    assert unreachable(addresses, 5.0) == ""
    ports.stop_answering()
    assert unreachable(addresses, 5.0).startswith(f"{addresses[0]}: ")
    for address in ("127.0.0.1", "127.0.0.2", "0.0.0.0"):  # TensorFlow's servers bind all addresses
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((address, ports.numbers[0]))


def test_addresses() -> None:
    assert own_address([]) == "127.0.0.1"
    assert own_address(["elsewhere.invalid"], interface="lo") == "127.0.0.1"
    with pytest.raises(OSError, match="No such device"):
        own_address(["elsewhere.invalid"], interface="nothing0")
