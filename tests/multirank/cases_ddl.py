"""The names of IBM's DDL: the result of each operation on the ranks' own values equals the result in NumPy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfdist as ddl
from tests.multirank import inside
from tests.multirank.cases_keras import arrays, functional
from tests.multirank.cases_programs import assert_program_law, clip
from tests.multirank.inside import everywhere
from tests.multirank.oracle import Feed, assert_law, data, mine, model, train, v1
from tests.named import subtest

RANK, SIZE = ddl.rank(), ddl.size()
Pairs = Sequence[tuple[Any, Any]]
Reduce = Callable[[Pairs, str], Pairs]


def by_pairs(pairs: Pairs, op: str) -> Pairs:
    return ddl.grads_reduce(pairs, average=op == "avg")


def by_list(pairs: Pairs, op: Any) -> Pairs:
    reduced = ddl.allreduce_n([gradient for gradient, _ in pairs], op)
    return [(gradient, variable) for gradient, (_, variable) in zip(reduced, pairs, strict=True)]


def ways() -> Iterator[tuple[Reduce, str]]:
    for reduce in (by_pairs, by_list):
        for op in ("avg", "sum"):
            yield reduce, op


def combined(values: Sequence[np.ndarray], op: str) -> np.ndarray:
    """Return the ranks' values combined by NumPy."""
    return np.mean(values, axis=0) if op == "avg" else np.sum(values, axis=0)


def own_values(shape: tuple[int, ...], rank: int, dtype: str = "float32") -> np.ndarray:
    return ((np.arange(np.prod(shape, dtype=int)).reshape(shape) + 1) * (rank + 1) ** 2).astype(dtype)


