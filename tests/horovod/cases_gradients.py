"""Horovod's optimizers and tapes with every argument, against NumPy with all ranks' gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist.horovod as hvd
from tests.multirank import inside
from tfdist.horovod._state import state

hvd.init()
v1 = tf.compat.v1
RANK, SIZE = hvd.rank(), hvd.size()
RATE = 0.5
STEPS = 3
START = np.array([1.0, -2.0, 3.0], np.float32)


def slope(rank: int, step: int) -> np.ndarray:
    """Return the gradient of a rank's loss in a step."""
    return np.random.RandomState(100 * step + rank).randn(3).astype(np.float32)


def trained(combine: Callable[[list[np.ndarray]], np.ndarray], steps: int = STEPS) -> np.ndarray:
    """Return the variable after gradient descent in NumPy; ``combine`` merges the ranks' gradients."""
    value = START.astype(np.float64)
    for step in range(steps):
        value -= RATE * combine([slope(r, step) for r in range(SIZE)])
    return value


def mean(slopes: list[np.ndarray]) -> np.ndarray:
    """Return the mean of the ranks' gradients."""
    return np.mean(slopes, 0)


def in_session(steps: int = STEPS, clip: float | None = None, use_resource: bool = True, **options: Any) -> np.ndarray:
    """Train with an optimizer of ``tf.compat.v1.train`` in a session."""
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=START, use_resource=use_resource)
        given = v1.placeholder(tf.float32, [3])
        optimizer = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(RATE), **options)
        step = v1.train.get_or_create_global_step()
        pairs = optimizer.compute_gradients(tf.reduce_sum(variable * given), [variable])
        if clip is not None:
            pairs = [(tf.clip_by_norm(g, clip), v) for g, v in pairs]
        train = optimizer.apply_gradients(pairs, global_step=step)
        session.run(v1.global_variables_initializer())
        for number in range(steps):
            session.run(train, {given: slope(RANK, number)})
        in_session.steps = session.run(step)  # type: ignore[attr-defined]
        return np.asarray(session.run(variable))


def in_function(steps: int = STEPS, **options: Any) -> np.ndarray:
    """Train with a Keras optimizer in a ``tf.function``."""
    variable = tf.Variable(START)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), **options)

    @tf.function
    def train(given: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * given)
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    for number in range(steps):
        train(tf.constant(slope(RANK, number)))
    return variable.numpy()


def at_once(steps: int = STEPS, **options: Any) -> np.ndarray:
    """Train eagerly."""
    variable = tf.Variable(START)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), **options)
    for number in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * tf.constant(slope(RANK, number)))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
    return variable.numpy()


def by_tape(steps: int = STEPS, traced: bool = True, **options: Any) -> np.ndarray:
    """Train with a distributed tape and a plain optimizer."""
    variable = tf.Variable(START)
    optimizer = keras.optimizers.SGD(RATE)

    def train(given: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * given)
        tape = hvd.DistributedGradientTape(tape, **options)
        optimizer.apply_gradients(zip(tape.gradient(loss, [variable]), [variable], strict=True))

    run = tf.function(train) if traced else train
    for number in range(steps):
        run(tf.constant(slope(RANK, number)))
    return variable.numpy()


WAYS = (in_session, in_function, at_once, by_tape, functools.partial(by_tape, traced=False))


def every_way(expected: np.ndarray, **options: Any) -> None:
    """Check that every way of training gives the expected variable."""
    for way in WAYS:
        np.testing.assert_allclose(way(**options), expected, rtol=1e-4, atol=1e-5, err_msg=str(way))


def case_average() -> None:
    every_way(trained(mean))


def case_sum() -> None:
    every_way(trained(lambda slopes: np.sum(slopes, 0)), op=hvd.Sum)


def case_predivided() -> None:
    """Gradients are divided before they are rounded to float16: the sum stays finite. (One rank rounds nothing.)"""
    every_way(trained(mean), gradient_predivide_factor=3.0)
    for factor, finite in ((4.0 * SIZE, True), (1.0, False)):
        w = tf.Variable([1.0])
        with tf.GradientTape() as tape:
            loss = 1e5 * w
        options: dict[str, Any] = {"compression": hvd.Compression.fp16, "gradient_predivide_factor": factor}
        (gradient,) = hvd.DistributedGradientTape(tape, **options).gradient(loss, [w])
        assert np.isfinite(gradient.numpy()).all() == (finite or SIZE == 1), factor


