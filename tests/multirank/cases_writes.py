"""Training without an optimizer: ``assign`` and similar calls write gradients to variables, or NumPy does."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import Model, assert_equal_everywhere, assert_program_law, clip, refusal
from tests.multirank.inside import settings
from tests.multirank.oracle import (
    Feed,
    assert_close,
    assert_law,
    data,
    mine,
    one_process,
    placeholders,
    train,
    v1,
)
from tests.named import subtest

STEPS = 5
Update = Callable[[Any, list[Any], list[Any]], Any]


def graph_loss() -> tuple[Any, list[Any]]:
    """Return the loss and variables of a layer and an embedding, in a session's graph."""
    p = placeholders()
    w, e = v1.get_variable("w", [5, 3]), v1.get_variable("e", [7, 3])
    return tf.reduce_mean((tf.tanh(p["x"] @ w) + tf.nn.embedding_lookup(e, p["i"]) - p["y"]) ** 2), [w, e]


def adam_by_hand(_: Any, gradients: list[Any], variables: list[Any]) -> Any:
    """Adam as in tutorials: slots and variables are assigned, all in one group."""
    updates = []
    t = v1.get_variable("t", [], initializer=v1.zeros_initializer(), trainable=False)
    for gradient, variable in zip(gradients, variables, strict=True):
        gradient = tf.convert_to_tensor(gradient)
        zeros = tf.zeros(variable.shape)
        m = tf.Variable(zeros, trainable=False, name=variable.op.name + "_m")
        v = tf.Variable(zeros, trainable=False, name=variable.op.name + "_v")
        m_t = 0.9 * m + 0.1 * gradient
        v_t = 0.99 * v + 0.01 * tf.square(gradient)
        step = 0.05 * m_t / (tf.sqrt(v_t) + 1e-3)
        updates += [m.assign(m_t), v.assign(v_t), v1.assign_sub(variable, step)]
    return tf.group(*updates, t.assign_add(1.0))


def clipped_sgd(_: Any, gradients: list[Any], variables: list[Any]) -> Any:
    norms = v1.get_variable("norms", [], initializer=v1.zeros_initializer(), trainable=False)
    clipped, norm = tf.clip_by_global_norm([tf.convert_to_tensor(g) for g in gradients], 0.2)
    return tf.group(
        norms.assign_add(norm), *[v1.assign(v, v - 0.3 * g) for v, g in zip(variables, clipped, strict=True)]
    )


def raw_operations(_: Any, gradients: list[Any], variables: list[Any]) -> Any:
    pairs = zip(variables, gradients, strict=True)
    return tf.group(
        *[
            tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=0.3, delta=tf.convert_to_tensor(g))
            for v, g in pairs
        ]
    )


def one_at_a_time(loss: Any, _: list[Any], variables: list[Any]) -> Any:
    return tf.group(*[v1.assign_sub(v, 0.3 * tf.convert_to_tensor(tf.gradients(loss, v)[0])) for v in variables])


def accumulated(_: Any, gradients: list[Any], variables: list[Any]) -> Any:
    """Accumulate gradients, which an optimizer applies every second step."""
    count = v1.get_variable("count", [], tf.int32, v1.zeros_initializer(), trainable=False)
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False, name=v.op.name + "_sum") for v in variables]
    added = [s.assign_add(tf.convert_to_tensor(g)) for s, g in zip(sums, gradients, strict=True)]
    optimizer = v1.train.GradientDescentOptimizer(0.3)
    with tf.control_dependencies([*added, count.assign_add(1)]):

        def apply() -> Any:
            done = optimizer.apply_gradients([(s / 2, v) for s, v in zip(sums, variables, strict=True)])
            with tf.control_dependencies([done]):
                return tf.group(*[s.assign(tf.zeros(s.shape)) for s in sums])

        return v1.cond(tf.equal(count.read_value() % 2, 0), apply, tf.no_op)