def ranks_values(shape: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    return [own_values(shape, rank, dtype) for rank in range(SIZE)]


@contextmanager
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def case_ranks_and_hosts() -> None:
    assert (ddl.rank(), ddl.size(), ddl.local_rank()) == (RANK, SIZE, RANK)
    assert ddl.num_hosts() == inside.nodes()
    assert ddl.enable_bcast is ddl.enable_broadcast and ddl.disable_bcast is ddl.disable_broadcast


def case_options_are_understood() -> None:
    with inside.captured_log() as lines:
        ddl.init()
        ddl.init(f"-mode p:{SIZE}x1")
        assert not lines
        ddl.init(f"-mode b:{SIZE}x3 -dev 0")
        ddl.init(f"-mode b:{SIZE}x3 -dev 0")
    said = [
        f"ddl.init: -mode b:{SIZE}x3 is for a job of {3 * SIZE} ranks, but this job has {SIZE}",
        f"ddl.init: -mode b:{SIZE}x3: here this is NCCL",
        "ddl.init: -dev 0: without a meaning here",
    ]
    assert len(lines) == (0 if RANK else 3), lines
    assert all(line.startswith(words) for line, words in zip(lines, said, strict=False)), lines
    with pytest.raises(TypeError, match=f"options=4.* on rank {RANK}: options are a string"):
        ddl.init(4)  # type: ignore[arg-type]


def case_allreduce_n_of_values() -> None:
    brought = [ranks_values((2, 3)), ranks_values(()), ranks_values((4,), "float64"), ranks_values((3,))]
    counts = ranks_values((2,), "int64")
    for op in ("avg", "sum"):
        expected = [combined(values, op) for values in brought]
        own: list[Any] = [values[RANK] for values in brought] + [None]
        if op == "sum":
            own, expected = [*own, counts[RANK]], [*expected, np.sum(counts, axis=0)]

        def call(own: Any = own, op: Any = op) -> Any:
            return ddl.allreduce_n([None if value is None else tf.convert_to_tensor(value) for value in own], op)

        found = {"eager": call(), "again": call(), "function": tf.function(call)(), "arrays": ddl.allreduce_n(own, op)}
        with tf.Graph().as_default(), v1.Session() as session, no_warnings():
            made = call()
            assert [t.shape for t in made if t is not None] == [value.shape for value in expected]
            for _ in range(2):
                found["session"] = session.run([t for t in made if t is not None])
        for name, results in found.items():
            with subtest(name, op):
                assert (results[4] is None) if name != "session" else len(results) == len(expected)
                for result, value in zip([r for r in results if r is not None], expected, strict=True):
                    np.testing.assert_allclose(result, value, rtol=1e-6)
                    assert np.asarray(result).dtype == value.dtype


def case_what_cannot_be_reduced_is_refused() -> None:
    for values, op, said in (
        ([1.0], "mean", f"op='mean' in ddl.allreduce_n on rank {RANK}: it is 'avg' or 'sum'"),
        ([np.array([1])], "avg", "the mean of int64 values needs a float"),
        ([np.array(["a"])], "sum", "strings"),
    ):
        with subtest(op, values), pytest.raises(ValueError, match=said):
            ddl.allreduce_n(values, op)  # type: ignore[arg-type]


def case_nothing_is_reduced_alone() -> None:
    with ddl.alone("a test of one rank after the other"):
        assert float(ddl.allreduce_n([float(RANK + 1)], "sum")[0]) == RANK + 1


def case_gradients_in_a_session() -> None:
    """Reduced gradients are the average. It is applied after one exchange without another average, and clipping sees
    it."""
    for reduce, op in ways():
        with subtest(reduce, op), tf.Graph().as_default() as graph, v1.Session() as session, no_warnings():
            shapes = ((2, 3), (4,))
            variables = [v1.get_variable(f"v{n}", s, initializer=v1.zeros_initializer()) for n, s in enumerate(shapes)]
            unused = v1.get_variable("unused", [2])
            loss = tf.add_n([tf.reduce_sum(v * own_values(v.shape, RANK)) for v in variables])
            optimizer = v1.train.GradientDescentOptimizer(1.0)
            reduced = reduce(optimizer.compute_gradients(loss, [*variables, unused]), op)
            assert reduced[-1] == (None, unused)
            norm = tf.linalg.global_norm([g for g, _ in reduced[:-1]])
            step = optimizer.apply_gradients([(g / norm, v) for g, v in reduced[:-1]])
            session.run(v1.global_variables_initializer())
            found, size, _ = session.run([[g for g, _ in reduced[:-1]], norm, step])
            expected = [combined(ranks_values(shape), op) for shape in shapes]
            length = np.sqrt(sum(np.sum(value**2) for value in expected))
            np.testing.assert_allclose(size, length, rtol=1e-5)
            for gradient, value, after in zip(found, expected, session.run(variables), strict=True):
                np.testing.assert_allclose(gradient, value, rtol=1e-6)
                np.testing.assert_allclose(after, -value / length, rtol=1e-5)
            assert len(inside.state_of(graph).collectives) == (SIZE > 1), "one exchange"


def case_weighted_gradients_in_a_session() -> None:
    """A script weights gradients differently on each rank before it reduces them: the weighted values are reduced."""
    weights = np.array([1.0 + 2 * rank for rank in range(SIZE)], np.float32)
    for reduce, op in ways():
        with subtest(reduce, op), tf.Graph().as_default(), v1.Session() as session, no_warnings():
            w = v1.get_variable("w", [3], initializer=v1.random_normal_initializer(seed=RANK))
            gradient = tf.gradients(tf.reduce_sum(w * own_values((3,), RANK)), w)[0]
            clipped = tf.clip_by_norm(gradient, 2.0)
            pairs = reduce([(gradient * weights[RANK], w), (clipped, w)], op)
            step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(pairs[0][0] / 8, w)])
            session.run(v1.global_variables_initializer())
            begin = session.run(w)
            assert all((other == begin).all() for other in everywhere(begin)), "training begins with rank 0's values"
            found, _ = session.run([[g for g, _ in pairs], step])
            brought = ranks_values((3,))
            weighted = combined([w * value for w, value in zip(weights, brought, strict=True)], op)
            np.testing.assert_allclose(found[0], weighted, rtol=1e-6)
            np.testing.assert_allclose(found[1], combined([2 * v / np.linalg.norm(v) for v in brought], op), rtol=1e-5)
            np.testing.assert_allclose(session.run(w), begin - weighted / 8, rtol=1e-5)


