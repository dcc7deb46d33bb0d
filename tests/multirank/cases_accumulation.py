"""Accumulation: k steps on N ranks with batch B each are one step of one process with batch k N B."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_keras import Subclassed, functional
from tests.multirank.cases_programs import Model, refusal
from tests.multirank.cases_toy_reducer import Clipped
from tests.multirank.inside import everywhere, settings
from tests.multirank.oracle import (
    BATCH,
    Feed,
    assert_close,
    data,
    merged,
    mine,
    model,
    one_process,
    placeholders,
    train,
    v1,
)
from tests.named import subtest

STEPS = 3
UPDATES = 4
RANK, SIZE = tfdist.rank(), tfdist.size()
Variables = dict[str, np.ndarray]
Run = Callable[[list[Feed]], Variables]


@contextlib.contextmanager
def accumulating(steps: int = STEPS, **others: Any) -> Iterator[None]:
    """Accumulate this number of steps into one update while the context is open."""
    with settings():
        tfdist.configure(accumulate_steps=steps, **others)
        try:
            yield
        finally:
            tfdist.configure(accumulate_steps=1)


def pieces(feeds: list[Feed], steps: int = STEPS) -> list[Feed]:
    """Return this rank's rows, each batch divided into one smaller batch for each accumulated step."""
    return [{n: v[k::steps] for n, v in mine(feed).items()} for feed in feeds for k in range(steps)]


def even(steps: int = STEPS) -> list[Feed]:
    """Return batches that can be divided equally among the accumulated steps of all ranks."""
    rows = BATCH // (SIZE * steps) * SIZE * steps
    return [{n: v[:rows] for n, v in feed.items()} for feed in data(steps=UPDATES)]


def assert_steps_are_one(run: Run, steps: int = STEPS, tolerance: float = 1e-5) -> None:
    """Check that ranks with accumulated steps train as one process with whole batches; other batches must differ.

    Args:
      run: function that trains with batches and returns the variables.
      steps: number of steps that make one update.
      tolerance: allowed difference, relative to the greatest entry of a variable.
    """
    feeds = even(steps)
    expected, others = one_process(lambda: (run(feeds), run([{n: v[:6] for n, v in f.items()} for f in feeds])))
    assert any(np.abs(others[n] - v).max() > 3 * tolerance * np.abs(v).max() for n, v in expected.items())
    found = run(pieces(feeds, steps))
    assert_close(found, expected, tolerance)
    assert all(np.array_equal(other[n], v) for other in everywhere(found) for n, v in found.items())


def session(build: Callable[[], Any]) -> Run:
    return functools.partial(train, build, seed=0)


def clipped(make: Callable[[], Any], merging: Callable[[Any], Any] = merged, **options: Any) -> Any:
    """Return a clipped step with a global step and moving averages; for other variable options the step alone."""
    loss, variables = model(**options)
    gradients, _ = tf.clip_by_global_norm([merging(g) for g in tf.gradients(loss, variables)], 0.3)
    count = v1.train.get_or_create_global_step()
    step = make().apply_gradients(zip(gradients, variables, strict=True), global_step=count, name="train")
    assert step.name == "train"
    if options:
        return step  # TensorFlow does not find initial values of reference variables for their averages
    with tf.control_dependencies([step]):
        return tf.train.ExponentialMovingAverage(0.7).apply(variables)


SESSION_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.05, epsilon=1e-3),
}


def case_sessions() -> None:
    with accumulating():
        assert_steps_are_one(session(functools.partial(clipped, SESSION_OPTIMIZERS["momentum"])))
    with accumulating(2, bucket_mb=1e-5):  # a bucket for each tensor
        assert_steps_are_one(session(functools.partial(clipped, SESSION_OPTIMIZERS["adam"])), 2)
    with accumulating(compression="bf16"):
        assert_steps_are_one(session(functools.partial(clipped, SESSION_OPTIMIZERS["momentum"])), tolerance=2e-2)


def case_sessions_with_reference_variables() -> None:
    with accumulating():
        make = SESSION_OPTIMIZERS["adam"]
        assert_steps_are_one(session(functools.partial(clipped, make, use_resource=False)))


def case_steps_inside_a_condition() -> None:
    """The script has its whole step, or only the application of gradients, in a condition."""

    def build(inside: bool) -> Any:
        inputs, optimizer = placeholders(), v1.train.MomentumOptimizer(0.1, 0.9)
        w, b = v1.get_variable("w", [5, 3]), v1.get_variable("b", [3])

        def pairs() -> Any:
            return optimizer.compute_gradients(tf.reduce_mean((tf.tanh(inputs["x"] @ w + b) - inputs["y"]) ** 2))

        count, made = v1.train.get_or_create_global_step(), None if inside else pairs()
        return tf.cond(
            v1.placeholder_with_default(True, []),
            lambda: tf.group(optimizer.apply_gradients(made or pairs(), global_step=count)),
            tf.group,
        )

    with accumulating():
        for inside in (True, False):
            with subtest(inside):
                assert_steps_are_one(session(functools.partial(build, inside)))