def in_graph(update: Update, resource: bool = True) -> Callable[[], Any]:
    def build() -> Any:
        with v1.variable_scope("", use_resource=resource):
            loss, variables = graph_loss()
            return update(loss, tf.gradients(loss, variables), variables)

    return build


def case_one_message_for_what_is_assigned() -> None:
    """One message for all variables; accumulated gradients travel when they are applied."""
    from tfdist.graph.graph_state import make_state

    for update, messages in ((adam_by_hand, 1), (one_at_a_time, 1), (accumulated, 1)):
        with subtest(update), tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            in_graph(update)()
            session.run(v1.global_variables_initializer())
            assert len(make_state(graph).collectives) == messages


def case_an_assignment_after_the_first_run_is_refused() -> None:
    for ran in ("a run", "a callable"):
        with subtest(ran), tf.Graph().as_default(), v1.Session() as session:
            loss, variables = graph_loss()
            gradients = tf.gradients(loss, variables)
            if ran == "a run":
                session.run(v1.global_variables_initializer())
            else:
                session.make_callable(gradients[0])
            step = v1.assign_sub(variables[0], gradients[0], name="late")
            told = refusal(lambda: session.run(step))  # noqa: B023
            assert "AssignSub" in told and "already run" in told and "all_reduce" in told, told


def case_ways_to_run_a_graph_that_assigns() -> None:
    """Callables that are made before the first run, and graphs that are finalized before it."""

    def trained(way: str, feeds: list[Feed], seed: int) -> dict[str, np.ndarray]:
        with tf.Graph().as_default() as graph:
            v1.set_random_seed(seed)
            step = in_graph(raw_operations if way == "monitored" else clipped_sgd)()
            init, variables = v1.global_variables_initializer(), v1.global_variables()
            p = [graph.get_tensor_by_name(f"{name}:0") for name in "xyi"]
            if way == "monitored":
                v1.train.get_or_create_global_step()
                session = v1.train.MonitoredTrainingSession()

                def run(feed: Any, session: Any = session) -> Any:
                    return session.run(step, feed)
            else:
                session = v1.Session(graph=graph)
                init, called = session.make_callable(init), session.make_callable([step], feed_list=p)
                init()

                def run(feed: Any, session: Any = session) -> Any:
                    return called(*feed.values())

                if way == "finalized":
                    graph.finalize()
            for feed in feeds:
                run(dict(zip(p, (feed[name] for name in "xyi"), strict=True)))
            return dict(zip([v.name for v in variables], session.run(variables), strict=True))

    feeds = data(steps=STEPS)
    for way in ("callable", "finalized", "monitored"):
        with subtest(way):
            expected = one_process(functools.partial(trained, way, feeds, 0))
            assert_close(trained(way, [mine(f) for f in feeds], tfdist.rank()), expected, 1e-5)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        step = in_graph(clipped_sgd)()
        assert "partial_run cannot" in refusal(lambda: session.partial_run_setup([step]))


