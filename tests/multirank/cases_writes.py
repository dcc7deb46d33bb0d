"""Training without an optimizer: ``assign`` and similar calls write gradients to variables, or NumPy does."""

from __future__ import annotations

import functools
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import Model, assert_equal_everywhere, assert_program_law, clip, refusal
from tests.multirank.inside import everywhere
from tests.multirank.oracle import Feed, assert_close, data, merged, mine, one_process, placeholders, train, v1
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


def scattered(_: Any, gradients: list[Any], variables: list[Any]) -> Any:
    dense, rows = gradients
    update = v1.scatter_sub(variables[1], rows.indices, 0.3 * rows.values)
    return tf.group(v1.assign_sub(variables[0], 0.3 * dense), update)


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


def case_graphs_that_assign() -> None:
    """All variables are compared but accumulators: between two updates, each rank has its own values there."""
    feeds = data(steps=STEPS)
    for update in (adam_by_hand, clipped_sgd, raw_operations, scattered, one_at_a_time, accumulated):
        for resource in (True,) if update in (raw_operations, accumulated) else (True, False):
            with subtest(update, "resource" if resource else "reference"):
                build = in_graph(update, resource)
                expected = one_process(functools.partial(train, build, feeds))
                found = train(build, [mine(f) for f in feeds], tfdist.rank())
                own = [name for name in expected if name.endswith("_sum:0")]
                assert_close({n: v for n, v in found.items() if n not in own}, _without(expected, own), 1e-5)


def _without(values: dict[str, np.ndarray], names: list[str]) -> dict[str, np.ndarray]:
    return {n: v for n, v in values.items() if n not in names}


def case_one_message_for_what_is_assigned() -> None:
    """One message for all variables; accumulated gradients travel when they are applied."""
    from tfdist.graph.graph_state import make_state

    for update, messages in ((adam_by_hand, 1), (one_at_a_time, 1), (accumulated, 1)):
        with subtest(update), tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            in_graph(update)()
            session.run(v1.global_variables_initializer())
            assert len(make_state(graph).collectives) == messages


def case_an_assignment_after_the_first_run_is_refused() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        loss, variables = graph_loss()
        gradients = tf.gradients(loss, variables)
        session.run(v1.global_variables_initializer())
        step = v1.assign_sub(variables[0], gradients[0], name="late")
        told = refusal(lambda: session.run(step))
    assert "AssignSub" in told and "already run" in told and "all_reduce" in told, told


def case_inner_steps_in_a_graph_stay_own() -> None:
    """Meta-learning: the inner gradient, which is differentiated again, is not averaged; the outer gradient is."""

    def build() -> Any:
        loss, (w, e) = graph_loss()
        p = tf.compat.v1.get_default_graph().get_tensor_by_name
        (inner,) = tf.gradients(loss, [w])
        outer = tf.reduce_mean((p("x:0") @ (w - 0.5 * inner) - p("y:0")) ** 2)
        seen = v1.get_variable("seen", [], initializer=v1.zeros_initializer(), trainable=False)
        updates = [v1.assign_sub(w, 0.1 * tf.gradients(outer, [w])[0])]
        return tf.group(*updates, seen.assign(outer), e.assign(e))

    feeds = data(steps=STEPS)

    def parts() -> dict[str, np.ndarray]:
        """Return the reference: each rank's share is a task, and one process averages their outer gradients."""
        size, values = tfdist.size(), None
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            v1.set_random_seed(0)
            loss, (w, e) = graph_loss()
            p = graph.get_tensor_by_name
            (inner,) = tf.gradients(loss, [w])
            outer = tf.reduce_mean((p("x:0") @ (w - 0.5 * inner) - p("y:0")) ** 2)
            (gradient,) = tf.gradients(outer, [w])
            session.run(v1.global_variables_initializer())
            values, rows = session.run([w, e])
            for feed in feeds:
                total = 0
                for rank in range(size):
                    part = {f"{n}:0": v[rank::size] for n, v in feed.items()}
                    w.load(values, session)
                    total = total + session.run(gradient, part)
                values = values - 0.1 * total / size
        return {"w:0": values, "e:0": rows}

    found = train(build, [mine(f) for f in feeds], tfdist.rank())
    losses = everywhere(found.pop("seen:0"))
    assert len({float(x) for x in losses}) == tfdist.size(), losses
    assert_close(found, one_process(parts), 1e-5)


