"""Channels and threads of a graph, a function or a model are used again after it has been deleted."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank import inside
from tests.multirank.oracle import v1
from tests.named import subtest

ROUNDS = 12


def graph(number: int) -> tuple[Any, Any]:
    """Train one step in a new graph; return the variable's value, and the graph, which keeps the channels open."""
    with tf.Graph().as_default() as made, v1.Session() as session:
        w, b = (v1.get_variable(n, initializer=tf.fill([300], float(number))) for n in "wb")
        loss = tf.reduce_sum((w + b) * (tfdist.rank() + 1.0))
        train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(train)
        return session.run(w), made


def function(number: int) -> tuple[Any, Any]:
    w, b = (tf.Variable(tf.fill([300], float(number)), name=f"{n}{number}") for n in "wb")

    @tf.function
    def step(scale: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w + b) * scale)
        for v, g in zip((w, b), tape.gradient(loss, [w, b]), strict=True):
            v.assign_sub(g)

    step(tf.constant(tfdist.rank() + 1.0))
    return w.numpy(), step


def keras(number: int) -> tuple[Any, Any]:
    model = tf.keras.Sequential([tf.keras.Input([1]), tf.keras.layers.Dense(300, "linear", name=f"d{number}")])
    model.compile(tf.keras.optimizers.SGD(1.0), lambda y, p: tf.reduce_sum(p) * (tfdist.rank() + 1.0))
    model.layers[0].bias.assign(tf.fill([300], float(number)))
    model.fit(np.ones([1, 1]), np.ones([1, 1]), verbose=0)
    return model.layers[0].bias.numpy(), model


def case_what_is_gone_is_used_again() -> None:
    """Channels that some ranks still use are not used again: each rank keeps the graph of another round."""
    mean = float(np.mean([rank + 1.0 for rank in range(tfdist.size())]))
    tfdist.configure(bucket_mb=0.001)  # several buckets, and so a thread
    gc.freeze()  # gc.collect() then searches new objects only
    try:
        for build in (graph, function, keras):
            with subtest(build):
                assert_flat(build, mean)
    finally:
        gc.unfreeze()
        tfdist.configure(bucket_mb=64)


def assert_flat(build: Callable[[int], tuple[Any, Any]], mean: float) -> None:
    counts = []
    for number in range(ROUNDS):
        value, kept = build(number)
        np.testing.assert_allclose(value, number - mean)
        if number % tfdist.size() == tfdist.rank():
            held = kept  # noqa: F841 (until the next)
        del kept
        gc.collect()
        counts.append((inside.channels(), threading.active_count()))
    half = ROUNDS // 2
    for what, first, last in zip(("channels", "threads"), counts[half], counts[-1], strict=True):
        assert last <= first + half // 3, f"{what} of each round, of which a rank holds one now and then: {counts}"


def used(group: tfdist.Ranks, number: int) -> None:
    """Use a group in eager mode and in a function, with each rank's own value."""
    own = tf.constant([float(number + group.ranks.index(tfdist.rank()))])
    reduce = tf.function(lambda value: tfdist.all_reduce(value, "sum", group))
    expected = sum(number + place for place in range(group.size))
    for found in (tfdist.all_reduce(own, "sum", group), reduce(own)):
        np.testing.assert_allclose(found.numpy(), [expected])


def case_groups_are_given_back() -> None:
    """Deleted and closed groups give their channels back; another group of the same ranks is not changed."""
    gc.freeze()
    try:
        for closed in (False, True):
            with subtest("closed" if closed else "dropped"):
                last = tfdist.new_group(range(tfdist.size()))
                counts = []
                for number in range(ROUNDS):
                    everyone = tfdist.new_group(range(tfdist.size()))
                    alone = tfdist.new_group([number % tfdist.size()])
                    used(everyone, number)
                    if alone.rank is not None:
                        used(alone, number)
                    if closed:
                        everyone.close()
                        alone.close()
                    del everyone, alone
                    gc.collect()
                    used(last, number)
                    counts.append(inside.channels_of_groups())
                assert counts[ROUNDS // 2] == counts[-1], counts
                if closed:
                    last.close()
    finally:
        gc.unfreeze()


def case_what_was_closed_is_refused() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        closed = tfdist.new_group(range(tfdist.size()))
        fetched = tfdist.all_reduce(tf.constant([1.0]), "sum", closed)
        assert session.run(fetched) == [tfdist.size()]
        closed.close()
        closed.close()  # the second call does nothing
        for call in (lambda: session.run(fetched), lambda: tfdist.all_reduce(1.0, "sum", closed)):
            try:
                call()
            except RuntimeError as error:
                assert "was closed" in str(error) and "ranks" in str(error), error
            else:
                raise AssertionError("it was used")
    assert tfdist.all_reduce(1.0, "sum") == tfdist.size()
