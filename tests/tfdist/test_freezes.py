"""Ranks that are stopped for a while, one or all, do not end a job. The test starts its own job."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch import ROOT, STARTUP

SCRIPT = """
import os, sys, time
import tfdist
import numpy as np
import tensorflow as tf
rank, size = tfdist.rank(), tfdist.size()
w = tf.Variable(tf.ones([3]))
optimizer = tf.keras.optimizers.Adam(0.05)
@tf.function
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((w * x - 1.0) ** 2)
    optimizer.apply([tape.gradient(loss, w)], [w])
pairs = [tfdist.new_group(sorted({one, (one + 1) % size})) for one in range(size)]
batches = np.random.RandomState(rank).rand(200, 3).astype(np.float32)
print("pid", os.getpid(), flush=True)
total = 0.0
for number, batch in enumerate(batches):
    step(tf.constant(batch))
    for pair in pairs:
        if rank in pair.ranks:
            total += float(tfdist.all_reduce(float(number + rank), "sum", group=pair))
    time.sleep(0.02)
    if number % 50 == 20 and rank == 0:
        with tfdist.alone("a look"):
            time.sleep(0.2)
everyone = tfdist.all_gather(w.numpy()[None])
assert (np.asarray(everyone) == np.asarray(everyone)[0]).all(), everyone
expected = sum(2 * n + sum(pair.ranks) for pair in pairs if rank in pair.ranks for n in range(200))
assert total == expected, (total, expected)
print("well", flush=True)
"""


@pytest.mark.parametrize(
    "ranks", [3, pytest.param(2, marks=pytest.mark.long("three ranks have groups in a chain, too"))]
)
def test_ranks_that_are_stopped_and_go_on(ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    settings = {
        "PYTHONPATH": f"{STARTUP}:{ROOT}",
        "TFDIST_TRACE_FOLDER": str(tmp_path),
        "TFDIST_STALL_SECONDS": "1",
        "TFDIST_STALL_ABORT_SECONDS": "6",
    }
    seed = random.randrange(1000)
    draw = random.Random(seed)
    command = ["mpirun", "-n", str(ranks), sys.executable, str(script)]
    job = subprocess.Popen(
        command, env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert job.stdout is not None
        pids = [int(job.stdout.readline().split()[1]) for _ in range(ranks)]
        # Stop all ranks for longer than the deadline, then each rank alone, then some at the same time.
        for stopped, seconds in ((pids, 8.0), *(([pid], 2.0) for pid in pids), (draw.sample(pids, ranks - 1), 3.0)):
            time.sleep(draw.uniform(0.1, 0.6))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        output, errors = job.communicate(timeout=60)
    finally:
        job.kill()
    assert job.returncode == 0 and output.split() == ["well"] * ranks, (seed, output, errors)