def case_rows_that_stay_unmerged() -> None:
    """RMSProp and the gradients' norm see the unmerged rows of all steps and ranks, as in one process."""
    make = functools.partial(v1.train.RMSPropOptimizer, 0.05, momentum=0.5, epsilon=1e-2)
    with accumulating(sparse="unmerged"):
        assert_steps_are_one(session(functools.partial(clipped, make, lambda g: g)))


def case_a_monitored_session_counts_updates() -> None:
    feeds = pieces(data(steps=UPDATES))
    with accumulating(), tf.Graph().as_default():
        loss, _ = model()
        count = v1.train.get_or_create_global_step()
        step = v1.train.AdamOptimizer(0.01).minimize(loss, global_step=count)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [step]
        runs = 0
        with v1.train.MonitoredTrainingSession(hooks=[v1.train.StopAtStepHook(UPDATES)]) as monitored:
            while not monitored.should_stop():
                monitored.run(step, {f"{n}:0": v for n, v in feeds[runs].items()})
                runs += 1
        assert runs == UPDATES * STEPS, runs


def case_two_optimizers_in_turn() -> None:
    """Each optimizer counts its own steps."""

    def run(feeds: list[Feed], steps: int) -> Variables:
        with tf.Graph().as_default():
            v1.set_random_seed(0)
            inputs = placeholders()
            w, b = v1.get_variable("w", [5, 3]), v1.get_variable("b", [3])
            loss = tf.reduce_mean((tf.tanh(inputs["x"] @ w + b) - inputs["y"]) ** 2)
            first = v1.train.MomentumOptimizer(0.1, 0.9).minimize(loss, var_list=[w])
            second = v1.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss, var_list=[b])
            with v1.Session() as session:
                session.run(v1.global_variables_initializer())
                for start in range(0, len(feeds), steps):
                    for step in (first, second):
                        for feed in feeds[start : start + steps]:
                            session.run(step, {f"{n}:0": v for n, v in feed.items()})
                return {"w": session.run(w), "b": session.run(b)}

    expected = one_process(lambda: run(even(), 1))
    with accumulating():
        assert_close(run(pieces(even()), STEPS), expected, 1e-5)


def in_functions(make: Callable[[], Any]) -> Run:
    """Train with a tape in a function, which is traced again for other batches; the gradients are clipped."""

    def run(feeds: list[Feed]) -> Variables:
        tf.random.set_seed(0)
        tiny, optimizer = Model(), make()
        variables = [tiny.made[n] for n in sorted(tiny.made)]

        @tf.function
        def step(feed: Feed) -> None:
            with tf.GradientTape() as tape:
                loss = tiny.loss(feed)
                scaled = optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
            gradients = [merged(g) for g in tape.gradient(scaled, variables)]
            gradients, _ = tf.clip_by_global_norm(gradients, 0.2 * tf.stop_gradient(scaled / loss))
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        for feed in feeds:
            step({n: tf.constant(v) for n, v in feed.items()})
        iterations = getattr(optimizer, "iterations", None)
        return tiny.values() | ({} if iterations is None else {"iterations": np.array(iterations)})

    return run


FUNCTION_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "v1 momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "keras adamw": lambda: keras.optimizers.AdamW(0.05, epsilon=1e-3, weight_decay=0.1, use_ema=True),
}
MORE_FUNCTION_OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "keras sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
}


def case_functions() -> None:
    with accumulating():
        for name, make in FUNCTION_OPTIMIZERS.items():
            with subtest(name):
                assert_steps_are_one(in_functions(make))


def case_models_of_the_same_names_are_kept_apart() -> None:
    """Functions share the exchanges of variables with equal names, but not the accumulated sums."""

    def run(feeds: list[Feed]) -> Variables:
        trained = []
        for rate in (0.1, 0.3):
            tiny, optimizer = Model(), v1.train.GradientDescentOptimizer(rate)
            tiny.made["w"].assign(tf.ones([5, 3]))
            tiny.made["e"].assign(tf.ones([7, 3]))
            tiny.made["b"].assign(tf.ones([3]))

            @tf.function
            def step(feed: Feed, tiny: Model = tiny, optimizer: Any = optimizer) -> None:
                with tf.GradientTape() as tape:
                    loss = tiny.loss(feed)
                gradients = tape.gradient(loss, list(tiny.made.values()))
                optimizer.apply_gradients(list(zip(gradients, tiny.made.values(), strict=True)))

            trained.append((tiny, step))
        for feed in feeds:
            for _, step in trained:
                step({n: tf.constant(v) for n, v in feed.items()})
        return {f"{n} {k}": v for k, (tiny, _) in enumerate(trained) for n, v in tiny.values().items()}

    with accumulating(2):
        assert_steps_are_one(run, 2)


