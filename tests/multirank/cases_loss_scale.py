"""Mixed precision: products are in half precision, losses are scaled, and all ranks leave out overflowing updates.

Scales that are powers of two change nothing in float32. So the ranks train what one process trains without a loss
scale from the batches that do not overflow.
"""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_accumulation import (
    FUNCTION_OPTIMIZERS,
    MORE_FUNCTION_OPTIMIZERS,
    Run,
    Variables,
    clipped,
    dataset,
    fitted,
    in_functions,
    pieces,
    session,
)
from tests.multirank.cases_keras import functional
from tests.multirank.cases_programs import refusal, through_checkpoint
from tests.multirank.inside import autocast_computes, captured_log, everywhere, nobody_has_told_of_products, settings
from tests.multirank.oracle import BATCH, Feed, assert_close, data, mine, one_process, v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()
UPDATES, BAD = 6, (1, 4)  # batches that overflow


def spoiled(feeds: list[Feed]) -> list[Feed]:
    """Make two of the batches overflow, each on one rank only."""
    own = [mine(feed) for feed in feeds]
    for k, rank in zip(BAD, (0, SIZE - 1), strict=True):
        if rank == RANK:
            own[k]["x"][0, 0] = np.inf if k == BAD[0] else np.nan
    return own


def assert_left_out(run: Run, scale: str = "backoff", accumulated: int = 1) -> None:
    """Check that training with overflowing batches equals one process that trains without these batches."""
    rows = BATCH // (SIZE * accumulated) * SIZE * accumulated
    feeds = [{n: v[:rows] for n, v in feed.items()} for feed in data(steps=UPDATES)]
    expected, with_them = one_process(lambda: (run([f for k, f in enumerate(feeds) if k not in BAD]), run(feeds)))
    with settings():
        tfdist.configure(loss_scale=scale, accumulate_steps=accumulated)
        found = run(spoiled(feeds))
        with subtest(scale, run):
            kept = {n: v for n, v in found.items() if "loss_scale" not in n}
            assert_close(kept, expected, 1e-5)
            assert any(np.abs(with_them[n] - v).max() > 1e-3 for n, v in expected.items())
            assert all(np.array_equal(other[n], v) for other in everywhere(found) for n, v in found.items())


def eager(feeds: list[Feed]) -> Variables:
    w, optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.SGD(0.1, momentum=0.9)
    for feed in feeds:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.constant(feed["x"]) @ w - feed["y"]) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    return {"w": w.numpy(), "iterations": optimizer.iterations.numpy()}


def momentum() -> Any:
    return v1.train.MomentumOptimizer(0.1, 0.9)


SCALES = "1024", "backoff", "window", "logmax"


def case_an_overflow_is_left_out_in_sessions() -> None:
    """Slots, the global step and moving averages stay unchanged too; resource and reference variables."""
    for scale in SCALES:
        assert_left_out(session(functools.partial(clipped, momentum)), scale)
    assert_left_out(session(functools.partial(clipped, lambda: v1.train.AdamOptimizer(0.05, epsilon=1e-3))))
    assert_left_out(session(functools.partial(clipped, momentum, use_resource=False)))


def case_an_overflow_is_left_out_in_functions() -> None:
    for scale in SCALES:
        assert_left_out(in_functions(FUNCTION_OPTIMIZERS["keras adamw"]), scale)
    assert_left_out(in_functions(FUNCTION_OPTIMIZERS["v1 momentum"]))
    assert_left_out(in_functions(MORE_FUNCTION_OPTIMIZERS["keras sgd"]))
    assert_left_out(eager)


def case_an_overflow_among_accumulated_steps() -> None:
    """An overflow in one accumulated step leaves out the update of all of them."""

    for train in (session(functools.partial(clipped, momentum)), in_functions(FUNCTION_OPTIMIZERS["keras adamw"])):
        feeds = data(steps=UPDATES)
        expected = one_process(functools.partial(train, [f for k, f in enumerate(feeds) if k not in BAD]))
        own = pieces(feeds, 2)
        if RANK == SIZE - 1:
            for k in BAD:
                own[2 * k + 1]["x"][0, 0] = np.inf
        with settings():
            tfdist.configure(loss_scale="backoff", accumulate_steps=2)
            found = train(own)
        assert_close({n: v for n, v in found.items() if "loss_scale" not in n}, expected, 1e-5)


