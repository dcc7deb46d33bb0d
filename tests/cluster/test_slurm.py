"""Under Slurm, on two hosts with two ranks each: ``srun``, ``sbatch``, ``tfdist-run``; pre-emption and time limit."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.text.vocabulary import write_vocabulary
from tests.cluster import hosts, slurm
from tests.cluster.slurm import Slurm
from tests.launch import ROOT, TFDIST_RUN
from tfdist.launch.launchers import facts_here

PMI = "pmix" if "Open MPI" in facts_here(sys.executable)["mpi"] else "pmi2"
OBSTACLE = hosts.obstacle() or slurm.obstacle(PMI)
EXAMPLES = ROOT / "scripts" / "examples" / "slurm"
RANKS = ("--nodes=2", "--ntasks-per-node=2")
STEPS, RATE, NORM = 20, 0.3, 0.5

pytestmark = [pytest.mark.long("several hosts"), pytest.mark.skipif(bool(OBSTACLE), reason=OBSTACLE)]

# UCX's addresses are sent with the bytes that follow them in memory. If these are random, the lines become long.
DIRTY = "import os; blocks = [os.urandom(4_000 + n % 3_000) for n in range(20_000)]; del blocks[::2]\n"

TRAINING = (
    DIRTY
    + f"""
import json, socket, sys
from pathlib import Path
import numpy as np
import tensorflow as tf
import tfdist

data = np.load(Path(sys.argv[1], "data.npz"))
mine = slice(tfdist.rank(), None, tfdist.size())
x, y = (tf.constant(data[name][mine], tf.float32) for name in "xy")
w = tf.Variable(tf.fill([x.shape[1]], 0.1 * (tfdist.rank() + 1)))
optimizer = tf.compat.v1.train.GradientDescentOptimizer({RATE})

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    (gradient,), _ = tf.clip_by_global_norm(tape.gradient(loss, [w]), {NORM})
    optimizer.apply_gradients([(gradient, w)])

for _ in range({STEPS}):
    step()
module = os.environ.get("MPIR_CVAR_CH4_NETMOD")
told = dict(w=w.numpy().tolist(), host=socket.gethostname(), module=module)
Path(sys.argv[1], f"rank{{tfdist.rank()}}of{{tfdist.size()}}").write_text(json.dumps(told))
"""
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with hosts.Hosts(2) as two, Slurm(two) as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> dict[str, np.ndarray]:
    """Write the script and 64 rows, which the ranks share and whose scale differs by rank; return the rows."""
    random = np.random.default_rng(7)
    x = random.normal(size=(64, 5)) * (1 + np.arange(64) % 4)[:, None]
    y = x @ random.normal(size=5) + random.normal(size=64)
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "train.py").write_text(TRAINING)
    return {"x": x, "y": y}


def trained(data: dict[str, np.ndarray]) -> np.ndarray:
    """Return the weights that one process gets from all rows, starting from rank 0's values."""
    x, y = data["x"], data["y"]
    w = np.full(x.shape[1], 0.1)
    for _ in range(STEPS):
        gradient = 2 * x.T @ (x @ w - y) / len(y)
        w -= RATE * gradient * min(1, NORM / np.linalg.norm(gradient))
    return w


@pytest.mark.parametrize("way", ["srun", "sbatch", "tfdist-run"])
def test_ranks_of_two_hosts_do_what_one_process_does(
    cluster: Slurm, tmp_path: Path, data: dict[str, np.ndarray], way: str
) -> None:
    program = [str(tmp_path / "train.py"), str(tmp_path)]
    command = {
        "srun": ["srun", *RANKS, f"--mpi={PMI}", "--kill-on-bad-exit=1", sys.executable, *program],
        "sbatch": ["sbatch", "--wait", f"--output={tmp_path}/log", str(EXAMPLES / "train.sbatch"), *program],
        "tfdist-run": ["salloc", *RANKS, sys.executable, str(TFDIST_RUN), "python", *program],
    }
    finished = cluster.run(command[way], 120, {"MPI": PMI})
    log = tmp_path / "log"
    assert finished.code == 0, finished.errors + (log.read_text() if log.exists() else "")
    told = [json.loads((tmp_path / f"rank{rank}of4").read_text()) for rank in range(4)]
    assert [rank["host"] for rank in told] == ["node1", "node1", "node2", "node2"], finished.errors
    for rank in told:
        np.testing.assert_allclose(rank["w"], trained(data), rtol=1e-4)
    if PMI == "pmi2":  # mpirun's own PMI takes addresses of any length
        assert {rank["module"] for rank in told} == {None if way == "tfdist-run" else "ofi"}


