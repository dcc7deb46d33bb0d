"""``tfdist-run --max-restarts``: which jobs restart, where and how often, and that programs continue."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.launch import ROOT, TFDIST_RUN, Finished, run
from tfdist.launch import command, reach
from tfdist.launch.attempts import Attempts
from tfdist.launch.hosts import Host, LaunchError
from tfdist.launch.supervision import Ended


class Pretended(Attempts):
    """A simulated job: attempts end with these exit codes, and some hosts are gone after each attempt."""

    def __init__(self, codes: Sequence[int], gone: Sequence[Sequence[str]] = (), ending_after: int = 99) -> None:
        self.ending: signal.Signals | None = None
        self.started: list[tuple[str, int, int]] = []
        self.said: list[str] = []
        self._codes, self._gone, self._ending_after = codes, gone, ending_after

    def wait(self, seconds: float) -> None:
        if len(self.started) >= self._ending_after:
            self.ending = signal.SIGTERM

    def _attempt(self, machines: tuple[Host, ...], ranks: int, restarted: int, signals: object) -> Ended:
        self.started.append((",".join(f"{host.name}:{host.ranks}" for host in machines), ranks, restarted))
        return Ended(self._codes[len(self.started) - 1], 7.4)

    def _ask(self, others: Sequence[str], seconds: float) -> dict[str, reach.Answer]:
        gone = self._gone[len(self.started) - 1]
        return {host: reach.Answer(f"{host}: is gone") for host in others if host in gone}

    def job(self, hosts: str, ranks: int | None, most: int | None, least: int | None = None) -> int:
        words = [f"-n={ranks}"] * bool(ranks) + [f"-H={hosts}"] * bool(hosts)
        words += [f"--max-restarts={most}"] * bool(most) + [f"--min-ranks={least}"] * bool(least)
        options = command._parser().parse_args([*words, "python"])
        super().__init__(options, command._places(options), (), sys.executable, self.said.append)
        return self.run(self)  # type: ignore[arg-type]


def test_without_the_option_there_is_one_attempt_and_no_word() -> None:
    job = Pretended([3])
    assert job.job("", 2, None) == 3
    assert job.started == [("", 2, 0)] and job.said == []


def test_it_starts_again_until_it_succeeds() -> None:
    job = Pretended([9, 0])
    assert job.job("", 2, 5) == 0
    assert job.started == [("", 2, 0), ("", 2, 1)]
    assert job.said == [
        "attempt 1 of 6 ended with exit code 9 after 7 s",
        "attempt 2 of 6: 2 ranks",
        "attempt 2 of 6 ended with exit code 0 after 7 s",
    ]


def test_it_starts_again_so_often_and_no_more() -> None:
    job = Pretended([9, 9, 4])
    assert job.job("", 2, 2) == 4
    assert [restarted for _, _, restarted in job.started] == [0, 1, 2]
    assert job.said[-1] == "attempt 3 of 3 ended with exit code 4 after 7 s"


def test_a_signal_ends_it_for_good() -> None:
    job = Pretended([130, 0], ending_after=1)
    assert job.job("", 2, 2) == 130
    assert len(job.started) == 1
    assert job.said[-1] == "SIGTERM was to end the job: it does not start again"


def test_hosts_that_are_gone_are_left_out_and_may_come_back() -> None:
    job = Pretended([1, 1, 1, 0], [["b"], ["a"], []])
    assert job.job("a:2,b:2,c:1", None, 3, 3) == 0
    assert job.started == [("a:2,b:2,c:1", 5, 0), ("a:2,c:1", 3, 1), ("b:2,c:1", 3, 2), ("a:2,b:2,c:1", 5, 3)]
    assert job.said[1:3] == ["b: is gone", "attempt 2 of 4: 3 ranks instead of 5 on a:2,c:1"]


def test_hosts_with_room_stand_in_for_one_that_is_gone() -> None:
    job = Pretended([1, 0], [["a"]])
    assert job.job("a:2,b:2,c:2", 3, 1) == 0
    assert job.started == [("a:2,b:1", 3, 0), ("b:2,c:1", 3, 1)]


def test_ranks_that_were_shared_equally_stay_where_they_are() -> None:
    job = Pretended([1, 0], [["b"]])
    assert job.job("a,b", 5, 1, 3) == 0
    assert job.started == [("a:3,b:2", 5, 0), ("a:3", 3, 1)]


@pytest.mark.parametrize(("least", "gone"), [(None, ["b"]), (2, ["a", "b"])])
def test_too_few_ranks(least: int | None, gone: list[str]) -> None:
    job = Pretended([5], [gone])
    assert job.job("a:2,b:2", None, 1, least) == 5
    assert job.said[-1] == (
        f"the hosts that are left have room for {4 - 2 * len(gone)} of 4 ranks, and --min-ranks is {least or 4}: the "
        "job does not start again"
    )


def test_options_that_do_not_fit() -> None:
    with pytest.raises(LaunchError, match="--min-ranks 2: .* add --max-restarts"):
        Pretended([]).job("", 4, None, 2)
    with pytest.raises(LaunchError, match="--min-ranks 5: the job begins with 4 ranks"):
        Pretended([]).job("", 4, 3, 5)


def again(*arguments: str, seconds: float = 90) -> Finished:
    return run([sys.executable, str(TFDIST_RUN), "--max-restarts", "1", *arguments], seconds)


def shell(tmp_path: Path, text: str) -> str:
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return str(program)


def test_a_job_that_fails_again_and_its_environment(tmp_path: Path) -> None:
    # Both ranks print before one ends, because Open MPI's launcher ends the other at once.
    told = f'echo "job $TFDIST_JOB restarts $TFDIST_RESTARTS"; mktemp {tmp_path}/told.XXXXXX >/dev/null'
    both = f"until [ $(ls {tmp_path}/told.* | wc -l) -ge $((2 * TFDIST_RESTARTS + 2)) ]; do sleep 0.1; done"
    program = shell(tmp_path, f"{told}; {both}; exit $((TFDIST_RESTARTS + 3))")
    finished = again("-n", "2", program)
    assert finished.code == 4
    said = [line for line in finished.errors.splitlines() if "attempt" in line]
    assert [line.partition(" after ")[0] for line in said] == [
        "tfdist-run: attempt 1 of 2 ended with exit code 3",
        "tfdist-run: attempt 2 of 2: 2 ranks",
        "tfdist-run: attempt 2 of 2 ended with exit code 4",
    ]
    words = [line.split() for line in finished.output.splitlines()]  # [0] job NAME restarts N
    assert len({line[2] for line in words}) == 1
    assert sorted(line[0] + line[4] for line in words) == ["[0]0", "[0]1", "[1]0", "[1]1"]


@pytest.mark.parametrize("between", [False, True])
def test_what_the_user_ends_does_not_start_again(tmp_path: Path, between: bool) -> None:
    """The user sends SIGTERM while the ranks run, or SIGINT between two attempts."""
    program = shell(tmp_path, "echo up; exit 7" if between else "echo up; exec sleep 60")
    command = [sys.executable, str(TFDIST_RUN), "--max-restarts", "2", "-n", "2", program]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    try:
        if between:
            while "attempt 1 of 3 ended with exit code 7" not in process.stderr.readline():
                assert process.poll() is None
        else:
            assert process.stdout.readline().endswith("up\n") and process.stdout.readline().endswith("up\n")
            time.sleep(0.2)
        process.send_signal(signal.SIGINT if between else signal.SIGTERM)
        output, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode not in (0, None)
    name = "SIGINT" if between else "SIGTERM"
    assert f"tfdist-run: {name} was to end the job: it does not start again" in errors
    assert "attempt 2" not in errors and output.count("up") == (2 if between else 0)


# The job is killed in the third epoch of the first attempt. Then the same training runs undisturbed, for comparison.
KERAS = """
import os, signal, sys
import numpy as np
import keras
import tfdist