def case_an_overflow_that_is_clipped_is_left_out() -> None:
    """Clipping by value would make an overflow finite."""

    def in_session(factors: list[float]) -> np.ndarray:
        with tf.Graph().as_default(), v1.Session() as session:
            w, factor = v1.get_variable("w", initializer=np.ones(3, np.float32)), v1.placeholder(tf.float32, [])
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            pairs = optimizer.compute_gradients(tf.reduce_sum(w) * factor)
            update = optimizer.apply_gradients([(tf.clip_by_value(g, -1.0, 1.0), v) for g, v in pairs])
            session.run(v1.global_variables_initializer())
            for value in factors:
                session.run(update, {factor: value})
            return np.array(session.run(w))

    def in_function(factors: list[float]) -> np.ndarray:
        w, optimizer = tf.Variable(tf.ones([3])), keras.optimizers.SGD(0.1)

        @tf.function
        def step(factor: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.recompute_grad(lambda x: x * factor)(w))
            optimizer.apply([tf.clip_by_value(tape.gradient(loss, w), -1.0, 1.0)], [w])

        for value in factors:
            step(tf.constant(value, tf.float32))
        return w.numpy()

    with settings():
        tfdist.configure(loss_scale="backoff")
        for run in (in_session, in_function):
            with subtest(run):
                found = run([0.5, np.inf if RANK == SIZE - 1 else 0.5, 0.5])
                np.testing.assert_allclose(found, np.full(3, 0.9), rtol=1e-6)


def case_gradients_that_always_overflow_end_training() -> None:
    w, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(0.1)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * (np.nan if RANK == SIZE - 1 else 1.0)
        optimizer.apply([tape.gradient(loss, w)], [w])

    def until_it_ends() -> None:
        for _ in range(150):
            step()

    with settings():
        tfdist.configure(loss_scale="backoff")
        told = refusal(until_it_ends)
    assert "100 updates in succession overflowed" in told and "lower the learning rate" in told, told


def case_an_overflow_in_fit() -> None:
    random = np.random.RandomState(5)
    x = random.randn(UPDATES, SIZE, 6, 5).astype(np.float32)
    y = random.randn(UPDATES, SIZE, 6, 3).astype(np.float32)
    good = [k for k in range(UPDATES) if k not in BAD]

    def whole(trained: Any) -> None:
        whole = dataset(x[good].reshape(-1, SIZE * 6, 5), y[good].reshape(-1, SIZE * 6, 3))
        trained.fit(whole.apply(tf.data.experimental.assert_cardinality(len(good))), verbose=0)

    def own(trained: Any) -> None:
        mine = x[:, RANK].copy()
        mine[BAD[RANK % 2], 0, 0] = np.inf
        if SIZE == 1:
            mine[BAD[1], 0, 0] = np.inf
        own = dataset(mine, y[:, RANK]).apply(tf.data.experimental.assert_cardinality(UPDATES))
        trained.fit(own, verbose=0)

    expected = one_process(lambda: fitted(functional, whole))
    with settings():
        tfdist.configure(loss_scale="backoff")
        assert_close(fitted(functional, own), expected, 1e-5)


def case_small_gradients_survive() -> None:
    """A gradient that underflows to 0 in float16 does not if the loss is scaled."""
    x = np.array([[1.0, 2.0, 4.0]], np.float32) * (RANK + 1)
    mean = (SIZE + 1) / 2 * np.array([[1.0], [2.0], [4.0]])

    def gradient() -> Any:
        w, optimizer = tf.Variable(tf.ones([3, 1])), keras.optimizers.SGD(0.0)

        @tf.function
        def step() -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(x @ w) * 2.0**-26
            gradient = tape.gradient(loss, w)
            optimizer.apply([gradient], [w])
            return gradient

        return step().numpy() * 2.0**26

    with settings():
        tfdist.configure(mixed_precision="fp16")
        np.testing.assert_array_equal(gradient(), np.zeros((3, 1)))
        tfdist.configure(loss_scale="1024")
        np.testing.assert_allclose(gradient(), mean, rtol=1e-3)


def half(values: Any, dtype: str) -> np.ndarray:
    return tf.cast(tf.cast(values, {"fp16": tf.float16, "bf16": tf.bfloat16}[dtype]), tf.float32).numpy()