def trained_in_session(feeds: list[Feed], last: Sequence[int] = ()) -> Variables:
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(0)
        step = v1.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(model()[0])
        session.run(v1.global_variables_initializer())
        for k, feed in enumerate(feeds):
            with tfdist.last_step() if k in last else contextlib.nullcontext():
                session.run(step, {f"{n}:0": v for n, v in feed.items()})
        return dict(zip("wbse", session.run(v1.trainable_variables()), strict=True))


def trained_in_function(feeds: list[Feed], last: Sequence[int] = ()) -> Variables:
    w, optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.Adam(0.05, epsilon=1e-3)

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    for k, feed in enumerate(feeds):
        with tfdist.last_step() if k in last else contextlib.nullcontext():
            step(feed["x"], feed["y"])
    return {"w": w.numpy()}


def case_the_last_step_of_a_script() -> None:
    """The last step applies the accumulated gradients: of two steps, or of one, where an update has three."""
    (feed,) = data(steps=1)
    updates = [{n: v[part] for n, v in feed.items()} for part in (slice(0, 36), slice(36, 60), slice(60, 72))]
    steps = [mine({n: v[k : k + 12] for n, v in feed.items()}) for k in range(0, 72, 12)]
    for run in (trained_in_session, trained_in_function):
        with subtest(run):
            expected = one_process(functools.partial(run, updates))
            with accumulating():
                assert_close(run(steps, last=(4, 5)), expected, 1e-5)