folder = sys.argv[1]
generator = np.random.default_rng(1)
x = generator.normal(size=(48, 6)).astype("float32")
y = (x @ generator.normal(size=(6, 1)) ** 2).astype("float32")
x, y = tfdist.shard(x), tfdist.shard(y)
epochs = []

class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        epochs.append(epoch)
    def on_train_batch_end(self, batch, logs=None):
        last = tfdist.rank() == tfdist.size() - 1
        if (epochs[-1], batch, os.environ["TFDIST_RESTARTS"], last) == (2, 1, "0", True):
            os.kill(os.getpid(), signal.SIGKILL)

def train(name, *more):
    keras.utils.set_random_seed(7 + tfdist.rank())
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(synchronized=True),
         keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    backup = keras.callbacks.BackupAndRestore(f"{folder}/{name}")
    files = keras.callbacks.ModelCheckpoint(f"{folder}/{name}-{{epoch}}.keras")
    model.fit(x, y, batch_size=6, epochs=5, shuffle=False, verbose=0, callbacks=[backup, files, *more])
    return model

went_on = train("killed", Kill())
assert epochs == [2, 3, 4], epochs
straight = train("straight")
for one, other in zip(went_on.weights + went_on.optimizer.variables, straight.weights + straight.optimizer.variables):
    np.testing.assert_array_equal(np.asarray(one), np.asarray(other), err_msg=one.path)
assert os.path.exists(f"{folder}/killed-5.keras") and not os.path.exists(f"{folder}/killed")
print("the same bits", flush=True)
"""


@pytest.mark.long("half a minute; the tests above restart jobs, and nmt/runs/test_long_runs.py one that goes on")
def test_keras_goes_on_from_its_backup(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(KERAS)
    finished = again("-n", "2", "python", str(script), str(tmp_path))
    assert finished.code == 0, finished.errors
    assert "attempt 1 of 2 ended with exit code" in finished.errors
    assert sorted(re.findall(r"\[\d\] the same bits", finished.output)) == ["[0] the same bits", "[1] the same bits"]
