"""Functions, tapes and eager loops: N ranks with batch B / N each equal one process with batch B."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere, settings
from tests.multirank.oracle import Feed, assert_averages_matter, assert_close, data, merged, mine, one_process, v1
from tests.named import subtest

Train = Callable[[list[Feed]], dict[str, np.ndarray]]


def assert_program_law(
    train: Train,
    tolerance: float = 1e-5,
    steps: int = 6,
    set_seed: Callable[[int], Any] = tf.random.set_seed,
    feeds: list[Feed] | None = None,
) -> None:
    """Compare ranks that have their own seeds and data with one process."""
    feeds = data(steps=steps) if feeds is None else feeds

    def seeded(batches: list[Feed], seed: int) -> dict[str, np.ndarray]:
        set_seed(seed)
        return train(batches)

    expected = one_process(lambda: seeded(feeds, 0))
    assert_averages_matter(expected, lambda: seeded([mine(f) for f in feeds], 0), 100 * tolerance)
    assert_close(seeded([mine(f) for f in feeds], tfdist.rank()), expected, tolerance)


def through_checkpoint(path: str, restores: bool, optimizer: Callable[[], Any] | None) -> None:
    """Restore a checkpoint with the Saver of a small graph, or save one on rank 0; optimizer: may be None."""
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [2])
        if optimizer is not None:
            optimizer().minimize(tf.reduce_sum(w))
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        if restores:
            saver.restore(session, path)
        elif tfdist.rank() == 0:
            saver.save(session, path)
        tfdist.barrier()


class Model(tf.Module):
    """A layer and an embedding; the variables are created at once or in the first step."""

    def __init__(self, lazily: bool = False) -> None:
        super().__init__()
        self.made: dict[str, tf.Variable] = {}
        if not lazily:
            self.make()

    def make(self) -> None:
        if not self.made:
            shapes = {"w": [5, 3], "b": [3], "e": [7, 3]}
            self.made = {n: tf.Variable(tf.random.normal(s, stddev=0.3), name=n) for n, s in shapes.items()}

    def loss(self, feed: Feed) -> Any:
        self.make()
        rows = tf.nn.embedding_lookup(self.made["e"], feed["i"])
        return tf.reduce_mean((tf.tanh(feed["x"] @ self.made["w"] + self.made["b"]) + rows - feed["y"]) ** 2)

    def values(self) -> dict[str, np.ndarray]:
        return {n: v.numpy() for n, v in self.made.items()}


def clip(gradients: list[Any], limit: float = 0.2) -> list[Any]:
    return list(tf.clip_by_global_norm([merged(g) for g in gradients], limit)[0])


def step(model: Model, optimizer: Any, feed: Feed, limit: float = 0.2) -> None:
    with tf.GradientTape() as tape:
        loss = model.loss(feed)
    variables = [model.made[n] for n in sorted(model.made)]
    optimizer.apply_gradients(list(zip(clip(tape.gradient(loss, variables), limit), variables, strict=True)))


def loop(make_optimizer: Callable[[], Any], function: bool, lazily: bool = False, limit: float = 0.2) -> Train:
    """Return a training loop with a tape, in a function or eager."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model, optimizer = Model(lazily), make_optimizer()
        run = tf.function(step) if function else step
        for feed in feeds:
            run(model, optimizer, {n: tf.constant(v) for n, v in feed.items()}, limit)
        return model.values()

    return train


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "v1 momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9),
    "v1 adam": lambda: v1.train.AdamOptimizer(0.05, epsilon=1e-3),
    "keras adam": lambda: tf.keras.optimizers.Adam(0.05, epsilon=1e-3, clipnorm=0.1),
    "keras sgd": lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
}


def refusal(call: Callable[[], Any]) -> str:
    """Return the text of the error that ``call`` raises on all ranks."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("it went on")


def assert_equal_everywhere(values: dict[str, np.ndarray]) -> None:
    for other in everywhere(values):
        for name, value in other.items():
            np.testing.assert_array_equal(value, values[name], err_msg=name)


def case_a_print_of_the_average_and_two_optimizers_in_one_function() -> None:
    """Two updates in turn, each with its own loss, as in adversarial training."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        first, second = Model(), Model()
        optimizers = [OPTIMIZERS["keras sgd"](), OPTIMIZERS["v1 adam"]()]

        @tf.function
        def both(feed: Feed) -> None:
            with tf.GradientTape() as one, tf.GradientTape() as other:
                loss_1 = first.loss(feed) + 0.1 * tf.reduce_sum(first.made["w"] * second.made["w"])
                loss_2 = second.loss(feed) - 0.1 * tf.reduce_sum(first.made["w"] * second.made["w"])
            for tape, loss, model, optimizer in (
                (one, loss_1, first, optimizers[0]),
                (other, loss_2, second, optimizers[1]),
            ):
                variables = list(model.made.values())
                gradients, norm = tf.clip_by_global_norm([merged(g) for g in tape.gradient(loss, variables)], 0.2)
                tf.print(norm, output_stream="file:///dev/null")
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

        for feed in feeds:
            both({n: tf.constant(v) for n, v in feed.items()})
        return {f"{k}{n}": v for k, m in enumerate((first, second)) for n, v in m.values().items()}

    assert_program_law(train)


