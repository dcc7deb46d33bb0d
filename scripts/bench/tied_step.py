"""Tied step: the measurement of scripts/bench/step --only tied, the gradient of a table for lookups and output layer.

A Transformer's words have one table for source, target and output layer. Its gradient has several parts: the rows of
the lookups, and a dense part of the output layer's product. TensorFlow once joined the parts as slices of all rows.
Each rank gathered all ranks' slices (Cavdar et al. 2019, "Densifying Assumed-sparse Tensors": 82 times as much on 64
nodes). Today's TensorFlow adds them as a dense tensor, and tfdist averages this tensor. Its size does not grow with the
number of ranks.
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
    """A row of the table, for one number of ranks.

    Attributes:
        ranks: number of ranks.
        ours: bytes of the table's gradient that each rank accumulates, as TensorFlow makes it.
        gathered: bytes that each rank accumulates if all ranks gather slices.
        seconds: median seconds of a step with each; None if computed and not measured.
    """

    ranks: int
    ours: int
    gathered: int
    seconds: tuple[float, float] | None


def computed(ranks: int) -> Row:
    """Return a row computed from the sizes: each rank has the rows of both lookups and all rows of the product."""
    row = WIDTH * 4
    return Row(ranks, WORDS * row, (WORDS + 2 * TOKENS) * row * ranks, None)


def measured(ranks: int, script: Path, launcher: str, folder: Path, variables: dict[str, str]) -> Row:
    """Return a row measured with jobs of this number of ranks."""
    found = []
    for way in (DENSE, GATHERED):
        report = folder / f"{ranks} {way}"
        command = [sys.executable, str(script), "--worker", "tied", way, "", "", str(report), ""]
        sparse = {"TFDIST_SPARSE": "unmerged"} if way == GATHERED else {}
        done = subprocess.run(
            [launcher, "-n", str(ranks), *command], env=variables | sparse, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"step: {ranks} ranks failed:\n{done.stderr}")
        found.append(json.loads(report.read_text()))
    dense, gathered = found
    return Row(ranks, dense["bytes"], gathered["bytes"], (dense["seconds"], gathered["seconds"]))


def table(rows: list[Row]) -> str:
    """Return the table as text, with a line for each row."""
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
    """Run a few steps on one rank; rank 0 reports the bytes that its optimizer gets, and the seconds of a step."""
    import tensorflow as tf

    import tfdist

    v1: Any = tf.compat.v1
    given: list[tf.Tensor] = []

    class Counting(v1.train.GradientDescentOptimizer):  # type: ignore[misc]
        """Records the bytes of the gradients that it gets."""

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
        # Only 64 tokens have a softmax over all words, since its time is not to be measured.
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
    """Return the table with a gradient of slices of all rows, so that TensorFlow joins it with the lookups' slices."""
    import tensorflow as tf

    @tf.RegisterGradient("SlicesOfAllRows")
    def _(_: tf.Operation, gradient: tf.Tensor) -> tf.IndexedSlices:
        return tf.IndexedSlices(gradient, tf.range(WORDS), tf.constant([WORDS, WIDTH]))

    with tf.compat.v1.get_default_graph().gradient_override_map({"Identity": "SlicesOfAllRows"}):
        return tf.identity(table)