def case_weighted_gradients_and_the_gradients_themselves() -> None:
    """The optimizer also applies the average of the unweighted gradients; a warning says to reduce them first."""
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        u = v1.get_variable("u", [3], initializer=v1.zeros_initializer())
        gradients = tf.gradients(tf.reduce_sum((w + u) * own_values((3,), RANK)), [w, u])
        weighted = ddl.allreduce_n([gradient * (RANK + 1) for gradient in gradients], "sum")
        mean = ddl.allreduce_n(gradients)
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        steps = [optimizer.apply_gradients([(weighted[0], w)])]
        with pytest.warns(match="allreduce_n.; reduce the gradients first") if SIZE > 1 else no_warnings():
            steps.append(optimizer.apply_gradients([(gradients[1], u)]))
        session.run(v1.global_variables_initializer())
        found, *_ = [session.run(one) for one in (mean, *steps)]
        brought = ranks_values((3,))
        for value in found:
            np.testing.assert_allclose(value, np.mean(brought, axis=0), rtol=1e-6)
        expected = np.sum([(rank + 1) * value for rank, value in enumerate(brought)], axis=0)
        np.testing.assert_allclose(session.run(w), -expected, rtol=1e-6)
        np.testing.assert_allclose(session.run(u), -np.mean(brought, axis=0), rtol=1e-6)


def case_a_norm_of_averages_is_reduced() -> None:
    """Reducing a norm of averages does not change how the averages are applied, in one exchange."""
    with tf.Graph().as_default() as graph, v1.Session() as session, no_warnings():
        w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        pairs = ddl.grads_reduce(optimizer.compute_gradients(tf.reduce_sum(w * own_values((3,), RANK))))
        norm = ddl.allreduce_n([tf.norm(pairs[0][0])])[0]
        step = optimizer.apply_gradients([(tf.clip_by_norm(pairs[0][0], 1.0), w)])
        session.run(v1.global_variables_initializer())
        mean = np.mean(ranks_values((3,)), axis=0)
        np.testing.assert_allclose(session.run(norm), np.linalg.norm(mean), rtol=1e-6)
        session.run(step)
        np.testing.assert_allclose(session.run(w), -mean / np.linalg.norm(mean), rtol=1e-6)
        assert len(inside.state_of(graph).collectives) == 2 * (SIZE > 1), "of the gradients, and of their norm"


def case_what_a_session_has_run_is_reduced() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [3], initializer=v1.zeros_initializer())
        gradient = tf.gradients(tf.reduce_sum(w * own_values((3,), RANK)), w)[0]
        session.run(v1.global_variables_initializer())
        total = ddl.allreduce_n([gradient], "sum")[0]
        np.testing.assert_allclose(session.run(total), combined(ranks_values((3,)), "sum"))
        step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(total, w)])
        session.run(step)
        np.testing.assert_allclose(session.run(w), -combined(ranks_values((3,)), "sum"))


def case_gradients_of_a_tape() -> None:
    """Gradients of a tape in a function, which may return them, and in eager mode, where the tape averages them."""
    for reduce, op in ways():
        expected = combined(ranks_values((2, 3)), op)

        def step(w: Any, reduce: Any = reduce, op: str = op) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * own_values((2, 3), RANK))
            pairs = reduce([(tape.gradient(loss, w), w)], op)
            limited = [(tf.clip_by_norm(g, 5.0), v) for g, v in pairs]
            v1.train.GradientDescentOptimizer(1.0).apply_gradients(limited)
            return pairs[0][0]

        for name, run in (("function", tf.function(step)), ("eager", step)):
            w = tf.Variable(np.zeros((2, 3), np.float32))
            with subtest(reduce, op, name), no_warnings():
                np.testing.assert_allclose(run(w), expected, rtol=1e-6)
                np.testing.assert_allclose(w, -5 * expected / np.linalg.norm(expected), rtol=1e-5)


