"""After a fault of a rank, a host or a link, the job ends in time, names the rank or host, and leaves nothing behind.

Links have 100 Mbit/s, so that a step's message of 20 MB takes more than a second.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import Hosts, obstacle
from tests.launch import ROOT, STARTUP
from tfdist.launch import launchers

pytestmark = [pytest.mark.long("several hosts"), pytest.mark.skipif(bool(obstacle()), reason=obstacle())]

ABORT_SECONDS = 12  # on two busy cores a rank has built its first step for longer than 6 s
# For jobs that are to end well.
HEALTHY = {"TFDIST_STALL_ABORT_SECONDS": "60"}
END_SECONDS = ABORT_SECONDS + 60  # ssh takes 30 s to notice that a host is gone
START_SECONDS = 90
SCRIPT = """
import os, signal, sys, time
import tensorflow as tf
import tfdist
pause, action = float(sys.argv[1]), sys.argv[2]
v1 = tf.compat.v1
v1.disable_eager_execution()
rank = tfdist.rank()
w = v1.get_variable("w", [5_000_000], initializer=v1.zeros_initializer())
step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w * float(rank)))
with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    for number in range(12):
        session.run(step)
        print("step", number, flush=True)
        if number == 1 and rank == tfdist.size() - 1:
            exec(action)
        time.sleep(pause)