def case_gradients_that_are_stored() -> None:
    """Queues, accumulators, staging areas and tables of TensorFlow: what comes out of them is the average."""

    def queue(gradients: list[Any], variables: list[Any]) -> Any:
        held = tf.queue.FIFOQueue(9, [g.dtype for g in gradients], [v.shape for v in variables])
        with tf.control_dependencies([held.enqueue(gradients)]):
            return held.dequeue()

    def stage(gradients: list[Any], variables: list[Any]) -> Any:
        held = tf.raw_ops.Stage(values=gradients, shared_name="s")
        with tf.control_dependencies([held]):
            return tf.raw_ops.Unstage(dtypes=[g.dtype for g in gradients], shared_name="s")

    def table(gradients: list[Any], variables: list[Any]) -> Any:
        size = int(variables[0].shape.num_elements())
        held = tf.lookup.experimental.MutableHashTable(tf.int64, tf.float32, tf.zeros([size]))
        with tf.control_dependencies([held.insert([0], tf.reshape(gradients[0], [1, size]))]):
            return [tf.reshape(held.lookup([np.int64(0)]), variables[0].shape), gradients[1]]

    def accumulator(gradients: list[Any], variables: list[Any]) -> Any:
        held = [v1.ConditionalAccumulator(g.dtype, v.shape) for g, v in zip(gradients, variables, strict=True)]
        pairs = zip(held, gradients, strict=True)
        with tf.control_dependencies([h.apply_grad(g, local_step=1 << 40) for h, g in pairs]):
            return [h.take_grad(1) for h in held]

    def sparse(_: list[Any], variables: list[Any]) -> Any:
        rows = v1.get_default_graph().get_tensor_by_name("i:0")
        slices = tf.gradients(tf.reduce_mean(tf.nn.embedding_lookup(variables[1], rows) ** 2), variables[1])
        held = v1.SparseConditionalAccumulator(tf.float32, variables[1].shape)
        with tf.control_dependencies([held.apply_indexed_slices_grad(slices[0], local_step=1 << 40)]):
            taken = held.take_indexed_slices_grad(1)
        return [tf.zeros(variables[0].shape), taken]

    def build(store: Any, optimizer: bool) -> Any:
        def made() -> Any:
            loss, variables = graph_loss()
            gradients = store([tf.convert_to_tensor(g) for g in tf.gradients(loss, variables)], variables)
            if optimizer:
                return v1.train.GradientDescentOptimizer(0.3).apply_gradients(zip(gradients, variables, strict=True))
            pairs = zip(variables, map(tf.convert_to_tensor, gradients), strict=True)
            return tf.group(*[v1.assign_sub(v, 0.3 * tf.reshape(g, v.shape)) for v, g in pairs])

        return made

    for store in (queue, stage, table, accumulator, sparse):
        for optimizer in (True, False):
            if store is not sparse or optimizer:
                with subtest(store, optimizer):
                    assert_law(build(store, optimizer), feeds=data(steps=STEPS))


def case_numbers_made_of_gradients() -> None:
    """Integers and flags that a variable keeps are made of the average; with accumulated steps they are refused."""

    def program(ints: bool, in_session: bool) -> Any:
        def update(w: Any, kept: Any, gradient: Any) -> Any:
            new = tf.cast(tf.round(1e5 * gradient), tf.int32) if ints else tf.cast(gradient > 0, tf.int32)
            with tf.control_dependencies([kept.assign(new)]):
                number = tf.cast(kept.read_value(), tf.float32)
                return w.assign_sub(3e-6 * number if ints else 0.1 * number - 0.05)

        def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
            w, kept = tf.Variable(tf.random.normal([5, 3])), tf.Variable(tf.zeros([5, 3], tf.int32))

            @tf.function
            def step(x: Any, y: Any) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((x @ w - y) ** 2)
                update(w, kept, tape.gradient(loss, w))

            for feed in feeds:
                step(feed["x"], feed["y"])
            return {"w": w.numpy()}

        def build() -> Any:
            loss, (w, _) = graph_loss()
            return update(w, tf.Variable(tf.zeros([5, 3], tf.int32)), tf.gradients(loss, w)[0])

        return build if in_session else run

    for ints in (True, False):
        with subtest("integers" if ints else "flags"):
            assert_program_law(program(ints, False), 1e-4, STEPS)
            feeds = data(steps=STEPS)
            expected = one_process(functools.partial(train, program(ints, True), feeds))
            found = train(program(ints, True), [mine(f) for f in feeds], tfdist.rank())
            assert_close({"w:0": found["w:0"]}, {"w:0": expected["w:0"]}, 1e-4)
    with settings():
        tfdist.configure(accumulate_steps=2)
        told = refusal(lambda: program(True, False)([mine(f) for f in feeds]))
        assert "accumulate_steps=2" in told, told