def by_function(apply: Callable[[Any, list[Any], list[Any]], None], clipped: bool = False) -> Any:
    """Return a program with a function that returns gradients, loss and their norm."""

    def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model = Model()
        variables = list(model.made.values())

        @tf.function
        def compute(feed: Feed) -> Any:
            with tf.GradientTape() as tape:
                loss = model.loss(feed)
            gradients = [merged(g) for g in tape.gradient(loss, variables)]
            return loss, clip(gradients) if clipped else gradients, tf.linalg.global_norm(gradients)

        norms = []
        for feed in feeds:
            loss, gradients, norm = compute({n: tf.constant(v) for n, v in feed.items()})
            apply(loss, gradients, variables)
            norms.append(norm.numpy())
        return {**model.values(), "norms": np.array(norms)}

    return run


def case_gradients_that_leave_a_function_and_are_assigned() -> None:
    def assign(_: Any, gradients: list[Any], variables: list[Any]) -> None:
        for gradient, variable in zip(gradients, variables, strict=True):
            variable.assign_sub(0.3 * tf.convert_to_tensor(gradient))

    def through_numpy(_: Any, gradients: list[Any], variables: list[Any]) -> None:
        flat = np.concatenate([tf.convert_to_tensor(g).numpy().ravel() for g in gradients])
        start = 0
        for variable in variables:
            size = int(np.prod(variable.shape))
            variable.assign(variable.numpy() - 0.3 * flat[start : start + size].reshape(variable.shape))
            start += size

    for apply in (assign, through_numpy):
        for clipped in (True, False):
            with subtest(apply, clipped):
                assert_program_law(by_function(apply, clipped), steps=STEPS)


def case_eager_updates_by_hand() -> None:
    def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
        model = Model()
        for feed in feeds:
            with tf.GradientTape() as tape:
                loss = model.loss({n: tf.constant(v) for n, v in feed.items()})
            variables = list(model.made.values())
            for gradient, variable in zip(clip(tape.gradient(loss, variables)), variables, strict=True):
                variable.assign_sub(0.3 * tf.convert_to_tensor(gradient))
        return model.values()

    assert_program_law(run, steps=STEPS)


def newton(function: bool, apply: Callable[[Any, Any], None]) -> Any:
    """Return a program with Newton's method, as in TensorFlow's guide of advanced differentiation."""

    def run(feeds: list[Feed]) -> dict[str, np.ndarray]:
        w = tf.Variable(tf.random.normal([5, 3], stddev=0.3), name="w")

        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as second:
                with tf.GradientTape() as first:
                    loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
                gradient = first.gradient(loss, w)
            hessian = tf.reshape(second.jacobian(gradient, w), [15, 15])
            apply(w, tf.reshape(tf.linalg.solve(hessian + tf.eye(15), tf.reshape(gradient, [15, 1])), [5, 3]))

        call = tf.function(step) if function else step
        for feed in feeds:
            call(tf.constant(feed["x"]), tf.constant(feed["y"]))
        return {"w": w.numpy()}

    return run


def case_newtons_method() -> None:
    def by_optimizer(w: Any, update: Any) -> None:
        v1.train.GradientDescentOptimizer(1.0).apply_gradients([(update, w)])

    def by_hand(w: Any, update: Any) -> None:
        w.assign_sub(update)

    for function, apply in ((True, by_optimizer), (True, by_hand), (False, by_optimizer)):
        with subtest("function" if function else "eager", apply):
            assert_program_law(newton(function, apply), steps=STEPS, tolerance=1e-4)
    told = refusal(lambda: newton(False, by_hand)([mine(f) for f in data(steps=2)]))
    assert "are not averaged: another tape records" in told and "tf.function" in told, told


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