def case_two_tapes_around_one() -> None:
    w = tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = (RANK + 1.0) * w
    total, mean_of = hvd.DistributedGradientTape(tape, op=hvd.Sum), hvd.DistributedGradientTape(tape)
    assert float(total.gradient(loss, w)) == SIZE * (SIZE + 1) / 2
    assert float(mean_of.gradient(loss, w)) == (SIZE + 1) / 2


def case_compressed() -> None:
    def narrow(slopes: list[np.ndarray]) -> np.ndarray:
        return np.mean([s.astype(np.float16).astype(np.float32) for s in slopes], 0)

    for way in WAYS:
        np.testing.assert_allclose(way(compression=hvd.Compression.fp16), trained(narrow), atol=4e-3)

    class Halved(hvd.Compression.none):  # type: ignore[misc,valid-type]
        @staticmethod
        def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
            return tensor / 2, "context"

        @staticmethod
        def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
            assert ctx == "context"
            return tensor * 4

    if SIZE > 1:
        every_way(trained(lambda slopes: 2 * mean(slopes)), compression=Halved)


def case_of_a_process_set() -> None:
    if SIZE == 1:
        return
    members = list(range(SIZE - 1))
    some = hvd.add_process_set(members)
    expected = trained(lambda slopes: np.mean(slopes[:-1], 0) if RANK in members else slopes[-1])
    every_way(expected, process_set=some)
    hvd.remove_process_set(some)


def case_clipped_after_the_average() -> None:
    def clipped(slopes: list[np.ndarray]) -> np.ndarray:
        found = mean(slopes)
        norm = np.sqrt((found**2).sum())
        return found * min(1.0, 0.3 / norm)

    np.testing.assert_allclose(in_session(clip=0.3), trained(clipped), rtol=1e-4, atol=1e-5)


def case_several_passes() -> None:
    """Six passes, applied after each three: gradients are added up, or averaged by an option."""
    for options, factor in (({}, 1.0), ({"average_aggregated_gradients": True}, 1 / 3)):
        value = START.astype(np.float64)
        for update in range(2):
            value -= RATE * factor * sum(mean([slope(r, 3 * update + i) for r in range(SIZE)]) for i in range(3))
        for way in (in_session, in_function, at_once):
            found = way(6, backward_passes_per_step=3, **options)
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5, err_msg=str(way))
        assert in_session.steps == 2  # type: ignore[attr-defined]


def case_adasum_of_changes() -> None:
    if SIZE & (SIZE - 1):
        with pytest.raises(NotImplementedError, match="power of two"):
            in_session(op=hvd.Adasum)
        return
    from tests.horovod.cases_collectives import pairwise

    value = START.astype(np.float64)
    for step in range(STEPS):
        value += pairwise([-RATE * slope(r, step).astype(np.float64) for r in range(SIZE)])
    for use_resource in (True, False):
        found = in_session(use_resource=use_resource, op=hvd.Adasum)
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5, err_msg=f"use_resource={use_resource}")


def case_slices() -> None:
    """Gradients of an embedding, as slices and made dense."""
    rows = [np.arange(r, r + 3) % 5 for r in range(SIZE)]
    expected = np.ones([5, 2])
    for of_rank in rows:
        for row in of_rank:
            expected[row] -= RATE / SIZE
    choices: tuple[dict[str, Any], ...] = ({}, {"sparse_as_dense": True})
    for options in choices:
        for wrapped in ("optimizer", "tape"):
            table = tf.Variable(tf.ones([5, 2]))
            plain = keras.optimizers.SGD(RATE)
            optimizer = hvd.DistributedOptimizer(plain, **options) if wrapped == "optimizer" else plain
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(table, rows[RANK]))
            if wrapped == "tape":
                tape = hvd.DistributedGradientTape(tape, **options)
            gradient = tape.gradient(loss, table)
            if wrapped == "tape":
                assert isinstance(gradient, tf.Tensor if options else tf.IndexedSlices)
            optimizer.apply_gradients([(gradient, table)])
            np.testing.assert_allclose(table.numpy(), expected, rtol=1e-5)


