"""How a process of a job ends, and its children: ranks end the job, children do not. Each case is a job of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import ROOT, STARTUP, run
from tests.tfdist.test_failures import SCRIPT, assert_ended, job
from tfdist.core.environment import _MARK, Launch, launch, mark, parent_rank

HYDRA = {"PMI_SIZE": "2", "PMI_RANK": "1", "PMI_FD": "9"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "prterun-node-7@1"}


def marked(monkeypatch: pytest.MonkeyPatch, said: dict[str, str]) -> dict[str, str]:
    """Return the environment of a rank's child: the rank's mark and ``said``, the launcher's variables."""
    for name in [name for name in os.environ if name.startswith(("PMI", "OMPI", "SLURM"))]:
        monkeypatch.delenv(name)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(_MARK, "")  # so that undo() removes the mark: this process is no rank
    monkeypatch.setattr(os, "getpid", lambda: 4)  # the rank's number, which is not that of this process's parent
    mark(1)
    environment = dict(os.environ)
    monkeypatch.undo()
    return environment


class TestWhoseChild:
    """A rank's children inherit the launcher's variables; ranks of a launcher that a rank starts inherit the mark."""

    def test_open_mpi(self, monkeypatch: pytest.MonkeyPatch) -> None:
        environment = marked(monkeypatch, OPEN_MPI)
        assert parent_rank(environment) == 1
        assert launch(environment) is None
        anew = {**environment, "PMIX_NAMESPACE": "prterun-node-8@1"}
        assert parent_rank(anew) is None
        assert launch(anew) == Launch(2, 1, 1)

    def test_hydra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hydra sets the same variables for every job; only the connection tells jobs apart."""
        ours, theirs = socket.socketpair()
        other, end = socket.socketpair()
        with ours, theirs, other, end:
            environment = marked(monkeypatch, {**HYDRA, "PMI_FD": str(ours.fileno())})
            assert launch(environment) is None, "a child that has inherited it"
            os.dup2(other.fileno(), ours.fileno())
            assert launch(environment) == Launch(2, 1, 1), "another launcher's"
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), ours.fileno())
            assert launch(environment) is None, "a child that has something else there"
        assert launch(environment) is None, "a child that has not inherited it"

    def test_without_a_rank(self) -> None:
        assert parent_rank({}) is None
        assert launch(HYDRA) == Launch(2, 1, 1)


def test_children_are_no_ranks(tmp_path: Path) -> None:
    """Children train alone, or end, and the ranks continue together."""
    finished = job(
        tmp_path,
        """
        import multiprocessing
        def look(_):
            return tfdist.rank(), tfdist.size(), "mpi4py" in sys.modules, sys.excepthook is sys.__excepthook__
        def forked(action):
            child = os.fork()
            if child == 0:
                action()
                sys.exit()
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        def collective():
            try:
                tfdist.all_reduce(np.ones(3))
            except tfdist.PeerError as error:
                sys.exit("is refused: process" not in str(error))
        def fails():
            try:
                sys.exit(5)
            except SystemExit as error:
                assert error.code == 5
            raise ValueError("bad luck")
        if __name__ == "__main__":
            if rank == 0:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    print(pool.map(look, [1]))
            codes = [forked(f) for f in (lambda: None, lambda: sys.exit(3), fails, collective)]
            assert codes == [0, 3, 1, 0], codes
            print("sum", tfdist.all_reduce(np.ones(1) + rank, "sum"))
        """,
    )
    assert finished.code == 0, finished
    assert "[(0, 1, False, True)]" in finished.output, finished
    assert finished.output.count("sum [3.]") == 2, finished
    assert finished.errors.count("was started by rank 0, not by the launcher") == 1, finished.errors


def test_a_program_that_was_put_into_a_ranks_process() -> None:
    script = "import os; os.environ['_TFDIST_RANK'] = f'{os.getpid()} 0 OMPI_COMM_WORLD_RANK=0'; import tfdist"
    said = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}
    finished = run([sys.executable, "-c", script], 60, said)
    assert finished.code == 1, finished
    assert "os.exec has put this program into the process of rank 0" in finished.errors
    assert "Traceback" not in finished.errors


def test_an_exit_with_a_code(tmp_path: Path) -> None:
    """The other rank ends at its next step, before the stall deadline, and reports no other cause."""
    finished = job(tmp_path, "if rank == 1:\n    sys.exit(3)\ntfdist.barrier()")
    assert_ended(finished, "rank 1 ended with exit code 3 while rank 0 waits in tfdist.barrier")
    assert "tfdist.shard" not in finished.errors


@pytest.mark.parametrize(
    ("by", "closed"), [(1e-7, False), (0.1, True), pytest.param(0.1, False, marks=pytest.mark.long("as after a step"))]
)
def test_ranks_that_differ_after_the_last_step(tmp_path: Path, by: float, closed: bool) -> None:
    """Rounding is no failure. A larger difference is, with the variable's name; in a closed session it is told."""
    finished = job(
        tmp_path,
        f"""
        start()
        with tf.control_dependencies([step]):
            last = v1.assign_add(w, tf.fill([3, 4], {by} * rank))
        for one in (step, step, last):
            session.run(one)
        if {closed}:
            session.close()
        print("trained")
        """,
    )
    if by < 0.01:
        assert finished.code == 0 and finished.output.count("trained") == 2, finished
        assert "w and 0 more of the variables differ between ranks by rounding" in finished.errors, finished.errors
    elif closed:
        assert finished.code == 0, finished
        assert "the ranks have different variables at the end, after step" in finished.errors, finished.errors
        assert "set TFDIST_CHECK=1" in finished.errors
    else:
        assert_ended(finished, "rank 0 of 2, at its end: DisagreementError", "w, which is trained, is", "at [0, 0]")