def case_gradients_with_respect_to_computed_tensors() -> None:
    """A rounded weight, or rows of a table: the variable cannot get them; an optimizer and other variables can."""

    def computed(v: Any, x: Any) -> tuple[Any, Any]:
        w = tf.round(8 * v) / 8
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_mean((x @ w) ** 2)
        return tape.gradient(loss, w), loss

    def in_function(apply: Callable[[Any, Any], Any], alike: bool = False) -> Callable[[], dict[str, np.ndarray]]:
        v = tf.Variable(tf.ones([5, 3]) if alike else tf.random.normal([5, 3]), trainable=False)

        @tf.function
        def step(x: Any) -> None:
            apply(v, lambda: computed(v, x))

        def run() -> dict[str, np.ndarray]:
            for feed in data(steps=2):
                step(mine(feed)["x"])
            return {"v": v.numpy()}

        return run

    def in_session(apply: Callable[[Any, Any], Any]) -> Callable[[], None]:
        def run() -> None:
            with tf.Graph().as_default(), v1.Session() as session:
                e, i = v1.get_variable("e", [7, 3]), v1.placeholder(tf.int32, [None])
                rows = tf.gather(e, i)
                update = apply(e, tf.IndexedSlices(tf.gradients(tf.reduce_mean(rows**2), rows)[0], i))
                session.run(v1.global_variables_initializer())
                session.run(update, {i: [tfdist.rank()]})

        return run

    def queued(e: Any, slices: Any) -> Any:
        queue = tf.queue.FIFOQueue(9, [tf.float32], [[1, 3]])
        with tf.control_dependencies([queue.enqueue([tf.ensure_shape(slices.values, [1, 3])])]):
            return v1.scatter_sub(e, slices.indices, queue.dequeue())

    inner = tf.function(computed)
    for name, run in {
        "function": in_function(lambda v, made: v.assign_sub(0.1 * made()[0])),
        "inner function": in_function(lambda v, made: v.assign_sub(0.1 * tf.sign(inner(v, tf.ones([2, 5]))[0]))),
        "session": in_session(lambda e, slices: v1.scatter_sub(e, slices.indices, slices.values)),
        "queue": in_session(queued),
    }.items():
        with subtest(name):
            told = refusal(run)
            assert "that is computed from the variable" in told and "all_reduce(value, 'mean')" in told, told

    def natural(feeds: list[Feed]) -> dict[str, np.ndarray]:
        """Continue the chain rule by hand, as natural gradients do: the gradient behind it is averaged."""
        v = tf.Variable(tf.random.normal([5, 3]))

        @tf.function
        def step(x: Any) -> None:
            half = 0.5 * v
            with tf.GradientTape() as chain, tf.GradientTape() as tape:
                chain.watch(half)
                new = v + tf.tanh(half)
                loss = tf.reduce_mean((x @ v) ** 2)
            v.assign_sub(0.1 * chain.gradient(new, half, tape.gradient(loss, v)))

        for feed in feeds:
            step(feed["x"])
        return {"v": v.numpy()}

    assert_program_law(natural)
    norm, optimizer = tf.Variable(0.0), keras.optimizers.SGD(0.1)
    for alike, apply in (
        (True, lambda v, made: v.assign_sub(0.1 * tfdist.all_reduce(made()[0], "mean"))),
        (False, lambda v, made: optimizer.apply([made()[0]], [v])),
        (True, lambda v, made: norm.assign(tf.norm(made()[0]))),
        (True, lambda v, made: tf.raw_ops.Stage(values=[made()[0]], shared_name="own")),
    ):
        assert_equal_everywhere(in_function(apply, alike)())
    with settings():
        tfdist.configure(sync="average:steps=2")
        other = keras.optimizers.SGD(0.1)
        assert_equal_everywhere(in_function(lambda v, made: other.apply([made()[0]], [v]))())


