"""Derivatives of the collectives that a script calls, against one process that has the values of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import clip, refusal
from tests.multirank.oracle import Feed, assert_close, data, mine, one_process, v1
from tests.named import subtest

Array = np.ndarray


def value(rank: int, even: bool) -> Array:
    """Return a rank's value, [rows, 2]."""
    return np.random.RandomState(rank).randn(6 if even else 2 + 3 * rank, 2).astype("float32")


def loss_of(result: Any, rank: int) -> Any:
    """Return a rank's loss of a result; each rank weighs the elements differently."""
    weights = tf.sin(tf.cast(tf.reshape(tf.range(tf.size(result)), tf.shape(result)) + 7 * rank, tf.float32))
    return tf.reduce_sum(weights * result * result)


def parts(x: Any, splits: Any = None) -> list[Any]:
    size = tfdist.size()
    rows = [len(x) // size + (i < len(x) % size) for i in range(size)]
    return list(tf.split(x, rows if splits is None else splits))


def splits_of(rank: int, even: bool) -> list[int]:
    """Return the numbers of rows that a rank sends to each rank; rank 0 receives none."""
    rows, size = len(value(rank, even)), tfdist.size()
    return [0, *[rows // (size - 1)] * (size - 2), rows - rows // (size - 1) * (size - 2)]


def exchanged(xs: list[Any], even: bool) -> list[list[Any]]:
    split = [parts(x, splits_of(rank, even)) for rank, x in enumerate(xs)]
    return [[own[to] for own in split] for to in range(len(xs))]


# By name: whether all ranks need the same number of rows, a rank's call, and all ranks' results in one process.
Collective = tuple[bool, Callable[[Any, bool], Any], Callable[[list[Any], bool], list[Any]]]
COLLECTIVES: dict[str, Collective] = {
    "sum": (True, lambda x, _: tfdist.all_reduce(x, "sum"), lambda xs, _: [tf.add_n(xs)] * len(xs)),
    "mean": (True, lambda x, _: tfdist.all_reduce(x), lambda xs, _: [tf.add_n(xs) / len(xs)] * len(xs)),
    "broadcast": (True, lambda x, _: tfdist.broadcast(x, root=1), lambda xs, _: [xs[1]] * len(xs)),
    "all_gather": (False, lambda x, _: tfdist.all_gather(x), lambda xs, _: [tf.concat(xs, 0)] * len(xs)),
    "reduce_scatter": (True, lambda x, _: tfdist.reduce_scatter(x), lambda xs, _: parts(tf.add_n(xs))),
    "its mean": (True, lambda x, _: tfdist.reduce_scatter(x, "mean"), lambda xs, _: parts(tf.add_n(xs) / len(xs))),
    "all_to_all": (
        False,
        lambda x, even: tfdist.all_to_all(x, splits_of(tfdist.rank(), even))[0],
        lambda xs, even: [tf.concat(own, 0) for own in exchanged(xs, even)],
    ),
}


def in_tape(compute: Callable[[Any], Any], x: Array) -> Array:
    w = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = compute(w)
    return tape.gradient(loss, w).numpy()


def in_function(compute: Callable[[Any], Any], x: Array) -> Array:
    @tf.function
    def gradient(w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = compute(w)
        return tape.gradient(loss, w)

    return gradient(tf.constant(x)).numpy()


def in_session(compute: Callable[[Any], Any], x: Array) -> Array:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.placeholder("float32", [None, 2])
        return session.run(tf.gradients(compute(w), w)[0], {w: x})


def case_derivatives() -> None:
    """Derivatives of the sum of all ranks' losses with respect to each rank's value."""
    for name, (even, collective, serial) in COLLECTIVES.items():

        def reference(even: bool = even, serial: Any = serial) -> list[Array]:
            xs = [tf.constant(value(rank, even)) for rank in range(tfdist.size())]
            with tf.GradientTape() as tape:
                tape.watch(xs)
                loss = tf.add_n([loss_of(y, rank) for rank, y in enumerate(serial(xs, even))])
            return [g.numpy() for g in tape.gradient(loss, xs, unconnected_gradients="zero")]

        expected = one_process(reference)[tfdist.rank()]
        for differentiate in (in_tape, in_function, in_session):
            with subtest(name, differentiate):

                def compute(x: Any, even: bool = even, collective: Any = collective) -> Any:
                    return loss_of(collective(tf.identity(x), even), tfdist.rank())

                assert_close({name: differentiate(compute, value(tfdist.rank(), even))}, {name: expected}, 1e-5)


def case_what_has_no_derivative_is_refused() -> None:
    def greatest(x: Any) -> Any:
        return tf.reduce_sum(tfdist.all_reduce(x, "max"))

    for differentiate in (in_tape, in_function, in_session):
        with subtest(differentiate):
            told = refusal(functools.partial(differentiate, greatest, value(0, True)))
            assert "all_reduce of 'max' has no derivative" in told and "stop_gradient" in told, told


def contrastive(function: bool, gather: Callable[[Any], Any], first: int, feeds: list[Feed]) -> dict[str, Array]:
    """Train with a loss that tells each sample from all gathered ones; this rank's begin at ``first``."""
    mix = np.linspace(-1, 1, 15).reshape(3, 5).astype("float32")
    w, optimizer = tf.Variable(np.cos(np.arange(20.0)).reshape(5, 4), dtype=tf.float32), v1.train.AdamOptimizer(0.05)

    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            one, other = (tf.math.l2_normalize(view @ w, -1) for view in (x, x + tf.tanh(y @ mix)))
            own = first + tf.range(len(x))
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(own, 5 * one @ tf.transpose(gather(other)))
            loss = tf.reduce_mean(losses)
        optimizer.apply_gradients([(clip([tape.gradient(loss, w)])[0], w)])

    call = tf.function(step) if function else step
    for feed in feeds:
        call(tf.constant(feed["x"]), tf.constant(feed["y"]))
    return {"w": w.numpy()}


def case_contrastive_losses() -> None:
    """A contrastive loss over the samples of all ranks, with their gradients: equal to one process's whole batch."""
    feeds = data(steps=4)
    own = [mine(feed) for feed in feeds]
    first = tfdist.rank() * len(own[0]["x"])
    for function in (False, True):
        with subtest(function):
            expected = one_process(functools.partial(contrastive, function, tf.identity, 0, feeds))
            assert_close(contrastive(function, tfdist.all_gather, first, own), expected, 1e-5)
            constant = contrastive(function, lambda x: tfdist.all_gather(tf.stop_gradient(x)), first, own)
            assert np.abs(constant["w"] - expected["w"]).max() > 1e-3, "no negative"