def case_local_variables() -> None:
    for scales, factor in ((True, 1 / SIZE), (False, 1.0)):
        shared, local = tf.Variable(START), tf.Variable(START)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), scale_local_gradients=scales)
        optimizer.register_local_var(local)
        tape_source = tf.Variable(START)
        for step in range(STEPS):
            with tf.GradientTape(persistent=True) as tape:
                given = tf.constant(slope(RANK, step))
                loss = tf.reduce_sum((shared + local + tape_source) * given)
            gradients = tape.gradient(loss, [shared, local])
            optimizer.apply_gradients(zip(gradients, [shared, local], strict=True))
            distributed = hvd.DistributedGradientTape(tape, scale_local_gradients=scales)
            distributed.register_local_source(tape_source)
            found, averaged = distributed.gradient(loss, [tape_source, shared])
            tape_source.assign_sub(RATE * found)
            np.testing.assert_allclose(averaged, mean([slope(r, step) for r in range(SIZE)]), rtol=1e-4, atol=1e-6)
        expected = trained(lambda slopes: slopes[RANK] * factor)  # noqa: B023
        np.testing.assert_allclose(shared.numpy(), trained(mean), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(local.numpy(), expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(tape_source.numpy(), expected, rtol=1e-4, atol=1e-5)


def case_layers_of_a_rank_s_own() -> None:
    def layers() -> tuple[Any, Any]:
        made = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
        for one in made:
            one.build([None, 3])
        return made[0], made[1]

    given = tf.constant(slope(RANK, 0)[None])
    for wrapped in ("optimizer", "tape"):
        shared, local = layers()
        weights = [shared.kernel, local.kernel]
        optimizer = keras.optimizers.SGD(RATE)
        if wrapped == "optimizer":
            optimizer = hvd.PartialDistributedOptimizer(optimizer, local_layers=[local])
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared(given) + local(given))
        if wrapped == "tape":
            tape = hvd.PartialDistributedGradientTape(tape, local_layers=local)
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        expected = 1 - RATE * mean([slope(r, 0) for r in range(SIZE)])
        np.testing.assert_allclose(shared.kernel.numpy()[:, 0], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(local.kernel.numpy()[:, 0], 1 - RATE * slope(RANK, 0) / SIZE, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="no layer"):
        hvd.PartialDistributedOptimizer(keras.optimizers.SGD(RATE), local_layers=["dense"])


def case_the_tape_in_a_with() -> None:
    variable = tf.Variable(START)
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(variable * tf.constant(slope(RANK, 0)))
    assert isinstance(tape, tf.GradientTape)
    found = tape.gradient(loss, {"w": variable})
    np.testing.assert_allclose(found["w"], mean([slope(r, 0) for r in range(SIZE)]), rtol=1e-4, atol=1e-6)
    unconnected = hvd.DistributedGradientTape(tf.GradientTape(persistent=True))
    with unconnected:
        loss = variable[0] * float(RANK)
    other = tf.Variable(1.0)
    assert unconnected.gradient(loss, [other]) == [None]


def case_nothing_is_averaged_twice_or_by_itself() -> None:
    """A plain optimizer and a plain tape average nothing; the optimizer applies what a script has summed."""
    plain = tf.Variable(START)
    optimizer = keras.optimizers.SGD(RATE)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(plain * tf.constant(slope(RANK, 0)))
    optimizer.apply_gradients([(tape.gradient(loss, plain), plain)])
    np.testing.assert_allclose(plain.numpy(), START - RATE * slope(RANK, 0), rtol=1e-5)
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=START + RANK, use_resource=True)
        own = v1.train.GradientDescentOptimizer(RATE)
        pairs = own.compute_gradients(tf.reduce_sum(variable * slope(RANK, 0)), [variable])
        summed = [(hvd.allreduce(g, op=hvd.Sum), v) for g, v in pairs]
        train = own.apply_gradients(summed)
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(variable), START + RANK)  # this rank's own initial value
        session.run(train)
        expected = START + RANK - RATE * np.sum([slope(r, 0) for r in range(SIZE)], 0)
        np.testing.assert_allclose(session.run(variable), expected, rtol=1e-5)
    assert not inside.job().switches.automatic