def batches(epoch_steps: int, rows: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Return the data of all ranks in each step of an epoch: x [steps, ranks, rows, 5], y [steps, ranks, rows, 3]."""
    random = np.random.RandomState(5)
    shape = epoch_steps, SIZE, rows
    return random.randn(*shape, 5).astype(np.float32), random.randn(*shape, 3).astype(np.float32)


def dataset(x: Any, y: Any) -> Any:
    """Return a dataset of batches of any sizes, with unknown cardinality."""
    spec = (tf.TensorSpec([None, 5]), tf.TensorSpec([None, 3]))
    return tf.data.Dataset.from_generator(lambda: zip(x, y, strict=True), output_signature=spec)


def fitted(build: Callable[[], Any], fit: Callable[[Any], Any], **options: Any) -> Variables:
    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    trained = build()
    trained.compile(keras.optimizers.Adam(0.05, epsilon=1e-3, clipnorm=0.1), "mse", **options)
    fit(trained)
    weights = [*trained.get_weights(), trained.optimizer.iterations]
    return {f"{k}": np.asarray(w, np.float64) for k, w in enumerate(weights)}


def assert_fits(epoch_steps: int, known: bool, build: Callable[[], Any] = functional, **options: Any) -> None:
    """Check two epochs of this number of steps; the last update has the remaining steps."""
    x, y = batches(epoch_steps)
    cut = [slice(k, min(k + STEPS, epoch_steps)) for k in range(0, epoch_steps, STEPS)]

    def whole(trained: Any) -> None:
        whole = dataset([x[c].reshape(-1, 5) for c in cut], [y[c].reshape(-1, 3) for c in cut])
        # (Where Keras does not know the number of steps, it counts one iteration more.)
        trained.fit(whole.apply(tf.data.experimental.assert_cardinality(len(cut))), epochs=2, verbose=0)

    def mine(trained: Any) -> None:
        own = x[:, RANK], y[:, RANK]
        if known:
            flat = own[0].reshape(-1, 5), own[1].reshape(-1, 3)
            trained.fit(*flat, batch_size=x.shape[2], shuffle=False, epochs=2, verbose=0)
        else:
            trained.fit(dataset(*own), epochs=2, verbose=0)

    expected = one_process(lambda: fitted(build, whole))
    with accumulating():
        found = fitted(build, mine, **options)
    assert_close(found, expected, 1e-5)


def case_fit_and_what_an_epoch_leaves_over() -> None:
    """The number of steps in an epoch is known, or is unknown until the data end."""
    assert_fits(7, known=True, steps_per_execution=2)
    assert_fits(8, known=False, build=Subclassed)


def case_variations_of_accumulated_steps() -> None:
    """More variations of the same mechanisms."""
    assert_fits(8, known=True)
    assert_fits(7, known=False, steps_per_execution=2)
    with accumulating():
        for name, make in MORE_FUNCTION_OPTIMIZERS.items():
            with subtest(name):
                assert_steps_are_one(in_functions(make))
        assert_steps_are_one(session(functools.partial(clipped, SESSION_OPTIMIZERS["adam"])))


def case_what_cannot_be_accumulated_is_refused() -> None:
    with accumulating():
        v = tf.Variable(tf.ones([2]), name="refused")
        w = tf.Variable(tf.ones([2]), name="argument")

    def gradient(variable: Any = v) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable**2) * (RANK + 1.0)
        return tape.gradient(loss, variable)

    def apply(make: Callable[[], Any], variable: Any = v) -> Any:
        optimizer = make()
        return lambda: optimizer.apply_gradients([(gradient(variable), variable)])

    def sgd() -> Any:
        return keras.optimizers.SGD(0.1)

    def of_argument(variable: Any) -> None:
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(gradient(variable), variable)])

    refused: dict[str, tuple[Callable[[], Any], Sequence[str]]] = {
        "eager": (apply(sgd), ("accumulate_steps=3", "tf.function")),
        "eagerly applied": (lambda: sgd().apply([tf.ones([2])], [v]), ("accumulate_steps=3", "eagerly")),
        "without an optimizer": (
            tf.function(lambda: v.assign_sub(gradient())),
            ("accumulate_steps=3", "refused", "optimizer"),
        ),
        "leaving a function": (tf.function(gradient), ("accumulate_steps=3", "refused")),
        "twice": (
            tf.function(apply(lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))),
            ("accumulate_steps=3", "gradient_accumulation_steps=4"),
        ),
        "twice, behind others": (
            tf.function(
                apply(
                    lambda: keras.optimizers.LossScaleOptimizer(
                        tfdist.larc(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4))
                    )
                )
            ),
            ("accumulate_steps=3", "SGD has gradient_accumulation_steps=4"),
        ),
    }
    with accumulating():
        for name, (call, words) in refused.items():
            with subtest(name):
                told = refusal(call)
                assert all(word in told for word in words), told
        traced = tf.function(of_argument)
        traced(v)
        traced(v)
        for call in (traced, tf.function(lambda variable: traced(variable))):
            told = refusal(functools.partial(call, w))
            assert "accumulate_steps" in told and "argument" in told, told
        with settings(reducer=Clipped(1.0)):
            tfdist.configure(accumulate_steps=STEPS)
            told = refusal(tf.function(apply(sgd)))
            assert "Clipped" in told and "accumulate_steps=3" in told, told
        if SIZE > 1:
            assert "accumulate_steps=3" in refusal(tfdist.join)
    np.testing.assert_array_equal(v.numpy(), np.ones(2))


def case_a_write_in_a_session_is_refused() -> None:
    with accumulating(), tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [2])
        step = w.assign_sub(tf.gradients(tf.reduce_sum(w**2), w)[0])
        told = refusal(lambda: session.run(step))
        assert "accumulate_steps=3" in told and "gradients of w" in told, told


def case_what_would_not_see_updates_is_refused() -> None:
    """Moving averages built before the optimizer, and gradients from a condition of TensorFlow 1, are refused."""
    with accumulating():
        with tf.Graph().as_default():
            w = v1.get_variable("w", [2])
            tf.train.ExponentialMovingAverage(0.9).apply([w])
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            told = refusal(lambda: optimizer.minimize(tf.reduce_sum(w**2)))
            assert "accumulate_steps=3" in told and "moving averages" in told, told
        v1.disable_control_flow_v2()
        try:
            with tf.Graph().as_default():
                w = v1.get_variable("w", [2])
                condition = v1.placeholder_with_default(True, [])
                g = tf.cond(condition, lambda: tf.gradients(tf.reduce_sum(w**2), w)[0], lambda: tf.zeros([2]))
                told = refusal(lambda: v1.train.GradientDescentOptimizer(0.1).apply_gradients([(g, w)]))
                assert "inside a condition" in told and "TFDIST_ACCUMULATE_STEPS" in told, told
        finally:
            v1.enable_control_flow_v2()


def case_other_numbers_of_steps_are_told() -> None:
    with settings():
        tfdist.configure(accumulate_steps=2 + RANK)
        w, optimizer = tf.Variable(tf.ones([2]), name="of_other_steps"), v1.train.GradientDescentOptimizer(0.1)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w**2)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])

        told = refusal(step)
        assert told.startswith("DisagreementError") and "sums of 2 steps" in told and "sums of 3 steps" in told, told


def case_configuring_another_number_is_refused_or_takes_effect() -> None:
    w = tf.Variable(tf.zeros([1]), name="configured")
    optimizer = v1.train.GradientDescentOptimizer(1.0)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w) * (RANK + 1.0)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    average = (SIZE + 1) / 2
    with accumulating(2):
        traced = tf.function(step)
        for expected in (0, 1, 1, 2):
            traced()
            np.testing.assert_allclose(-w.numpy(), [expected * average], rtol=1e-6)
        tfdist.configure(accumulate_steps=3)
        told = refusal(traced)
        assert told.startswith("SettingsError") and "accumulate_steps to 3" in told, told