def case_weighted_gradients_in_a_function() -> None:
    """Returned values, for example a norm, and reduced values come from this rank's own gradients."""
    for reduce, op in ways():

        @tf.function
        def step(w: Any, weight: Any, reduce: Any = reduce, op: str = op) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(w * own_values((3,), RANK))
            gradient = tape.gradient(loss, w)
            v1.train.GradientDescentOptimizer(1.0).apply_gradients(reduce([(gradient * weight, w)], op))
            return tf.norm(gradient)

        w = tf.Variable(np.zeros(3, np.float32))
        with subtest(reduce, op), no_warnings():
            np.testing.assert_allclose(step(w, tf.constant(RANK + 1.0)), np.linalg.norm(own_values((3,), RANK)))
            weighted = [(rank + 1) * value for rank, value in enumerate(ranks_values((3,)))]
            np.testing.assert_allclose(w, -combined(weighted, op), rtol=1e-6)


def case_gradients_for_keras() -> None:
    import keras

    def step(w: Any, optimizer: Any, reduce: Any, op: str) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * own_values((3,), RANK))
        optimizer.apply_gradients(reduce([(tape.gradient(loss, w), w)], op))

    for reduce, op in ways():
        for name, run in (("function", tf.function(step)), ("eager", step)):
            w, optimizer = tf.Variable(np.zeros(3, np.float32)), keras.optimizers.SGD(1.0)
            with subtest(reduce, op, name), no_warnings():
                run(w, optimizer, reduce, op)
                np.testing.assert_allclose(w, -combined(ranks_values((3,)), op), rtol=1e-6)


def case_rows_of_embeddings() -> None:
    def gradient_of(table: Any) -> Any:
        return tf.reduce_sum(tf.nn.embedding_lookup(table, [RANK, RANK + 1]) * own_values((2, 2), RANK))

    brought = np.zeros((SIZE, SIZE + 1, 2), np.float32)
    for rank in range(SIZE):
        brought[rank, [rank, rank + 1]] = own_values((2, 2), rank)
    for reduce, op in ways():
        expected = combined(list(brought), op)
        with subtest(reduce, op), tf.Graph().as_default(), v1.Session() as session, no_warnings():
            table = v1.get_variable("table", [SIZE + 1, 2], initializer=v1.zeros_initializer())
            optimizer = v1.train.GradientDescentOptimizer(1.0)
            pairs = reduce(optimizer.compute_gradients(gradient_of(table)), op)
            assert isinstance(pairs[0][0], tf.IndexedSlices)
            step = optimizer.apply_gradients(pairs)
            session.run(v1.global_variables_initializer())
            session.run(step)
            np.testing.assert_allclose(session.run(table), -expected)
        with subtest(reduce, op, "eager"):
            table = tf.Variable(np.zeros((SIZE + 1, 2), np.float32))
            with tf.GradientTape() as tape:
                loss = gradient_of(table)
            v1.train.GradientDescentOptimizer(1.0).apply_gradients(reduce([(tape.gradient(loss, table), table)], op))
            np.testing.assert_allclose(table, -expected)


def case_the_law_of_sessions() -> None:
    for reduce in (by_pairs, by_list):

        def build(reduce: Any = reduce) -> Any:
            loss, variables = model("float64")
            optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
            pairs = reduce(optimizer.compute_gradients(loss, variables), "avg")
            return optimizer.apply_gradients(zip(clip([g for g, _ in pairs]), variables, strict=True))

        with subtest(reduce):
            assert_law(build, "float64")