def case_complex_variables() -> None:
    def program(apply: str) -> Any:
        def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
            w = tf.Variable(tf.complex(tf.random.normal([5, 3]), tf.random.normal([5, 3])), name="w")

            def step(x: Any, y: Any) -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean(tf.abs(tf.cast(x, w.dtype) @ w - tf.cast(y, w.dtype)) ** 2)
                w.assign_sub(0.3 * tape.gradient(loss, w))

            call = step if apply == "eagerly" else tf.function(step)
            for feed in feeds:
                call(tf.constant(feed["x"]), tf.constant(feed["y"]))
            return {"w": w.numpy()}

        return run

    for apply in ("in a function", "eagerly"):
        with subtest(apply):
            assert_program_law(program(apply), steps=STEPS)


def case_inner_steps_of_equal_shapes_stay_own() -> None:
    """The losses have the shape of the variable. Metrics and results of the inner step stay each rank's own, too."""
    for shape in ((1,), ()):
        tasks = [np.float32(rank + 0.5) + np.zeros(shape, np.float32) for rank in range(tfdist.size())]
        w, seen = tf.Variable(tf.ones(shape)), tf.Variable(tf.zeros(shape), trainable=False)

        @tf.function
        def step(x: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    loss = (w * x - 1.0) ** 2  # noqa: B023
                moved = w - 0.1 * inner.gradient(loss, w)  # noqa: B023
                losses = (moved * x - 1.0) ** 2
            w.assign_sub(0.1 * outer.gradient(losses, w))  # noqa: B023
            seen.assign(losses)  # noqa: B023
            return losses, moved

        wanted = np.ones(shape)
        with subtest(shape):
            for _ in range(STEPS):
                moved = [wanted - 0.2 * x * (wanted * x - 1) for x in tasks]
                losses = [(m * x - 1) ** 2 for m, x in zip(moved, tasks, strict=True)]
                slopes = [2 * (m * x - 1) * x * (1 - 0.2 * x**2) for m, x in zip(moved, tasks, strict=True)]
                wanted = wanted - 0.1 * np.mean(slopes, axis=0)
                found = step(tasks[tfdist.rank()])
                for one, other in zip(found, (losses[tfdist.rank()], moved[tfdist.rank()]), strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-4)
                np.testing.assert_allclose(w, wanted, rtol=1e-5)
                np.testing.assert_allclose(seen, losses[tfdist.rank()], rtol=1e-4)


def case_a_look_at_gradients_alone_leaves_the_next_step_as_it_is() -> None:
    w, x = tf.Variable([1.0, 2.0], name="w"), tf.constant([1.0, 3.0]) * (tfdist.rank() + 1.0)
    optimizer = v1.train.GradientDescentOptimizer(0.5)

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w * x) ** 2)
        return tape.gradient(loss, w)

    for _ in range(2):
        average = gradient()
        if tfdist.rank() == 0:
            with tfdist.alone("a look"):
                gradient()
        optimizer.apply_gradients([(tf.clip_by_norm(average, 0.1), w)])
    assert_equal_everywhere({"w": w.numpy()})


def by_example(where: str) -> Any:
    """Return a program that clips each example's gradient, as private training does."""

    def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
        w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")
        optimizer = v1.train.GradientDescentOptimizer(0.3)

        def gradient(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2, 1)
            return tf.reduce_mean(tf.clip_by_norm(tape.jacobian(losses, w), 0.5, [1, 2]), 0)

        def step(x: Any, y: Any) -> None:
            optimizer.apply_gradients([(gradient(x, y), w)])

        inside = tf.function(step) if where == "in a function" else step
        outside = tf.function(gradient)
        for feed in feeds:
            x, y = tf.constant(feed["x"]), tf.constant(feed["y"])
            if where == "leaving one":
                optimizer.apply_gradients([(outside(x, y), w)])
            elif where == "leaving one to be assigned":
                w.assign_sub(0.3 * outside(x, y))
            else:
                inside(x, y)
        return {"w": w.numpy()}

    return run