def case_products_are_in_half_precision() -> None:
    """Forward and backward products are in half precision; variables, averages and the rest are in float32."""
    (feed,) = data(steps=1)
    start = np.random.RandomState(1).randn(5, 3).astype(np.float32)

    def in_session(own: Feed) -> np.ndarray:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", initializer=start)
            loss = tf.reduce_mean((tf.constant(own["x"]) @ w - own["y"]) ** 2)
            update = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
            session.run(v1.global_variables_initializer())
            session.run(update)
            return start - session.run(w)

    def in_function(own: Feed) -> np.ndarray:
        w = tf.Variable(start)
        step = tf.function(lambda: eagerly(own, w))
        step()
        return start - w.numpy()

    def eagerly(own: Feed, w: Any = None) -> np.ndarray:
        made = tf.Variable(start) if w is None else w
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.einsum("ij,jk->ik", tf.constant(own["x"]), made) - own["y"]) ** 2)
        v1.train.GradientDescentOptimizer(1.0).apply_gradients([(tape.gradient(loss, made), made)])
        return start - made.numpy() if w is None else start

    for dtype in ("fp16", "bf16"):
        rounded = functools.partial(half, dtype=dtype)
        gradients = []
        for rank in range(SIZE):
            x, y = feed["x"][rank::SIZE], feed["y"][rank::SIZE]
            output = rounded(rounded(x) @ rounded(start))
            gradients.append(rounded(rounded(x).T @ rounded(2 * (output - y) / output.size)))
        expected = np.mean(gradients, 0)
        exact = feed["x"].T @ (2 * (feed["x"] @ start - feed["y"]) / feed["y"].size)
        assert np.abs(expected - exact).max() > 1e-5
        # For devices that compute such products, and for others; the first may round differently.
        for computed, tolerance in ((False, 3e-6), (True, 0.02 * np.abs(expected).max())):
            with settings(), autocast_computes(computed):
                tfdist.configure(mixed_precision=dtype)
                for run in (in_session, in_function, eagerly):
                    with subtest(dtype, computed, run):
                        np.testing.assert_allclose(run(mine(feed)), expected, rtol=0, atol=tolerance)


def case_processors_that_differ_are_told() -> None:
    """If ranks differ, rank 0 logs it once. If no rank computes such products, rank 0 logs that instead."""
    (feed,) = data(steps=1)

    def trained(computed: bool) -> list[str]:
        nobody_has_told_of_products()
        with settings(), autocast_computes(computed), captured_log() as lines:
            tfdist.configure(mixed_precision="bf16")
            for width in (13, 14):  # two exchanges that no other case has opened
                layer = tf.Variable(np.ones([5, width], np.float32))
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.constant(mine(feed)["x"]) @ layer)
                v1.train.GradientDescentOptimizer(1.0).apply_gradients([(tape.gradient(loss, layer), layer)])
        return [line for line in lines if "TFDIST_MIXED_PRECISION" in line]

    differing, alike = trained(RANK != SIZE - 1), trained(False)
    assert len(differing) == len(alike) == (RANK == 0)
    for line in differing:
        assert line.startswith(f"1 of {SIZE} ranks ({SIZE - 1}) run on processors") and "others wait for them" in line
    for line in alike:
        assert "computes no products of bfloat16" in line


def case_a_checkpoint_has_the_scale() -> None:
    """Checkpoints of TensorFlow 1, of Keras 3, and of ``tf.train.Checkpoint``."""
    folder = Path(tfdist.broadcast(mkdtemp()))
    x = np.ones([4, 2], np.float32)

    def in_session(path: str, bad: bool) -> np.ndarray:
        with tf.Graph().as_default(), v1.Session() as session:
            w, factor = v1.get_variable("w", [2]), v1.placeholder(tf.float32, [])
            update = v1.train.AdamOptimizer().minimize(tf.reduce_sum(w) * factor)
            saver, (state,) = v1.train.Saver(), [v for v in v1.global_variables() if "loss_scale" in v.name]
            session.run(v1.global_variables_initializer())
            if bad:
                session.run(update, {factor: np.inf})
                if RANK == 0:
                    saver.save(session, path)
                tfdist.barrier()
            else:
                saver.restore(session, path)
                session.run(update, {factor: 1.0})
            return np.array(session.run(state))

    def in_keras(path: str, bad: bool) -> np.ndarray:
        keras.utils.clear_session()
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(), "mse")
        if not bad:
            model = keras.saving.load_model(f"{path}.keras")
        model.fit(x * (np.inf if bad else 1), x[:, :1], verbose=0)
        if bad:
            if RANK == 0:
                model.save(f"{path}.keras")
            tfdist.barrier()
        (state,) = (v for v in model.optimizer.variables if "loss_scale" in v.path)
        return np.array(state)

    def in_a_checkpoint(path: str, bad: bool) -> np.ndarray:
        w, optimizer = tf.Variable([1.0, 2.0]), keras.optimizers.Adam()
        optimizer.build([w])
        saved = tf.train.Checkpoint(w=w, optimizer=optimizer)
        if not bad:
            saved.restore(f"{path}-1").assert_consumed()

        @tf.function
        def step(factor: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w) * factor
            optimizer.apply([tape.gradient(loss, w)], [w])

        step(tf.constant(np.inf if bad else 1.0, tf.float32))
        if bad:
            saved.save(path) if RANK == 0 else None
            tfdist.barrier()
        (state,) = (v for v in optimizer.variables if "loss_scale" in v.path)
        return np.array(state)

    with settings():
        tfdist.configure(loss_scale="backoff")
        for run in (in_session, in_keras, in_a_checkpoint):
            with subtest(run):
                with captured_log() as lines:
                    saved = run(str(folder / run.__name__), True)
                told = [line for line in lines if "update 1 was left out" in line and "8192 now" in line]
                assert run is not in_session or len(told) == (RANK == 0), lines  # the others' may have seen more
                restored = run(str(folder / run.__name__), False)
                assert saved[0] < 2.0**14 and saved[3] >= 1, saved
                assert restored[0] == saved[0] and restored[2] == saved[2] + 1 and restored[1] == 1, (saved, restored)