def case_shapes_that_differ_between_ranks() -> None:
    """Only some ranks then trace the function again."""
    feeds = data(steps=4)
    weights = np.random.RandomState(4).rand(tfdist.size(), 4)

    def train(shares: list[Feed]) -> dict[str, np.ndarray]:
        model, optimizer = Model(), OPTIMIZERS["v1 momentum"]()

        @tf.function
        def run(feed: Feed, factor: Any) -> None:
            with tf.GradientTape() as tape:
                loss = model.loss(feed) * factor
            variables = list(model.made.values())
            optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

        for share in shares:
            run({n: tf.constant(v) for n, v in share.items()}, tf.constant(len(share["x"]) * tfdist.size() / 120.0))
        return model.values()

    tf.random.set_seed(0)
    expected = one_process(lambda: loop(OPTIMIZERS["v1 momentum"], function=False, limit=1e9)(feeds))
    shares = []
    for k, feed in enumerate(feeds):
        cuts = [0, *(np.cumsum(weights[:, k]) / weights[:, k].sum() * 119).astype(int)[:-1], 120]
        rows = slice(cuts[tfdist.rank()], cuts[tfdist.rank() + 1])
        shares.append({n: v[rows] for n, v in feed.items()})
    tf.random.set_seed(tfdist.rank())
    assert_close(train(shares), expected, 1e-5)


def case_variables_of_one_rank_alone() -> None:
    """Variables of rank 0 alone do not matter; if names are ambiguous, the first step uses rank 0's gradients."""
    if tfdist.rank() == 0:
        Model()
        tf.Variable(1.0, name="only here")
    model, other = Model(), tf.Variable(float(tfdist.rank()), name="everywhere")
    model.made["w"].assign_add(tf.fill([5, 3], float(tfdist.rank())))
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(model.made["w"] ** 2) + other**2
    assert other.numpy() == 0.0
    gradient = tape.gradient(loss, model.made["w"])
    np.testing.assert_allclose(gradient, 2 * model.made["w"].numpy(), rtol=1e-6)
    assert_equal_everywhere({"w": model.made["w"].numpy(), "gradient": gradient.numpy()})


def case_work_alone_communicates_nothing() -> None:
    model = Model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model.made["w"] ** 2)
    tape.gradient(loss, [model.made["w"]])
    if tfdist.rank() == 0:
        with tfdist.alone("a look at gradients"):
            other = Model()
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(other.made["w"] ** 2)
            np.testing.assert_allclose(tape.gradient(loss, other.made["w"]), 2 * other.made["w"].numpy(), rtol=1e-6)
    tfdist.barrier()


def case_updates_under_a_condition_of_own_values_are_warned_of() -> None:
    """The conditions hold on all ranks here; the step's number and an average are no rank's own values."""
    number = tf.Variable(0)
    conditions: dict[str, Callable[[Any], Any]] = {
        "own loss": lambda loss: loss < 100,
        "average": lambda loss: tfdist.all_reduce(loss) < 100,
        "step's number": lambda _: number < 100,
    }

    def warned(build: Callable[[Callable[[Any], Any]], None], name: str) -> bool:
        with subtest(build, name), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            build(conditions[name])
        return any("a condition of this rank's own values" in str(warning.message) for warning in caught)

    def function(condition: Callable[[Any], Any]) -> None:
        model, optimizer, (feed,) = Model(), tf.keras.optimizers.SGD(0.1), data(steps=1)

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = model.loss({n: tf.constant(v) for n, v in mine(feed).items()})
            variables = list(model.made.values())
            pairs = list(zip(tape.gradient(loss, variables), variables, strict=True))
            if condition(loss):
                optimizer.apply_gradients(pairs)

        step()

    def graph(condition: Callable[[Any], Any]) -> None:
        with tf.Graph().as_default():
            w = v1.get_variable("w", [3])
            loss = tf.reduce_mean((w - v1.placeholder(tf.float32, [None, 3])) ** 2)
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            v1.cond(condition(loss), lambda: optimizer.minimize(loss), tf.no_op)

    for name in conditions:
        assert warned(function, name) == (name == "own loss"), name
        if name != "step's number":  # an eager variable is none of the graph
            assert warned(graph, name) == (name == "own loss"), name


def case_variables_that_are_arguments() -> None:
    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model, optimizer = Model(), OPTIMIZERS["v1 momentum"]()

        @tf.function
        def run(w: Any, x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w - y) ** 2)
            optimizer.apply_gradients([(clip([tape.gradient(loss, w)])[0], w)])

        for feed in feeds:
            run(model.made["w"], tf.constant(feed["x"]), tf.constant(feed["y"]))
        return {"w": model.made["w"].numpy()}

    assert_program_law(train)