def case_inside_a_loss_scale_optimizer() -> None:
    """Keras wraps the optimizer for half precision: if a rank overflows, no rank applies the update."""
    variable = tf.Variable(START)
    inner = hvd.DistributedOptimizer(keras.optimizers.SGD(RATE))
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)

    @tf.function
    def train(given: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(variable * given))
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])

    train(tf.constant(slope(RANK, 0)))
    train(tf.constant(slope(RANK, 1) if RANK else [np.inf, 0, 0], tf.float32))
    train(tf.constant(slope(RANK, 1)))
    np.testing.assert_allclose(variable.numpy(), trained(mean, 2), rtol=1e-4, atol=1e-5)


def case_wrong_arguments() -> None:
    sgd = keras.optimizers.SGD
    wrong = {
        "op=Min": {"op": hvd.Min},
        "gradient_predivide_factor": {"gradient_predivide_factor": 2.0, "op": hvd.Sum},
        "backward_passes_per_step": {"backward_passes_per_step": 0},
        "average_aggregated": {"op": hvd.Adasum, "average_aggregated_gradients": True},
        "Adasum": {"op": hvd.Adasum},
    }
    for words, options in wrong.items():
        with pytest.raises(ValueError, match=words):
            hvd.DistributedOptimizer(sgd(RATE), **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no optimizer"):
        hvd.DistributedOptimizer("sgd")
    with pytest.raises(ValueError, match="already"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(sgd(RATE)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="unknown"):
        hvd.DistributedOptimizer(sgd(RATE), process_set=hvd.ProcessSet([0]))
    hvd.DistributedOptimizer(sgd(RATE), groups=[[tf.Variable(1.0)]], name="n", device_dense="/cpu:0")


def case_join() -> None:
    """Rank r has r + 2 steps: gradients are averaged over those that still train."""
    state.reduced_by.clear()  # left by other cases
    for traced in (True, False):
        variable = tf.Variable(START)
        optimizer = keras.optimizers.SGD(RATE)

        def train(given: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable * given)  # noqa: B023
            tape = hvd.DistributedGradientTape(tape)
            pairs = zip(tape.gradient(loss, [variable]), [variable], strict=True)  # noqa: B023
            optimizer.apply_gradients(pairs)  # noqa: B023

        run = tf.function(train) if traced else train
        for step in range(RANK + 2):
            run(tf.constant(slope(RANK, step)))
        assert int(hvd.join()) == SIZE - 1
        value = START.astype(np.float64)
        for step in range(RANK + 2):
            value -= RATE * np.mean([slope(r, step) for r in range(SIZE) if step < r + 2], 0)
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-4, atol=1e-5)
        hvd.broadcast_variables([variable], int(SIZE - 1))
    hvd.DistributedOptimizer(keras.optimizers.SGD(RATE), op=hvd.Sum)
    with pytest.raises(RuntimeError, match="Sum"):
        hvd.join()
    state.reduced_by.clear()


def case_several_passes_with_local_variables() -> None:
    """Gradients of local variables are added up too, also on a rank outside the process set."""
    choices: list[dict[str, Any]] = [{}]
    if SIZE > 1:
        choices.append({"process_set": hvd.add_process_set([0])})
    for options in choices:
        for traced in (True, False):
            local, shared = tf.Variable(0.0), tf.Variable(0.0)
            optimizer = hvd.DistributedOptimizer(
                keras.optimizers.SGD(1.0), backward_passes_per_step=2, scale_local_gradients=False, **options
            )
            optimizer.register_local_var(local)

            def train(x: tf.Tensor) -> None:
                optimizer.apply_gradients([(x, local), (x, shared)])  # noqa: B023

            run = tf.function(train) if traced else train
            for step in range(4):
                run(tf.constant(10.0**step * (RANK + 1)))
            assert float(local) == -1111 * (RANK + 1), (traced, float(local))
            wanted = -1111 * (RANK + 1) if options else -1111 * (SIZE + 1) / 2
            np.testing.assert_allclose(float(shared), wanted, rtol=1e-5)
    for one in choices[1:]:
        removed = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **one)
        hvd.remove_process_set(one["process_set"])
        with pytest.raises(tf.errors.InvalidArgumentError, match="unknown"):
            removed.apply_gradients([(tf.constant(1.0), tf.Variable(1.0))])