def case_values_set_between_steps() -> None:
    """Reptile's outer loop, and a fold's new start: the values were read or saved before rank 0's arrived."""
    for function, restored in ((True, False), (False, False), (True, True)):

        def run(feeds: list[Feed], function: bool = function, restored: bool = restored) -> dict[str, np.ndarray]:
            model, optimizer = Model(), tf.keras.optimizers.SGD(0.3)
            variables = list(model.made.values())
            start = [v.numpy() for v in variables]
            directory = tempfile.TemporaryDirectory()
            saved = tf.train.Checkpoint(**model.made).write(f"{directory.name}/start")

            def step(feed: Feed) -> None:
                with tf.GradientTape() as tape:
                    loss = model.loss(feed)
                optimizer.apply_gradients(list(zip(tape.gradient(loss, variables), variables, strict=True)))

            call = tf.function(step) if function else step
            for number, feed in enumerate(feeds):
                if number == 3 and restored:
                    tf.train.Checkpoint(**model.made).read(saved)
                elif number == 3:
                    for variable, value in zip(variables, start, strict=True):
                        variable.assign(value)
                call({n: tf.constant(v) for n, v in feed.items()})
            return model.values()

        with subtest("function" if function else "eager", "restored" if restored else "assigned"):
            assert_program_law(run, steps=STEPS)


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
    from tests.multirank.inside import job

    model, optimizer = Model(), tf.keras.optimizers.SGD(0.1)
    variables = list(model.made.values())
    for clipped in (False, True):
        for feed in data(steps=2):
            with tf.GradientTape() as tape:
                loss = model.loss({n: tf.constant(v) for n, v in mine(feed).items()})
            gradients = tape.gradient(loss, variables)
            steps = {c: c.step for c in job().world.kept.values()}
            optimizer.apply_gradients(list(zip(clip(gradients) if clipped else gradients, variables, strict=True)))
            assert steps == {c: c.step for c in job().world.kept.values()}, "they travelled again"
    assert_equal_everywhere(model.values())


def case_the_same_values_in_another_order() -> None:
    """Ranks have the same values in different places: the comparison before sending finds the difference."""
    size, own = tfdist.size(), tf.one_hot(2 * tfdist.rank(), 2 * tfdist.size())
    w = tf.Variable(own, name="w")
    with tf.GradientTape():
        np.testing.assert_array_equal(w.numpy(), np.eye(2 * size)[0])
    tf.keras.optimizers.SGD(1.0).apply_gradients([(own, w)])
    np.testing.assert_allclose(w.numpy(), np.eye(2 * size)[0] - np.tile([1 / size, 0], size), rtol=1e-6)


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


def case_variables_of_a_loaded_model() -> None:
    """They have another class, but also get rank 0's values before the first gradient."""
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        with tfdist.alone("saving a model"):
            saved = Model()
            saved.call = tf.function(lambda x: tf.tanh(x @ saved.made["w"]), [tf.TensorSpec([None, 5])])
            tf.saved_model.save(saved, directory)
        tfdist.barrier()
        loaded = tf.saved_model.load(directory)
    variables, optimizer = [loaded.made["w"]], tf.keras.optimizers.Adam(0.1)
    first = everywhere(variables[0].numpy())[0]
    feeds = data(steps=1)

    def step(feed: Feed, w: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((loaded.call(tf.constant(feed["x"])) - feed["y"]) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    step(mine(feeds[0]), variables[0])

    def expected() -> dict[str, np.ndarray]:
        w, adam = tf.Variable(first), tf.keras.optimizers.Adam(0.1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(feeds[0]["x"] @ w) - feeds[0]["y"]) ** 2)
        adam.apply_gradients([(tape.gradient(loss, w), w)])
        return {"w": w.numpy()}

    assert_close({"w": variables[0].numpy()}, one_process(expected), 1e-5)


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
    """Untrained variables may be set to different values on each rank between steps."""
    given, w = tf.Variable(np.zeros([2, 3], np.float32)), tf.Variable(np.ones(3, np.float32))
    optimizer = tf.keras.optimizers.SGD(0.1)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(given, w) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])

    step()  # from now on all variables that it uses have rank 0's values
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