def case_gradients_of_each_example() -> None:
    for where in ("in a function", "leaving one", "eagerly"):
        with subtest(where):
            assert_program_law(by_example(where), steps=STEPS)
    told = refusal(lambda: by_example("leaving one to be assigned")([mine(f) for f in data(steps=2)]))
    assert "w:0 were set" in told and "tfdist.all_reduce" in told, told


def case_gradients_out_of_loops() -> None:
    """An optimizer applies their mean; an assignment is refused, since the loop may have clipped them."""

    def program(apply: Callable[[Any, Any], None], inside: bool) -> Any:
        def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
            w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")

            def total(x: Any, y: Any) -> Any:
                result = tf.zeros([5, 3])
                for k in tf.range(2):
                    with tf.GradientTape() as tape:
                        loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2) * tf.cast(k + 1, tf.float32)
                    result += tape.gradient(loss, w)
                return result

            def step(x: Any, y: Any) -> None:
                apply(w, total(x, y))

            call, outside = tf.function(step), tf.function(total)
            for feed in feeds:
                x, y = tf.constant(feed["x"]), tf.constant(feed["y"])
                call(x, y) if inside else apply(w, outside(x, y))
            return {"w": w.numpy()}

        return run

    def by_optimizer(w: Any, update: Any) -> None:
        v1.train.GradientDescentOptimizer(0.1).apply_gradients([(update, w)])

    def by_hand(w: Any, update: Any) -> None:
        w.assign_sub(0.1 * update)

    for inside in (True, False):
        with subtest("inside" if inside else "outside"):
            assert_program_law(program(by_optimizer, inside), steps=STEPS)
            told = refusal(functools.partial(program(by_hand, inside), [mine(f) for f in data(steps=2)]))
            assert "loop" in told and "all_reduce" in told, told


def case_gradients_that_a_session_hands_out_are_warned_of() -> None:
    """There is one warning, and none if an optimizer averages these gradients."""
    for applied in ("", "others", "these"):
        with subtest(applied), tf.Graph().as_default(), v1.Session() as session:
            loss, variables = graph_loss()
            gradients = tf.gradients(loss, variables)
            if applied == "others":
                v1.train.GradientDescentOptimizer(0.1).minimize(v1.get_variable("other", []) ** 2)
            if applied == "these":
                v1.train.GradientDescentOptimizer(0.1).apply_gradients(list(zip(gradients, variables, strict=True)))
            session.run(v1.global_variables_initializer())
            feed = {f"{name}:0": value for name, value in mine(data(steps=1)[0]).items()}
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    session.run(gradients, feed)
            told = [str(w.message) for w in caught if "this rank's own" in str(w.message)]
            assert len(told) == (applied != "these")
            assert all("gradients of w" in t and "all_reduce" in t for t in told)
            assert all(("in this graph no variable" in t) == (applied == "") for t in told)


def case_strings_begin_with_rank_0s() -> None:
    """Each new string variable starts with rank 0's value, even if only the value differs from an earlier one."""
    trained = tf.Variable(float(tfdist.rank()))
    for _ in range(2):
        text = tf.Variable(f"rank {tfdist.rank()}")
        with tf.GradientTape() as tape:
            loss = trained**2
        assert tape.gradient(loss, trained).numpy() == 0 and text.numpy() == b"rank 0"


def case_a_tape_in_another_thread() -> None:
    """A tape of another thread in ``alone`` does not stop the averaging of this thread's gradients."""
    model, ready, done = Model(), threading.Event(), threading.Event()
    other = tf.Variable(1.0)

    def watch() -> None:
        with tfdist.alone("a look at something else"), tf.GradientTape():
            other.assign(2.0)
            ready.set()
            done.wait(60)

    thread = threading.Thread(target=watch)
    thread.start()
    ready.wait(60)
    try:
        variables = list(model.made.values())
        for feed in data(steps=2):
            with tf.GradientTape() as tape:
                loss = model.loss({n: tf.constant(v) for n, v in mine(feed).items()})
            for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
                variable.assign_sub(0.3 * tf.convert_to_tensor(gradient))
    finally:
        done.set()
        thread.join()
    assert_equal_everywhere(model.values())