@pytest.mark.skipif(PMI != "pmi2", reason="of MPICH's network modules")
def test_addresses_that_slurm_cuts_off(cluster: Slurm) -> None:
    """The reason why tfdist chooses the network module: MPICH alone fails here after the program's allocations."""
    program = DIRTY + "from mpi4py import MPI; MPI.COMM_WORLD.allreduce(1)"
    command = ["srun", *RANKS, "--mpi=pmi2", "--kill-on-bad-exit=1", sys.executable, "-c", program]
    finished = cluster.run(command, 20)  # it may also hang
    if finished.code == 0:
        pytest.skip("the addresses of this machine's networks are short enough")
    assert "value not properly terminated" in finished.errors, finished


def corpus(directory: Path) -> list[str]:
    """Write a toy language pair, in which the target is the reversed source; return the flags for training."""
    random = np.random.default_rng(3)
    words = list("abcdefg")
    for name, pairs in (("train", 301), ("dev", 3)):
        lines = [[str(word) for word in random.choice(words, random.integers(1, 9))] for _ in range(pairs)]
        (directory / f"{name}.en").write_text("".join(" ".join(line) + "\n" for line in lines))
        (directory / f"{name}.de").write_text("".join(" ".join(line[::-1]).upper() + "\n" for line in lines))
    write_vocabulary(directory / "vocab.en", words)
    write_vocabulary(directory / "vocab.de", [word.upper() for word in words])
    return [
        "--src=en", "--tgt=de", f"--train_prefix={directory}/train", f"--dev_prefix={directory}/dev",
        f"--vocab_prefix={directory}/vocab", "--num_units=8", "--num_layers=1", "--batch_size=4", "--random_seed=1",
        "--steps_per_stats=20", "--noevaluate_epochs", "--num_intra_threads=1", "--num_inter_threads=1",
    ]  # fmt: skip


def weights(directory: Path, step: int) -> dict[str, Any]:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(directory / f"translate.ckpt-{step}"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


class Training:
    """A job that runs nmt by ``nmt.sbatch``.

    Args:
      folder: folder of corpus, models and logs.
      name: name of model and log.
    """

    def __init__(self, cluster: Slurm, folder: Path, name: str, flags: list[str]) -> None:
        self._cluster = cluster
        self._log = folder / f"{name}.log"
        self.directory = folder / name
        variables = {"MPI": PMI, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        options = [f"--output={self._log}", "--signal=TERM@30", str(EXAMPLES / "nmt.sbatch")]
        self.number = cluster.submit([*options, f"--out_dir={self.directory}", *flags], variables)

    def log(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def until(self, pattern: str) -> None:
        """Wait until a line of the log matches the pattern."""
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.log(), re.MULTILINE):
            assert time.monotonic() < deadline, f"{pattern} is not there\n{self.log()}"
            time.sleep(0.2)

    def ended_well(self, restarts: int) -> None:
        """Check that the job completes after this number of restarts, and was asked to stop before each of them."""
        ended = self._cluster.wait(self.number, ["COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"], 200)
        assert (ended["JobState"], ended["Restarts"]) == ("COMPLETED", str(restarts)), self.log()
        assert len(re.findall(r"^# Asked to stop: saved after step \d+", self.log(), re.MULTILINE)) == restarts


def test_a_job_that_is_pre_empted_goes_on_to_its_end(cluster: Slurm, tmp_path: Path) -> None:
    """The job saves, is requeued, and ends with the same bits as a job that was not disturbed."""
    steps = 400
    flags = [*corpus(tmp_path), f"--num_train_steps={steps}"]
    stopped = Training(cluster, tmp_path, "stopped", flags)
    stopped.until("^ *step 40 ")
    urgent = cluster.submit([*RANKS, "--partition=urgent", f"--output={tmp_path}/urgent", "--wrap=srun hostname"])
    cluster.wait(urgent, ["COMPLETED"], 90)
    stopped.until("^== job .* start 1$")
    stopped.ended_well(restarts=1)
    alone = Training(cluster, tmp_path, "alone", flags)
    alone.ended_well(restarts=0)
    expected, found = weights(alone.directory, steps), weights(stopped.directory, steps)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, name)


@pytest.mark.long("a SIGTERM as that of a pre-emption, for which Slurm takes half a minute")
def test_a_job_that_is_out_of_time_goes_on_to_its_end(cluster: Slurm, tmp_path: Path) -> None:
    stopped = Training(cluster, tmp_path, "stopped", [*corpus(tmp_path), "--num_train_steps=2400"])
    stopped.until("^ *step 40 ")
    for change, line in (("EndTime=now+32", "^== stopped before the end"), ("TimeLimit=60", "start 1$")):
        done = cluster.run(["scontrol", "update", f"JobId={stopped.number}", change], 30)
        assert done.code == 0, done
        stopped.until(line)
    stopped.ended_well(restarts=1)