def case_one_function_for_several_variables() -> None:
    """One gradient function is traced once and called for each variable, by eager code or by a function that clips."""

    def train(inside: bool) -> Train:
        def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
            optimizer = OPTIMIZERS["v1 momentum"]()
            variables = [tf.Variable(tf.random.normal([5, 3]), name=f"v{n}") for n in range(3)]

            @tf.function
            def gradient(v: Any, x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((x @ v - y) ** 2)
                return tape.gradient(loss, v)

            @tf.function
            def descend(v: Any, x: Any, y: Any) -> None:
                v.assign_sub(clip([gradient(v, x, y)])[0])

            @tf.function
            def together(x: Any, y: Any) -> None:
                gradients = clip([gradient(v, x, y) for v in variables])
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

            for feed in feeds:
                x, y = tf.constant(feed["x"]), tf.constant(feed["y"])
                for v in () if inside else variables:
                    descend(v, x, y)
                if inside:
                    together(x, y)
            return {v.name: v.numpy() for v in variables}

        return run

    for inside in (True, False):
        with subtest(inside), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert_program_law(train(inside))


def case_twins_in_one_function() -> None:
    """Two equal models, each trained by a function that a third function calls; several buckets."""

    def train(feeds: list[Feed]) -> dict[str, np.ndarray]:
        models = Model(), Model()
        optimizers = [v1.train.GradientDescentOptimizer(0.3) for _ in models]

        @tf.function
        def one(k: int, feed: Feed) -> None:
            step(models[k], optimizers[k], feed)

        @tf.function
        def both(feed: Feed) -> None:
            one(0, feed)
            one(1, feed)
            step(models[0], optimizers[0], feed)
            step(models[1], optimizers[1], feed)

        for feed in feeds:
            both({n: tf.constant(v) for n, v in feed.items()})
        return {f"{k}{n}": v for k, m in enumerate(models) for n, v in m.values().items()}

    with settings(bucket_mb=0.0001):
        assert_program_law(train)


def case_variables_made_in_a_function_under_an_eager_tape() -> None:
    """The first gradients are of different weights on each rank: all ranks use rank 0's gradients."""
    model, optimizer = Model(lazily=True), OPTIMIZERS["keras sgd"]()
    forward = tf.function(lambda feed: model.loss(feed))
    tf.random.set_seed(tfdist.rank())
    for feed in data(steps=3):
        with tf.GradientTape() as tape:
            loss = forward({n: tf.constant(v) for n, v in mine(feed).items()})
        variables = list(model.made.values())
        optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))
    assert_equal_everywhere(model.values())


def case_training_alone() -> None:
    if tfdist.rank() == 0:
        with tfdist.alone("a model of its own"):
            for function in (True, False):
                loop(OPTIMIZERS["keras adam"], function)(data(steps=2))
    tfdist.barrier()


def case_collectives_in_functions() -> None:
    @tf.function
    def run(x: Any) -> Any:
        return tfdist.all_reduce(x, "sum") + tfdist.all_reduce(2 * x, "max")

    ranks = np.arange(tfdist.size(), dtype=np.float32)
    for k in range(3):
        found = run(tf.constant([tfdist.rank() + k, 1.0]))
        expected = [(ranks + k).sum() + 2 * (ranks + k).max(), tfdist.size() + 2.0]
        np.testing.assert_allclose(found, expected, err_msg=f"call {k}")


def case_models_that_differ_are_told() -> None:
    for function in (True, False):
        variable = tf.Variable(tf.ones([2 + (tfdist.rank() if function else 0)]), name=f"in_function_{function}")
        other = tf.Variable(1.0)

        def run(function: bool = function, variable: Any = variable, other: Any = other) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(variable**2) + other
            chosen = [variable] if function or tfdist.rank() else [variable, other]
            optimizer = v1.train.GradientDescentOptimizer(0.1)
            optimizer.apply_gradients(list(zip(tape.gradient(loss, chosen), chosen, strict=True)))

        told = refusal(tf.function(run) if function else run)
        assert told.startswith("DisagreementError") and "rank 0" in told, (function, told)


def case_rows_of_tables_that_each_rank_has_are_refused() -> None:
    """A dynamic embedding of TensorFlow Recommenders Addons, which CI's TensorFlow is too new for."""
    kind = type("TrainableWrapper", (type(tf.Variable(1.0)),), {"__module__": "tensorflow_recommenders_addons.x"})
    rows = kind(tf.zeros([2, 3]), name="rows")

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(rows * 2.0)
        return tape.gradient(loss, rows)

    for run in (gradient, tf.function(gradient)):
        with pytest.raises(RuntimeError, match="rows.*: rows of a dynamic embedding .*keras.layers.Embedding"):
            run()
    with tfdist.alone("own rows"):
        assert gradient() is not None
