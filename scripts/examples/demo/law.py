#!/usr/bin/env python3
"""Demo of the law: the same training by one process and by two ranks, with one global batch and a core per process.

- ``python scripts/examples/demo/law.py`` trains both ways, and prints the table.
- ``python scripts/examples/demo/law.py train`` trains with one process.
- ``mpirun -n 2 python scripts/examples/demo/law.py train`` trains with two ranks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

GLOBAL_BATCH, STEPS, WARM_UP = 512, 120, 5


def train() -> None:
    """Train as a user's script does; only the lines with ``tfdist`` are added.

    Each process is pinned to its own core, so that the times are comparable.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[tfdist.local_rank() % len(cores)]})
    for threads in (
        tf.config.threading.set_intra_op_parallelism_threads,
        tf.config.threading.set_inter_op_parallelism_threads,
    ):
        threads(1)
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    x = random.normal(size=[GLOBAL_BATCH * STEPS, 256]).astype("float32")
    y = np.tanh(x @ random.normal(size=[256, 1]) / 16).astype("float32")
    layers = [keras.layers.Dense(1024, "relu") for _ in range(3)]
    model = keras.Sequential([keras.Input([256]), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(1e-4, clipnorm=1.0), "mse")
    batch = GLOBAL_BATCH // tfdist.size()
    model.fit(*(tfdist.shard(a[: GLOBAL_BATCH * WARM_UP]) for a in (x, y)), batch_size=batch, shuffle=False, verbose=0)
    start = time.perf_counter()
    history = model.fit(tfdist.shard(x), tfdist.shard(y), batch_size=batch, shuffle=False, verbose=0)
    seconds = time.perf_counter() - start
    weights = [np.abs(w.numpy()).sum(dtype=float) for w in model.weights]
    if tfdist.rank() == 0:
        print(json.dumps({"loss": history.history["loss"][-1], "weights": sum(weights), "seconds": seconds}))


def run(*launcher: str) -> dict[str, float]:
    """Run one of the two trainings, and return its results."""
    command = [*launcher, sys.executable, __file__, "train"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run both trainings, and print the table."""
    columns = {"one process": run(), "two ranks": run("mpirun", "-n", "2")}
    print(f"{'':<34}{''.join(f'{name:>14}' for name in columns)}")
    rows = {
        "loss after an epoch": ("loss", 4),
        "sum of the weights' magnitudes": ("weights", 6),
        "seconds, a core for each process": ("seconds", 3),
    }
    for name, (key, digits) in rows.items():
        print(f"{name:<34}{''.join(f'{found[key]:>14.{digits}g}' for found in columns.values())}")
    print("(half of the time, if two cores do twice the work of one; cores of some virtual machines do not)")
    print("the same training, with three more lines in the script:")
    print("  import tfdist; x, y = tfdist.shard((x, y)); batch = batch // tfdist.size()")


if __name__ == "__main__":
    train() if sys.argv[1:] == ["train"] else main()