def case_the_law_of_functions() -> None:
    def program(feeds: list[Feed]) -> dict[str, np.ndarray]:
        w, optimizer = tf.Variable(tf.random.normal([5, 3])), v1.train.AdamOptimizer(0.05, epsilon=1e-3)

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w - y) ** 2)
            optimizer.apply_gradients(ddl.grads_reduce([(tape.gradient(loss, w), w)]))

        for feed in feeds:
            step(feed["x"], feed["y"])
        return {"w": w.numpy()}

    assert_program_law(program)


def case_reduced_gradients_in_other_settings() -> None:
    """Reduced gradients also train with accumulated steps, where the optimizer decides when they are exchanged, and
    with local SGD, where variables are exchanged."""
    if SIZE == 1:  # nothing is installed
        return
    feeds = data("float64", steps=4)

    def build(reduce: Reduce | None) -> Callable[[], Any]:
        def built() -> Any:
            loss, variables = model("float64")
            optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
            pairs = optimizer.compute_gradients(loss, variables)
            return optimizer.apply_gradients(pairs if reduce is None else reduce(pairs, "avg"))

        return built

    configured: tuple[dict[str, Any], ...] = (
        {"accumulate_steps": 2},
        {"sync": "average", "block_steps": 2},
        {"loss_scale": "backoff"},
        {"sparse": "unmerged"},
    )
    for settings in configured:
        with inside.settings(inside.through_mpi(), **settings), no_warnings():
            expected = train(build(None), [mine(f) for f in feeds], seed=RANK)
            for reduce in (by_pairs, by_list):
                found = train(build(reduce), [mine(f) for f in feeds], seed=RANK)
                for name, value in expected.items():
                    with subtest(settings, reduce, name):
                        np.testing.assert_allclose(found[name], value, rtol=1e-12)


def case_bcast() -> None:
    first = [own_values((3,), 0), own_values((2, 2), 0)]
    own = [own_values((3,), RANK), own_values((2, 2), RANK)]
    last = own_values((3,), SIZE - 1)
    for value, expected in zip(own, first, strict=True):
        np.testing.assert_array_equal(ddl.bcast(tf.constant(value)), expected)
        np.testing.assert_array_equal(tf.function(ddl.bcast)(tf.constant(value)), expected)
    np.testing.assert_array_equal(ddl.bcast(tf.constant(own[0]), root=SIZE - 1), last)
    np.testing.assert_array_equal(ddl.bcast(tf.Variable(own[0])), first[0])
    for use_resource in (True, False):
        # (Without a training step, and without tfdist's own broadcast: these alone make them equal.)
        with tf.Graph().as_default(), v1.Session() as session, ddl.disable_bcast(), no_warnings():
            variables = [v1.Variable(ddl.bcast(tf.constant(value)), use_resource=use_resource) for value in own]
            variables += [v1.Variable(ddl.bcast(tf.constant(own[0], name=f"of_last_{n}"), SIZE - 1)) for n in range(9)]
            session.run(v1.global_variables_initializer())
            for found, value in zip(session.run(variables), [*first, *[last] * 9], strict=True):
                np.testing.assert_array_equal(found, value)
            session.run(variables[1].initializer)


