"""Comparison of the ranks with one process on the whole batch: the graph is built again without tfdist."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

import tfdist
from tests.launch import EVERY_CASE
from tests.multirank import inside

v1 = tf.compat.v1
Arrays = dict[str, np.ndarray]
Feed = Arrays
T = TypeVar("T")
U = TypeVar("U")
RANKS = (1, 2, 3, 4)
BATCH = 120  # divisible by every world size


@contextlib.contextmanager
def without_tfdist() -> Iterator[None]:
    """Uninstall tfdist's hooks while the context is open."""
    tfdist.uninstall()
    try:
        yield
    finally:
        inside.install()


def one_process(compute: Callable[[], Any]) -> Any:
    """Return the result of one process without tfdist: rank 0 computes it while the others wait."""
    result = None
    with without_tfdist():
        if tfdist.rank() == 0:
            with tfdist.alone("what one process gets"):
                result = compute()
    return tfdist.broadcast(result)


@functools.cache
def every_case() -> bool:
    """Return whether ``--every-case`` was given, as rank 0 knows: not every launcher passes variables to all hosts.

    Collective: all ranks.
    """
    return bool(tfdist.broadcast(os.environ.get(EVERY_CASE, "")))


def assert_averages_matter(expected: dict[str, np.ndarray], alone: Callable[[], Any], least: float) -> None:
    """Check with ``--every-case`` that one rank alone, without averages, trains other values than one process.

    Args:
      expected: values of one process with all data.
      alone: function that trains with one rank's data, without tfdist, and returns its values.
      least: relative difference of at least one value.
    """
    if every_case():
        found = one_process(alone)
        assert any(np.abs(found[n] - v).max() > least * np.abs(v).max() for n, v in expected.items()), "no negative"


def each(first: Iterable[T], second: Sequence[U]) -> list[tuple[T, U]]:
    """Return pairs: each of the first with one of the second in turn, or with ``--every-case`` with all of them."""
    if every_case():
        return list(itertools.product(first, second))
    return list(zip(first, itertools.cycle(second), strict=False))


def data(dtype: str = "float32", steps: int = 10) -> list[Feed]:
    """Return batches of a regression with a category; all rows differ: x [120, 5], y [120, 3], i [120]."""
    random = np.random.RandomState(3)
    return [
        {
            "x": random.randn(BATCH, 5).astype(dtype),
            "y": random.randn(BATCH, 3).astype(dtype),
            "i": random.randint(0, 7, BATCH),
        }
        for _ in range(steps)
    ]


def mine(feed: Feed) -> Feed:
    """Return this rank's rows."""
    return {name: value[tfdist.rank() :: tfdist.size()] for name, value in feed.items()}


def placeholders(dtype: str = "float32") -> dict[str, Any]:
    """Return graph inputs for ``data``."""
    return {
        "x": v1.placeholder(dtype, [None, 5], "x"),
        "y": v1.placeholder(dtype, [None, 3], "y"),
        "i": v1.placeholder("int32", [None], "i"),
    }


def train(build: Callable[[], Any], feeds: Sequence[Feed], seed: int = 0) -> dict[str, np.ndarray]:
    """Build a graph, initialise it, train it, and return its variables.

    Args:
      build: function that makes the graph with ``placeholders`` and returns the training operation.
      feeds: one batch for each step.
      seed: seed of the graph; differs by rank if initial values must come from rank 0.
    """
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(seed)
        step = build()
        init = v1.global_variables_initializer()
        variables = v1.global_variables()
        with v1.Session(graph=graph) as session:
            session.run(init)
            for feed in feeds:
                session.run(step, {f"{name}:0": value for name, value in feed.items()})
            return dict(zip([v.name for v in variables], session.run(variables), strict=True))


def assert_close(found: Arrays, expected: Arrays, tolerance: float) -> None:
    """Check each variable's greatest difference, relative to its greatest entry."""
    difference, name = largest(found, expected)
    assert difference <= tolerance, f"{name} differs by {difference:.1e} of its greatest entry"


def largest(found: Arrays, expected: Arrays) -> tuple[float, str]:
    """Return the largest difference relative to an array's greatest entry, and the array; infinite if names differ."""
    if found.keys() != expected.keys():
        return np.inf, " ".join(sorted(found.keys() ^ expected.keys()))
    return max(((_difference(found[n], expected[n]), n) for n in expected), default=(np.inf, "no array"))


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    found, expected = (array.astype(np.result_type(array, np.float64)) for array in map(np.asarray, (found, expected)))
    if found.shape != expected.shape or not np.isfinite(found).all() or not np.isfinite(expected).all():
        return np.inf
    return float(np.max(np.abs(found - expected), initial=0) / max(np.max(np.abs(expected), initial=0), 1e-30))


def assert_law(build: Callable[[], Any], dtype: str = "float32", feeds: Sequence[Feed] | None = None) -> None:
    """Check that N ranks with a batch of B / N each train as one process with the batch B."""
    feeds = data(dtype) if feeds is None else feeds
    expected = one_process(lambda: train(build, feeds))
    found = train(build, [mine(f) for f in feeds], seed=tfdist.rank())
    assert_close(found, expected, 1e-10 if dtype == "float64" else 1e-5)


def model(dtype: str = "float32", **options: Any) -> tuple[Any, list[Any]]:
    """Build a small model with odd shapes and an embedding; return its loss and variables.

    Args:
      dtype: dtype of all tensors.
      options: arguments of ``get_variable`` (``use_resource``, ``partitioner``).
    """
    inputs = placeholders(dtype)
    w = v1.get_variable("w", [5, 3], dtype, **options)
    b = v1.get_variable("b", [3], dtype, **options)
    s = v1.get_variable("s", [], dtype, initializer=v1.ones_initializer(), use_resource=options.get("use_resource"))
    e = v1.get_variable("e", [7, 3], dtype, **options)
    rows = tf.nn.embedding_lookup(e, inputs["i"])
    output = tf.tanh(inputs["x"] @ v1.convert_to_tensor(w) + v1.convert_to_tensor(b)) * s + rows
    return tf.reduce_mean((output - inputs["y"]) ** 2), v1.trainable_variables()


def merged(gradient: Any) -> Any:
    """Return slices with duplicate rows added up, as a script must do before it clips by the norm."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, where = tf.unique(gradient.indices)
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(gradient.values, where, tf.size(rows)), rows, gradient.dense_shape
    )


class SavedGraph:
    """A training in a session: its variables, and its checkpoints.

    Attributes:
      graph: graph of the training.
      session: session that trains.
      variables: variables by name.
      saver: saver of all variables.
    """

    graph: Any
    session: Any
    variables: dict[str, Any]
    saver: Any

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the variables."""
        found: dict[str, np.ndarray] = self.session.run(self.variables)
        return found

    def save(self, path: str) -> str:
        """Write a checkpoint."""
        with self.graph.as_default():
            return str(self.saver.save(self.session, path))

    def restore(self, path: str) -> None:
        """Read a checkpoint."""
        with self.graph.as_default():
            self.saver.restore(self.session, path)


class SavedFunction:
    """A training in a function: its variables, and its checkpoints.

    Attributes:
      variables: variables by name.
      checkpoint: checkpoint of the variables and the optimizer.
    """

    variables: dict[str, Any]
    checkpoint: Any

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of the variables."""
        return {n: v.numpy() for n, v in self.variables.items()}

    def save(self, path: str) -> str:
        """Write a checkpoint."""
        return str(self.checkpoint.write(path))

    def restore(self, path: str) -> None:
        """Read a checkpoint."""
        self.checkpoint.restore(path)