"""


class Job:
    """A job on some hosts, which the test disturbs.

    Args:
      hosts: all hosts.
      folder: working directory of the job.
      ranks: number of ranks on each host.
      pause: seconds that a step computes after its message.
      action: code that the last rank runs after its second step.
      limits: settings of tfdist, as environment variables.
    """

    def __init__(
        self, hosts: Hosts, folder: Path, ranks: dict[str, int], pause: float = 0, action: str = "", **limits: str
    ) -> None:
        self.hosts, self.ranks = hosts, ranks
        self._folder = folder
        (folder / "job.py").write_text(SCRIPT)
        self._traces = folder / "traces"
        self._traces.mkdir()
        placed = ",".join(f"{name}:{count}" for name, count in ranks.items())
        command = [sys.executable, "-m", "tfdist.launch.command", "-H", placed, sys.executable]
        line = ["env", "-C", str(folder), *command, "job.py", str(pause), textwrap.dedent(action)]
        settings = {
            "PYTHONPATH": os.pathsep.join([str(STARTUP), str(ROOT)]),
            "TFDIST_STALL_SECONDS": "3",
            "TFDIST_STALL_ABORT_SECONDS": str(ABORT_SECONDS),
            "TFDIST_TRACE_FOLDER": str(self._traces),
            **limits,
        }
        with open(folder / "said", "wb") as said:
            self.process = subprocess.Popen(
                hosts.command(next(iter(ranks)), line), env={**os.environ, **settings}, stdout=said, stderr=said
            )

    @property
    def said(self) -> str:
        lines = (self._folder / "said").read_text(errors="replace").splitlines()
        return "\n".join(line for line in lines if " -hosts " not in line)  # (the launcher's command line)

    def reach(self, words: str) -> None:
        """Wait until the job's output contains these words."""
        until(lambda: words in self.said or self.process.poll() is not None, START_SECONDS, lambda: self.said)
        assert words in self.said, self.said

    def ends(self, *patterns: str, well: bool = False, gone: str = "") -> None:
        """Check that the job ends in time, prints these patterns, and leaves nothing on its hosts but ``gone``."""
        begun = time.monotonic()
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {END_SECONDS} s:\n{self.left()}\n{self.said}") from None
        print(f"ended with {code} after {time.monotonic() - begun:.1f} s; said:\n{self.said}")
        assert (code == 0) == well, self.said
        for pattern in patterns:
            assert re.search(pattern, self.said), f"{pattern} is not in\n{self.said}"
        until(lambda: not self.left(gone), END_SECONDS, lambda: f"{self.left(gone)}\n{self.said}")
        print(f"nothing left after {time.monotonic() - begun:.1f} s")
        assert {path.name for path in self._folder.iterdir()} == {"job.py", "said", "traces"}

    def left(self, gone: str = "") -> str:
        """Return the job's processes and shared memory that still exist on the hosts."""
        found = []
        for host in self.hosts.names:
            if host != gone:
                for words in ("job.py", "hydra", "ssh -x"):
                    found += [f"{host}: {words} {pid}" for pid in self.hosts.processes(host, words)]
                files = self.hosts.run(host, ["ls", "/dev/shm"], 10).output.split()
                found += [f"{host}: /dev/shm/{name}" for name in files if name != "full"]
        return ", ".join(found)

    def last_rank(self) -> int:
        """Return the process number of the last rank on the last host."""
        return max(self.hosts.processes(list(self.ranks)[-1], f"{sys.executable} job.py"))

    def close(self) -> None:
        """Kill the launcher if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for host in self.hosts.names:
            for words in ("job.py", "hydra"):
                for pid in self.hosts.processes(host, words):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)


def until(happens: Callable[[], bool], seconds: float, state: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < deadline, state()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(3, "100mbit") as opened:
        yield opened


@pytest.fixture
def start(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with contextlib.ExitStack() as stack:

        def begin(ranks: dict[str, int], *arguments: object, **settings: str) -> Job:
            job = Job(hosts, tmp_path, ranks, *arguments, **settings)  # type: ignore[arg-type]
            stack.callback(job.close)
            return job

        yield begin


def test_an_exception(start: Callable[..., Job]) -> None:
    job = start({"node1": 1, "node2": 1}, 0, "raise ValueError('bad luck')")
    job.reach("step 1")
    job.ends("rank 1 of 2 failed", "ValueError: bad luck")


def test_a_killed_rank(start: Callable[..., Job]) -> None:
    job = start({"node1": 1, "node2": 1})
    job.reach("step 1")
    os.kill(job.last_rank(), signal.SIGKILL)
    job.ends(r"RUNNING AT node2|rank 1|Peer host: +node2")


def test_a_stopped_rank(start: Callable[..., Job]) -> None:
    job = start({"node1": 2, "node2": 2})
    job.reach("step 1")
    os.kill(job.last_rank(), signal.SIGSTOP)
    job.ends(r"rank \d has waited .* for (rank|ranks [\d, ]*) ?3 \(.*rank 3 on node2 ")


@pytest.mark.parametrize("pause", [0.0, 4.0])
def test_a_broken_link(hosts: Hosts, start: Callable[..., Job], pause: float) -> None:
    """The link breaks during a message, and while the ranks compute."""
    job = start({"node1": 1, "node2": 1}, pause)
    job.reach("step 1")
    time.sleep(0.7)
    hosts.link("node2", up=False)
    try:
        job.ends(r"for rank 1 \(rank 1: its machine \(node2\) does not answer")
    finally:
        hosts.link("node2", up=True)


def test_full_shared_memory(hosts: Hosts, start: Callable[..., Job]) -> None:
    """Shared memory is full on one host before the start."""
    fill(hosts, "node2")
    try:
        job = start({"node1": 2, "node2": 2})
        assert job.process.wait(END_SECONDS)
        assert re.search(r"tfdist on node2: /dev/shm has 0\.\d+ MiB free, and MPI needs", job.said), job.said
    finally:
        for name in hosts.names:  # (the job has ended inside MPI's start, which leaves its memory there)
            hosts.run(name, ["sh", "-c", "rm -f /dev/shm/full /dev/shm/mpich_shm_*"], 10)


def test_shared_memory_that_fills_up(hosts: Hosts, start: Callable[..., Job]) -> None:
    """A job keeps the shared memory that it has allocated."""
    job = start({"node1": 2, "node2": 2}, **HEALTHY)
    job.reach("step 1")
    fill(hosts, "node2")
    try:
        job.ends("step 11", well=True)
    finally:
        hosts.run("node2", ["rm", "-f", "/dev/shm/full"], 10)


def fill(hosts: Hosts, name: str) -> None:
    hosts.run(name, ["dd", "if=/dev/zero", "of=/dev/shm/full", "bs=1M"], 60)


def test_no_sshd(hosts: Hosts, start: Callable[..., Job]) -> None:
    """A running job needs neither the sshd that listens nor the ssh session that has started the ranks."""
    if "Open MPI" in launchers.facts_here(sys.executable)["mpi"]:
        pytest.skip("Open MPI ends a job when a daemon's session ends")
    job = start({"node1": 1, "node3": 1}, **HEALTHY)
    job.reach("step 1")
    for pid in hosts.processes("node3", "sshd"):
        os.kill(pid, signal.SIGKILL)
    job.ends("step 11", well=True)


def test_a_destroyed_host(hosts: Hosts, start: Callable[..., Job]) -> None:
    job = start({"node1": 2, "node2": 2})
    job.reach("step 1")
    hosts.destroy("node2")
    hosts.names.remove("node2")
    job.ends(r"Connection to node2|machine \(node2\)|on node node2", gone="node2")