def test_a_failure_whose_output_has_no_place(tmp_path: Path) -> None:
    finished = job(
        tmp_path,
        """
        if rank == 1:
            sys.stdout = open("/dev/full", "w")
            print("not written before the end")
            raise ValueError("bad luck")
        tfdist.barrier()
        """,
    )
    assert_ended(finished, "rank 1 of 2 failed", "ValueError: bad luck")
    assert "rank 1 ended" not in finished.errors


def test_a_thread_that_fails(tmp_path: Path) -> None:
    """The script's own hook runs before the job ends; an exit of a thread is no failure."""
    (tmp_path / "sitecustomize.py").write_text(
        "import threading\nthreading.excepthook = lambda failure: print('noticed', failure.exc_type.__name__)"
    )
    finished = job(
        tmp_path,
        """
        import threading
        def fails():
            raise ValueError("bad luck")
        if rank == 1:
            exits = threading.Thread(target=sys.exit)
            exits.start()
            exits.join()
            tfdist.barrier()
            tfdist.barrier()  # which rank 0 calls when it has written its line
            threading.Thread(target=fails, name="feeder").start()
            time.sleep(1000)
        tfdist.barrier()
        print("the exit was none of the job", flush=True)
        tfdist.barrier()
        tfdist.barrier()
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]),
    )
    assert_ended(finished, "rank 1 of 2 failed in feeder:", "ValueError: bad luck")
    assert "the exit was none of the job" in finished.output, finished
    assert "noticed ValueError" in finished.output, finished


@pytest.mark.long("half a minute; launch/test_run.py kills tfdist-run")
@pytest.mark.parametrize("outlive", ["0", "1"])
def test_ranks_whose_launcher_is_killed(tmp_path: Path, outlive: str) -> None:
    """Rank 0 catches the signal although nothing reads its output; the signal ends rank 1, which logs the reason."""
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT
        + textwrap.dedent("""
        directory = sys.argv[1]
        def save(number, frame):
            print("saving")
            open(f"{directory}/saved", "w").close()
            sys.exit()
        if rank == 0:
            signal.signal(signal.SIGTERM, save)
        os.dup2(os.open(f"{directory}/errors{rank}", os.O_CREAT | os.O_WRONLY), 2)
        tfdist.barrier()
        with open(f"{directory}/pids{rank}", "w") as file:
            file.write(f"{os.getpid()} {os.getppid()}\\n")
        time.sleep(1000 if sys.argv[2] == "0" else 6)
        if rank == 0:
            open(f"{directory}/outlived", "w").close()
        """)
    )
    path = os.pathsep.join([str(STARTUP), str(ROOT)])
    settings = {"TFDIST_STALL_ABORT_SECONDS": "6", "TFDIST_OUTLIVE_LAUNCHER": outlive, "PYTHONPATH": path}
    with subprocess.Popen(
        ["mpirun", "-n", "2", sys.executable, str(script), str(tmp_path), outlive],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as launcher:
        try:
            files = [tmp_path / f"pids{rank}" for rank in range(2)]
            wait_until(lambda: all(file.exists() and file.read_text().endswith("\n") for file in files))
            ranks, parents = zip(*(map(int, file.read_text().split()) for file in files), strict=True)
            for pid in {*parents, launcher.pid}:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: all(map(ended, ranks)))
        finally:
            launcher.kill()
    assert (tmp_path / "saved").exists() == (outlive == "0")
    assert (tmp_path / "outlived").exists() == (outlive == "1")
    told = "rank 1: the launcher (mpirun) is gone, so this rank ends by SIGTERM"
    assert (told in (tmp_path / "errors1").read_text()) == (outlive == "0")


def wait_until(happened: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ended(pid: int) -> bool:
    """Return whether a process has ended; a process that its parent has not waited for has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