def case_an_eager_gradient_travels_once() -> None:
    """A changed average is applied as it is, also after a step with gradients that a tape had recorded."""
    from tests.multirank.inside import job

    model, optimizer = Model(), tf.keras.optimizers.SGD(0.1)
    variables = list(model.made.values())

    def gradients(feed: Feed) -> list[Any]:
        with tf.GradientTape() as tape:
            loss = model.loss({n: tf.constant(v) for n, v in mine(feed).items()})
        return tape.gradient(loss, variables)

    def apply(derivatives: list[Any]) -> None:
        optimizer.apply_gradients(list(zip(derivatives, variables, strict=True)))

    for clipped in (False, True):
        for feed in data(steps=2):
            with tf.GradientTape():
                own = gradients(feed)
            apply(own)
            averages = gradients(feed)
            steps = {c: c.step for c in job().world.kept.values()}
            apply(clip(averages) if clipped else averages)
            assert steps == {c: c.step for c in job().world.kept.values()}, "they travelled again"
    assert_equal_everywhere(model.values())


def case_gradients_that_no_tape_has_made() -> None:
    """An eager optimizer applies them as they are; the comparison after the first step finds the difference."""
    own = tf.one_hot(tfdist.rank(), tfdist.size())
    w, optimizer = tf.Variable(own, name="w"), tf.keras.optimizers.SGD(1.0)
    with tf.GradientTape():
        np.testing.assert_array_equal(w.numpy(), np.eye(tfdist.size())[0])
    optimizer.apply_gradients([(own, w)])
    told = refusal(lambda: optimizer.apply_gradients([(own, w)]))
    assert "the ranks are apart: w:0, which is trained, is 0 on rank 0" in told, told


def case_towers_built_in_another_order() -> None:
    """Names that differ only in a number: values are paired by name; gradients in another order are refused."""
    names = ["tower_1", "tower_2"]
    order = names if tfdist.rank() == 0 else names[::-1]
    towers = {n: tf.Variable(tf.fill([2], float(tfdist.rank() + 10 * int(n[-1]))), name=n) for n in order}
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(v) for v in towers.values())
    for name, variable in towers.items():
        np.testing.assert_array_equal(variable.numpy(), 10 * int(name[-1]), err_msg=name)
    told = refusal(lambda: tape.gradient(loss, list(towers.values())))
    assert "tower_1" in told and "tower_2" in told and "in another order" in told, told


def case_a_shape_that_depends_on_the_rank() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [3 + tfdist.rank(), 2])
        v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w**2))
        told = refusal(lambda: session.run(v1.global_variables_initializer()))
    assert "w:0" in told and "(3, 2)" in told and "(4, 2)" in told, told


def case_variables_that_only_one_rank_still_has() -> None:
    """Garbage collection decides when a rank drops a model, which does not affect variables set by hand."""
    from tests.multirank.cases_programs import Model as Other

    kept = []

    def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model = Model()
        variables = list(model.made.values())
        for feed in feeds:
            other = Other()  # its variables have the same names
            kept.extend([other] * (tfdist.rank() == 0))
            with tf.GradientTape() as tape:
                loss = model.loss({n: tf.constant(v) for n, v in feed.items()})
            for gradient, variable in zip(tape.gradient(loss, variables), variables, strict=True):
                variable.assign_sub(0.3 * tf.convert_to_tensor(gradient))
            for variable in (kept[0] if kept else other).made.values():
                variable.assign(tf.ones_like(variable))
        return model.values()

    assert_program_law(run, steps=STEPS)