def case_another_scale_begins_anew() -> None:
    """Each kind of loss scale has its own state. It is in checkpoints, and all optimizers of a process share it."""
    w, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(0.1)

    def step(slope: float) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * slope
        optimizer.apply([tape.gradient(loss, w)], [w])

    with settings(), captured_log() as lines:
        for scale in ("backoff", "window", "512", "logmax"):
            tfdist.configure(loss_scale=scale)
            step(np.inf if RANK == SIZE - 1 else 1.0)
            step(1.0)
    told = [line for line in lines if "begins anew" in line]
    wanted = ["is window now: it begins anew, with 128", "is 512 now: it begins anew", "it was 512 so far"]
    for words in wanted if RANK == 0 else ():
        assert any(words in line for line in told), (words, lines)
    np.testing.assert_allclose(w.numpy(), 1 - 4 * 0.1, rtol=1e-6)


def case_no_scale_is_small_enough() -> None:
    w, optimizer = tf.Variable([1.0]), keras.optimizers.SGD(0.1)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * (np.inf if RANK == SIZE - 1 else 1.0)
        optimizer.apply([tape.gradient(loss, w)], [w])

    def until_it_ends() -> None:
        for _ in range(40):
            step()

    with settings():
        tfdist.configure(loss_scale="window")
        told = refusal(until_it_ends)
    assert "gradients overflow with a loss scale of" in told and "Lower the learning rate" in told, told
    assert w.numpy() == 1.0


def case_a_checkpoint_from_before() -> None:
    path = str(Path(tfdist.broadcast(mkdtemp()), "w"))

    def in_session(restores: bool, trains: bool = True) -> None:
        through_checkpoint(path, restores, v1.train.AdamOptimizer if trains else None)

    in_session(False)
    with settings():
        tfdist.configure(loss_scale="backoff")
        told = refusal(lambda: in_session(True))
        assert "NotFoundError" in told, told
        assert "with TFDIST_LOSS_SCALE 'none', or by one process; it is 'backoff' now" in told, told
        in_session(False)
        with captured_log() as lines:
            tfdist.configure(loss_scale="window")  # another kind: its state starts from the beginning
            in_session(True)
            tfdist.configure(loss_scale="none")
            in_session(True, trains=False)
            assert not [line for line in lines if "was written" in line], lines
            in_session(True)
        kept = [line for line in lines if "was written with TFDIST_LOSS_SCALE 'backoff', which is 'none' now" in line]
        assert len(kept) == (RANK == 0), lines


def case_what_contradicts_a_loss_scale() -> None:
    w = tf.Variable([1.0])

    def apply() -> None:
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_sum(w))
        optimizer.apply([tape.gradient(loss, w)], [w])

    with settings():
        tfdist.configure(loss_scale="logmax")
        told = refusal(tf.function(apply))
        assert "loss_scale=logmax" in told and "LossScaleOptimizer" in told, told
        told = refusal(lambda: tfdist.configure(sync="average", block_steps=4))
        assert "TFDIST_LOSS_SCALE is 'logmax'" in told and "TFDIST_SYNC is 'average'" in told, told