def case_initial_values_of_a_training_graph() -> None:
    """A value that is broadcast from another rank has that rank's value; the others are rank 0's or each rank's own."""
    for enabled in (True, False):
        with tf.Graph().as_default(), v1.Session() as session, no_warnings(), subtest(enabled):
            with ddl.enable_bcast() if enabled else ddl.disable_bcast():
                w = v1.get_variable("w", initializer=ddl.bcast(tf.constant(own_values((3,), RANK)), SIZE - 1))
                u = v1.get_variable("u", initializer=tf.constant(own_values((3,), RANK)))
                optimizer = v1.train.GradientDescentOptimizer(1.0)
                loss = tf.reduce_sum((w + u) * own_values((3,), RANK))
                step = optimizer.apply_gradients(ddl.grads_reduce(optimizer.compute_gradients(loss)))
                session.run(v1.global_variables_initializer())
            first = session.run([w, u])
            np.testing.assert_array_equal(first[0], own_values((3,), SIZE - 1))
            np.testing.assert_array_equal(first[1], own_values((3,), 0 if enabled else RANK))
            with tf.control_dependencies([step]):
                mean = ddl.allreduce_n([loss])[0]
            found, _ = session.run([mean, step])
            losses = everywhere(float(np.sum((first[0] + first[1]) * own_values((3,), RANK))))
            np.testing.assert_allclose(found, np.mean(losses), rtol=1e-6)
            for value, begin in zip(session.run([w, u]), first, strict=True):
                np.testing.assert_allclose(value, begin - np.mean(ranks_values((3,)), axis=0), rtol=1e-6)


def case_metrics_in_fit() -> None:
    """tfdist averages the metrics of Keras 3, so the callback changes only what a script logs before it."""
    import keras

    class Own(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["own"] = float(RANK)

    histories = []
    for callbacks in ([], [Own(), ddl.DDLCallback()]):
        keras.utils.set_random_seed(1)
        keras_model = functional()
        keras_model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        histories.append(keras_model.fit(*arrays(), 30, epochs=2, verbose=0, callbacks=callbacks).history)
    assert histories[1].pop("own") == [(SIZE - 1) / 2] * 2
    assert histories[0] == histories[1] and everywhere(histories) == [histories] * SIZE
    logs = {"loss": float(RANK)}
    ddl.DDLCallback().on_epoch_end(0, logs)
    assert logs == {"loss": (SIZE - 1) / 2}


def case_global_variables_in_fit() -> None:
    """Global variables are rank 0's, also if only rank 0 has optimizer state or tfdist's broadcast is off."""
    import keras

    for disabled in (False, True):
        keras.utils.set_random_seed(RANK)
        keras_model = functional()
        keras_model.compile(keras.optimizers.Adam(0.0), "mse")
        if RANK == 0:
            keras_model.optimizer.build(keras_model.trainable_variables)
            keras_model.optimizer.iterations.assign(7)
        expected = ddl.broadcast(keras_model.get_weights())
        with subtest(disabled), ddl.disable_bcast() if disabled else ddl.enable_bcast():
            keras_model.fit(*arrays(), 30, verbose=0, callbacks=[ddl.DDLGlobalVariablesCallback()])
        steps = int(keras_model.optimizer.iterations) - 7
        assert steps > 0 and everywhere(steps) == [steps] * SIZE
        for found, wanted in zip(keras_model.get_weights(), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def case_weighted_gradients_by_all_reduce_in_a_session() -> None:
    """The remedy that messages name: results of ``all_reduce`` are not averaged again."""
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=np.zeros(1, np.float32), use_resource=True)
        gradient = tf.gradients(variable * (RANK + 1.0), variable)[0]
        total = ddl.all_reduce(gradient * (RANK + 1.0), "sum")
        step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(total, variable)])
        session.run(v1.global_variables_initializer())
        session.run(step)
        np.testing.assert_allclose(session.run(variable), [-sum((r + 1.0) ** 2 for r in range(SIZE))])


def case_weighted_gradients_by_all_reduce_in_a_function() -> None:
    variable = tf.Variable([0.0])
    optimizer = v1.train.GradientDescentOptimizer(1.0)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = variable * (RANK + 1.0)
        (gradient,) = tape.gradient(loss, [variable])
        optimizer.apply_gradients([(ddl.all_reduce(gradient * (RANK + 1.0), "sum"), variable)])

    with no_warnings():
        step()
    np.testing.assert_allclose(variable.numpy(), [-sum((r + 1.0) ** 2 for r in range(SIZE))])
