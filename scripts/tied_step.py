"""What scripts/bench_step measures with --only tied: the gradient of a table that is looked up and multiplied by.

A Transformer's words have one table for source, target and output layer. Its gradient comes in parts: rows of what was
looked up, and a dense one of the product. TensorFlow once put them together as slices of all rows, of which each rank
gathered all ranks' (Cavdar et al. 2019, "Densifying Assumed-sparse Tensors": 82 times as much on 64 nodes). Today's
adds them as a dense tensor, and tfdist averages that: what is accumulated does not grow with the ranks.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WORDS, WIDTH, TOKENS = 33_708, 512, 5_000  # the article's vocabulary, width, and tokens of a rank's batch, on each side
NODES = 64
DENSE, GATHERED = "as they come", "as slices"
_STEPS = 5


class Row(NamedTuple):
    """One number of ranks.

    Attributes:
        ranks: how many.
        ours: bytes that each accumulates of the table's gradient, as it comes out of TensorFlow.
        gathered: the same, of slices that all ranks gather.
        seconds: of a step with each, medians; None: computed and not measured.
    """

    ranks: int
    ours: int
    gathered: int
    seconds: tuple[float, float] | None


def computed(ranks: int) -> Row:
    """From the sizes: rows of both lookups and all rows of the product, of each rank."""
    row = WIDTH * 4
    return Row(ranks, WORDS * row, (WORDS + 2 * TOKENS) * row * ranks, None)


def measured(ranks: int, script: Path, launcher: str, folder: Path, variables: dict[str, str]) -> Row:
    """From jobs of so many ranks."""
    found = []
    for way in (DENSE, GATHERED):
        report = folder / f"{ranks} {way}"
        command = [sys.executable, str(script), "--worker", "tied", way, "", "", str(report), ""]
        sparse = {"TFDIST_SPARSE": "unmerged"} if way == GATHERED else {}
        done = subprocess.run(
            [launcher, "-n", str(ranks), *command], env=variables | sparse, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"bench_step: {ranks} ranks failed:\n{done.stderr}")
        found.append(json.loads(report.read_text()))
    dense, gathered = found
    return Row(ranks, dense["bytes"], gathered["bytes"], (dense["seconds"], gathered["seconds"]))


def table(rows: list[Row]) -> str:
    """With a line each."""
    lines = [
        f"the gradient of a tied table of {WORDS:,} x {WIDTH}, float32, {TOKENS:,} tokens a side and rank:",
        "MB that a rank accumulates",
        f"{'ranks':>8}{DENSE:>16}{GATHERED:>16}{'times':>8}{'step, ms':>12}{'as slices':>12}",
    ]
    for row in rows:
        told = [f"{1e3 * one:.0f}" for one in row.seconds] if row.seconds else ["computed", ""]
        sizes = f"{row.ours / 1e6:>16,.1f}{row.gathered / 1e6:>16,.1f}{row.gathered / row.ours:>8.1f}"
        lines.append(f"{row.ranks:>8}{sizes}{told[0]:>12}{told[1]:>12}")
    return "\n".join(lines)


def work(way: str, report: Path) -> None:
    """One rank: a few steps, and what its optimizer was given."""
    import tensorflow as tf

    import tfdist

    v1: Any = tf.compat.v1
    given: list[tf.Tensor] = []

    class Counting(v1.train.GradientDescentOptimizer):  # type: ignore[misc]
        """Tells how much it is given."""

        def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> Any:
            given.append(4 * tf.size(grad, tf.int64))
            return super()._resource_apply_dense(grad, handle)

        def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
            given.append(4 * tf.size(grad, tf.int64))
            return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[tfdist.rank() % len(cores)]})
    random = np.random.RandomState(tfdist.rank())
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        source, target = (tf.constant(random.randint(0, WORDS, TOKENS), tf.int32) for _ in range(2))
        start = v1.random_normal_initializer(stddev=0.02)
        words = v1.get_variable("words", [WORDS, WIDTH], initializer=start, use_resource=True)
        # (No softmax over all words for each token: its time is another matter.)
        read = tf.nn.embedding_lookup(words, source) + tf.nn.embedding_lookup(words, target)
        product = words if way == DENSE else _of_all_rows(words)
        some = tf.matmul(tf.tanh(read[:64]), product, transpose_b=True)
        loss = tf.reduce_mean(tf.reduce_logsumexp(some, 1)) + tf.reduce_mean(read[64:] ** 2)
        optimizer = Counting(0.1)
        ((gradient, _),) = optimizer.compute_gradients(loss, [words])
        assert isinstance(gradient, tf.Tensor) == (way == DENSE), f"TensorFlow has made the gradient {gradient}"
        step = optimizer.apply_gradients([(gradient, words)])
        seconds = []
        config = v1.ConfigProto(intra_op_parallelism_threads=1)
        with v1.Session(config=config) as session:
            session.run(v1.global_variables_initializer())
            for _ in range(_STEPS):
                begin = time.perf_counter()
                size, _ = session.run([given[-1], step])
                seconds.append(time.perf_counter() - begin)
    if tfdist.rank() == 0:
        report.write_text(json.dumps({"bytes": int(size), "seconds": statistics.median(seconds)}))


def _of_all_rows(table: Any) -> Any:
    """The table, whose gradient is slices of all rows: they are put together with those of lookups."""
    import tensorflow as tf

    @tf.RegisterGradient("SlicesOfAllRows")
    def _(_: tf.Operation, gradient: tf.Tensor) -> tf.IndexedSlices:
        return tf.IndexedSlices(gradient, tf.range(WORDS), tf.constant([WORDS, WIDTH]))

    with tf.compat.v1.get_default_graph().gradient_override_map({"Identity": "SlicesOfAllRows"}):
        return tf.identity(table)