def case_variables_are_set_alike_before_the_first_gradient() -> None:
    """As SciPy sets its start: values that are equal on all ranks are kept, and gradients are averaged."""

    def run(feeds: list[Feed], share: Callable[[Any], object]) -> dict[str, np.ndarray]:
        w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")
        share([w])
        w.assign(np.full([5, 3], 0.1, np.float32))
        for feed in feeds:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(feed["x"] @ w) - feed["y"]) ** 2)
            w.assign_sub(0.3 * tape.gradient(loss, w))
        return {"w": w.numpy()}

    expected = one_process(lambda: run(data(steps=STEPS), list))
    found = run([mine(feed) for feed in data(steps=STEPS)], tfdist.broadcast_variables)
    assert_close(found, expected, 1e-5)
    assert_equal_everywhere(found)


def case_a_function_that_is_given_what_it_sets() -> None:
    """As SciPy calls it: equal values on all ranks give averaged gradients, different values are refused."""
    w = tf.Variable(np.zeros(3, np.float32), name="w")

    @tf.function
    def evaluate(values: Any, x: Any) -> Any:
        w.assign(values)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((w - x) ** 2)
        return loss, tape.gradient(loss, w)

    x = tf.constant(float(tfdist.rank()))
    mean = sum(range(tfdist.size())) / tfdist.size()
    for number in range(3):
        _, gradient = evaluate(tf.fill([3], float(number)), x)
        np.testing.assert_allclose(gradient, np.full(3, 2 * (number - mean)), rtol=1e-6)
    told = refusal(lambda: evaluate(tf.fill([3], float(tfdist.rank())), x))
    assert told.startswith("DisagreementError") and "tfdist.broadcast_variables" in told, told


def case_inputs_and_states_of_a_rank_stay_its_own() -> None:
    """Untrained variables may be set to different values on each rank between steps, if the script declares them."""
    given, w = tf.Variable(np.zeros([2, 3], np.float32)), tf.Variable(np.ones(3, np.float32))
    optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(given, w) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    step()  # from now on all variables that it uses have rank 0's values
    tfdist.keep_own(given)
    for number in range(3):
        own = np.full([2, 3], (tfdist.rank() + 1) * (number + 1) * 0.1, np.float32)
        given.assign(own)
        step()
        np.testing.assert_array_equal(given.numpy(), own)


def case_a_penalty_in_a_function_of_its_own() -> None:
    """The code around the penalty differentiates its gradient, which stays the rank's own."""
    for function in (True, False):

        def run(feeds: list[Feed], function: bool = function) -> dict[str, np.ndarray]:
            w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")

            def loss(x: Any, y: Any) -> Any:
                return tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)

            @tf.function
            def penalty(x: Any) -> Any:  # of the same rows on all ranks
                with tf.GradientTape() as tape:
                    small = tf.reduce_mean(tf.tanh(x @ w) ** 2)
                return tf.reduce_sum(tape.gradient(small, w) ** 2)

            def step(x: Any, y: Any) -> None:
                with tf.GradientTape() as tape:
                    total = loss(x, y) + penalty(tf.ones([4, 5]))
                w.assign_sub(0.3 * tape.gradient(total, w))

            call = tf.function(step) if function else step
            for feed in feeds:
                call(tf.constant(feed["x"]), tf.constant(feed["y"]))
            return {"w": w.numpy()}

        with subtest("function" if function else "eager"):
            assert_program_law(run, steps=STEPS)


def case_functions_traced_alone_are_not_used_together() -> None:
    w = tf.Variable(np.ones(3, np.float32))

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * x)
        found = tape.gradient(loss, w)
        return found, tf.norm(found)

    together, apart = tf.function(gradient), tf.function(gradient)
    together(tf.ones(3))
    with tfdist.alone("a look at a gradient"):
        assert "Make another tf.function of it inside" in refusal(lambda: together(tf.ones(3)))
        own, _ = apart(tf.fill([3], 1.0 + tfdist.rank()))
        np.testing.assert_array_equal(own, np.full(3, 1.0 + tfdist.rank()))
    assert "Make another tf.function of it outside" in refusal(lambda: apart(tf.ones(3)))
