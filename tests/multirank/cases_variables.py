"""Rank 0's values: each rank draws its own initial values, and all ranks must start and continue with rank 0's."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.inside import broadcasts, everywhere, job, state_of
from tests.multirank.oracle import data, mine, model, v1, without_tfdist
from tests.named import subtest
from tfdist.transport.interfaces import Channel


def graph_with_model(seed: int, **options: Any) -> tuple[tf.Graph, Any]:
    graph = tf.Graph()
    with graph.as_default():
        v1.set_random_seed(seed)
        loss, _ = model(**options)
        step = v1.train.AdamOptimizer(0.05).minimize(loss, global_step=v1.train.get_or_create_global_step())
    return graph, step


def values(session: v1.Session) -> dict[str, np.ndarray]:
    variables = session.graph.get_collection("variables")
    return dict(zip([v.name for v in variables], session.run(variables), strict=True))


def assert_equal_on_all_ranks(found: dict[str, np.ndarray]) -> None:
    everyone = everywhere(found)
    for other in everyone:
        assert other.keys() == everyone[0].keys()
        for name, value in other.items():
            np.testing.assert_array_equal(value, everyone[0][name], name)


def assert_different_on_the_ranks(found: dict[str, np.ndarray]) -> None:
    everyone = everywhere(found["w:0"])
    assert all(np.any(other != everyone[0]) for other in everyone[1:])


def feed(number: int = 0) -> dict[str, np.ndarray]:
    return {f"{name}:0": value for name, value in mine(data(steps=number + 1)[number]).items()}


def starts_alike(initialise: Callable[[v1.Session], None], **options: Any) -> None:
    """Assert that all ranks hold equal values after ``initialise`` and three steps."""
    graph, step = graph_with_model(tfdist.rank(), **options)
    with v1.Session(graph=graph) as session:
        with graph.as_default():
            initialise(session)
        for number in range(3):
            session.run(step, feed(number))
        assert_equal_on_all_ranks(values(session))


def nodes(graph: tf.Graph) -> list[str]:
    """Return the names of the communication nodes of a graph."""
    return [op.name for op in graph.get_operations() if "PyFunc" in op.type]


def case_one_fused_node_behind_the_initialiser() -> None:
    graph, _ = graph_with_model(tfdist.rank())
    with graph.as_default():
        before = nodes(graph)
        init = v1.global_variables_initializer()
        added = [n for n in nodes(graph) if n not in before]
    assert len(added) == (tfdist.size() > 1), added
    with v1.Session(graph=graph) as session:
        session.run(init)
        assert_equal_on_all_ranks(values(session))


def case_only_values_that_differ_travel() -> None:
    """With the initialiser those that each rank has drawn; before the first step those that were set since."""
    graph, step = graph_with_model(tfdist.rank())
    control, sent = job().world.control, Counter[int]()
    send = type(control).broadcast

    def counting(channel: Channel, array: np.ndarray, root: int = 0) -> None:
        sent.update([array.size] if channel is control else [])
        send(channel, array, root)  # type: ignore[arg-type]

    with v1.Session(graph=graph) as session, mock.patch.object(type(control), "broadcast", counting):
        with graph.as_default():
            session.run(v1.global_variables_initializer())
        several = tfdist.size() > 1
        # w, b and e; not s, the global step, and Adam's powers and moments
        assert sent == (Counter([15, 3, 21]) if several else Counter()), sent
        sent.clear()
        with graph.as_default():
            v1.trainable_variables()[1].load(np.full(3, tfdist.rank(), np.float32), session)
        session.run(step, feed())
        assert sent == (Counter([3]) if several else Counter()), sent
        assert_equal_on_all_ranks(values(session))


def case_an_initial_value_that_is_broadcast() -> None:
    rank, last = tfdist.rank(), tfdist.size() - 1
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=tfdist.broadcast(tf.constant([1.0, rank]), last))
        step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w) * (rank + 1))
        session.run(v1.global_variables_initializer())
        np.testing.assert_array_equal(session.run(w), [1, last])
        session.run(step)
        np.testing.assert_allclose(session.run(w), np.array([1, last]) - (1 + last / 2), rtol=1e-6)


def case_aliases_and_partial_initialisers_have_the_node_too() -> None:
    builds: dict[str, Callable[[], Any]] = {
        "initialize_all_variables": v1.initialize_all_variables,
        "initializers.global_variables": v1.initializers.global_variables,
        "variables_initializer": lambda: v1.variables_initializer(v1.trainable_variables()),
        "initializers.variables": lambda: v1.initializers.variables(v1.trainable_variables()),
        "initialize_variables": lambda: v1.initialize_variables(v1.trainable_variables()),
    }
    for name, build in builds.items():
        graph, _ = graph_with_model(tfdist.rank())
        with graph.as_default(), v1.Session() as session:
            session.run(build())
            found = dict(zip("wbse", session.run(v1.trainable_variables()), strict=True))
            everyone = everywhere(found)
            np.testing.assert_array_equal(found["w"], everyone[0]["w"], err_msg=name)


def case_local_variables_stay_local() -> None:
    graph, _ = graph_with_model(0)
    with graph.as_default(), v1.Session() as session:
        local = v1.get_variable(
            "local", initializer=float(tfdist.rank()), trainable=False, collections=["local_variables"]
        )
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        assert session.run(local) == tfdist.rank()


def case_integers_strings_scalars_and_reduced_precision_are_broadcast() -> None:
    graph, _ = graph_with_model(0)
    with graph.as_default(), v1.Session() as session:
        rank = tfdist.rank()
        others = [
            v1.get_variable("i", initializer=tf.constant([rank, 2], tf.int64), trainable=False),
            v1.get_variable("t", initializer=tf.constant(rank == 0), trainable=False),
            v1.get_variable("h", initializer=tf.constant([rank], tf.bfloat16), trainable=False),
            v1.get_variable("n", initializer=tf.constant(f"rank {rank}"), trainable=False),
            v1.get_variable("none", initializer=tf.zeros([0, 3]), trainable=False),
        ]
        session.run(v1.global_variables_initializer())
        integers, truth, half, name, none = session.run(others)
        assert list(integers) == [0, 2] and truth and half[0] == 0 and name == b"rank 0" and none.shape == (0, 3)


def case_first_step_covers_other_ways_to_start() -> None:
    starts_alike(lambda s: s.run([v.initializer for v in v1.global_variables()]))
    starts_alike(lambda s: s.run([v.initializer for v in v1.global_variables()]), use_resource=False)
    starts_alike(lambda s: s.run(v1.global_variables_initializer()))
    starts_alike(lambda s: s.run(v1.global_variables_initializer()), use_resource=False)


def case_only_rank_0_initialises() -> None:
    for use_resource in (True, False):

        def initialise(session: v1.Session) -> None:
            if tfdist.rank() == 0:
                session.run([v.initializer for v in v1.global_variables()])

        with subtest("use_resource", use_resource):
            starts_alike(initialise, use_resource=use_resource)


def case_rank_0_restores_while_the_others_initialise() -> None:
    """Rank 0 begins its first step while the others run their initializers: the broadcasts match."""
    directory = Path(tfdist.broadcast(tempfile.mkdtemp() if tfdist.rank() == 0 else None))
    graph, step = graph_with_model(7)
    with graph.as_default(), v1.Session() as session:
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        session.run(step, feed())
        saved = values(session)
        if tfdist.rank() == 0:
            saver.save(session, str(directory / "model"))
    graph, step = graph_with_model(tfdist.rank())
    with graph.as_default(), v1.Session() as session:
        saver = v1.train.Saver()
        init = v1.global_variables_initializer()
        graph.finalize()
        if tfdist.rank() == 0:
            saver.restore(session, str(directory / "model"))
        else:
            session.run(init)
        session.run(step, feed(1))
        assert values(session)["global_step:0"] == 2
        assert_equal_on_all_ranks(values(session))
        assert np.max(np.abs(values(session)["w:0"] - saved["w:0"])) < 0.1


def case_rank_0_restores_late() -> None:
    """The next step applies rank 0's gradient alone; from the step after it, all ranks are equal again."""
    directory = Path(tfdist.broadcast(tempfile.mkdtemp() if tfdist.rank() == 0 else None))
    graph, step = graph_with_model(tfdist.rank())
    with graph.as_default(), v1.Session() as session:
        saver = v1.train.Saver()
        session.run(v1.global_variables_initializer())
        if tfdist.rank() == 0:
            saver.save(session, str(directory / "model"))
        start = values(session)
        for number in range(3):
            session.run(step, feed(number))
        if tfdist.rank() == 0:
            saver.restore(session, str(directory / "model"))
        session.run(step, feed())
        after_one = values(session)
        session.run(step, feed(1))
        assert_equal_on_all_ranks(values(session))
        assert values(session)["global_step:0"] == 2
        if tfdist.rank() == 0:
            with tf.Graph().as_default(), v1.Session() as alone:
                v1.set_random_seed(0)
                loss, variables = model()
                gradients = tf.gradients(loss, variables[:1])
                for variable in variables:
                    variable.load(start[variable.name], alone)
                gradients = alone.run(gradients, feed())
            # Adam's first step moves every entry by the learning rate against its gradient's sign.
            moved = after_one["w:0"] - start["w:0"]
            np.testing.assert_array_equal(np.sign(moved), -np.sign(gradients[0]))


def case_initialising_again_in_the_middle() -> None:
    graph, step = graph_with_model(tfdist.rank())
    with graph.as_default(), v1.Session() as session:
        init = v1.global_variables_initializer()
        for _ in range(2):
            session.run(init)
            assert_equal_on_all_ranks(values(session))
            for number in range(2):
                session.run(step, feed(number))
            assert_equal_on_all_ranks(values(session))
        session.run([v.initializer for v in v1.global_variables()])
        for number in range(2):
            session.run(step, feed(number))
        assert_equal_on_all_ranks(values(session))


def case_several_sessions_and_make_callable() -> None:
    graph, step = graph_with_model(tfdist.rank())
    with graph.as_default():
        init = v1.global_variables_initializer()
    for _ in range(2):
        with v1.Session(graph=graph) as session:
            session.run([v.initializer for v in graph.get_collection("variables")])
            inputs = [graph.get_tensor_by_name(f"{n}:0") for n in "xyi"]
            run = session.make_callable(step, inputs)
            run(*(feed()[t.name] for t in inputs))
            assert_equal_on_all_ranks(values(session))
            session.run(init)


def case_monitored_session_resumes_alike() -> None:
    """Only rank 0 sees the checkpoint; a hook that counts from the restored step must count equally on all ranks."""
    directory = tfdist.broadcast(tempfile.mkdtemp() if tfdist.rank() == 0 else None)
    counts = []
    for _ in range(2):
        graph, step = graph_with_model(tfdist.rank())
        with graph.as_default():
            hooks = [v1.train.StopAtStepHook(num_steps=3)]
            mine_only = directory if tfdist.rank() == 0 else None
            count = 0
            with v1.train.MonitoredTrainingSession(
                checkpoint_dir=mine_only, hooks=hooks, log_step_count_steps=None, save_checkpoint_secs=600
            ) as session:
                while not session.should_stop():
                    session.run({"train": step}, feed())
                    count += 1
            counts.append(count)
    assert counts == [3, 3], counts


def case_monitored_sessions_of_other_checkpoints_resume_alike() -> None:
    """Each rank has a folder of its own, and rank 0's checkpoint is newer: hooks must count from rank 0's step."""
    with tempfile.TemporaryDirectory() as folder:

        def trained(stop: Any) -> int:
            graph, step = graph_with_model(tfdist.rank())
            count = 0
            with (
                graph.as_default(),
                v1.train.MonitoredTrainingSession(
                    checkpoint_dir=folder, hooks=[stop], log_step_count_steps=None, save_checkpoint_steps=1
                ) as session,
            ):
                while not session.should_stop():
                    session.run({"train": step}, feed())
                    count += 1
            return count

        assert trained(v1.train.StopAtStepHook(last_step=3)) == 3
        if tfdist.rank():
            known = v1.train.get_checkpoint_state(folder).all_model_checkpoint_paths
            assert known[-2].endswith("-2"), known
            v1.train.update_checkpoint_state(folder, known[-2])
        assert trained(v1.train.StopAtStepHook(num_steps=3)) == 3


def case_disabled_broadcast_leaves_the_ranks_their_values() -> None:
    """No node and no synchronization, but averages; leaving the context restores the previous setting."""
    with tfdist.disable_broadcast():
        graph, step = graph_with_model(tfdist.rank())
        with graph.as_default():
            before = len(nodes(graph))
            init = v1.global_variables_initializer()
            assert len(nodes(graph)) == before
        with tfdist.enable_broadcast():
            assert broadcasts()
        assert not broadcasts()
    assert broadcasts()
    with v1.Session(graph=graph) as session:
        session.run(init)
        start = values(session)
        assert_different_on_the_ranks(start)
        session.run(step, feed())
        assert_different_on_the_ranks(values(session))
    tfdist.disable_bcast()
    assert not broadcasts()
    tfdist.enable_bcast()
    assert broadcasts()

    with tf.Graph().as_default(), v1.Session() as session:  # the ranks apply equal gradients to different values
        with tfdist.disable_broadcast():
            w = v1.get_variable("w", initializer=[float(tfdist.rank())])
            loss = tf.reduce_sum(w) * float(tfdist.rank())
            step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
            session.run(v1.global_variables_initializer())
            session.run(step)
        np.testing.assert_allclose(session.run(w), [tfdist.rank() - (tfdist.size() - 1) / 2])


def case_graphs_without_an_optimizer_hold_no_communication() -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        loss, variables = model()
        gradients = tf.gradients(loss, variables)
        session.run(v1.global_variables_initializer())
        if tfdist.rank() == 0:  # one rank may run it alone
            session.run([loss, *(tf.convert_to_tensor(g) for g in gradients)], feed())
        assert nodes(graph) == []


def case_number_of_nodes_in_a_training_graph() -> None:
    graph, _ = graph_with_model(0)
    # One bucket for the dense gradients and one exchange of rows, each with a node to start and a node to finish.
    assert len(nodes(graph)) == (4 if tfdist.size() > 1 else 0)


def case_what_is_off_adds_no_node() -> None:
    """The exchange and the broadcast add known nodes; the other settings add no node of any type."""

    def in_a_graph() -> Counter[str]:
        with tf.Graph().as_default() as graph:
            w, table = v1.get_variable("w", [5, 3]), v1.get_variable("table", [7, 3])
            x, i = v1.placeholder(tf.float32, [None, 5]), v1.placeholder(tf.int64, [None])
            loss = tf.reduce_mean((x @ w + tf.nn.embedding_lookup(table, i)) ** 2)
            v1.train.AdamOptimizer(0.05).minimize(loss, global_step=v1.train.get_or_create_global_step())
            v1.global_variables_initializer()
        return Counter(op.type for op in graph.get_operations())

    def in_a_function() -> Counter[str]:
        w, optimizer = tf.Variable(tf.ones([5, 3])), keras.optimizers.SGD(0.1)

        @tf.function
        def step(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w) ** 2)
            optimizer.apply(tape.gradient(loss, [w]), [w])

        return Counter(op.type for op in step.get_concrete_function(tf.ones([2, 5])).graph.get_operations())

    found = in_a_graph(), in_a_function()
    with without_tfdist():
        plain = in_a_graph(), in_a_function()
    # Ten variables, which rank 0's values may replace; a bucket; the rows of the table, merged and sorted first.
    exchange = {
        **{"AssignVariableOp": 9, "Identity": 1, "NoOp": 1, "PlaceholderWithDefault": 2, "PyFunc": 5},
        **{"ReadVariableOp": 9, "Size": 1, "Unique": 1, "UnsortedSegmentSum": 1},
        **{"Const": 2, "GatherV2": 2, "InvertPermutation": 1, "Neg": 1, "TopKV2": 1},
    }
    several = tfdist.size() > 1
    assert found[0] - plain[0] == Counter(exchange if several else {}), found[0] - plain[0]
    assert found[1] - plain[1] == Counter({"Identity": 1, "PyFunc": 1} if several else {}), found[1] - plain[1]
    assert not (plain[0] - found[0] or plain[1] - found[1])


def case_a_second_optimizer_after_the_first_run() -> None:
    """The graph has already run: ``apply_gradients`` averages, with a warning and the right result."""
    import warnings

    graph, _ = graph_with_model(tfdist.rank())
    with graph.as_default(), v1.Session() as session:
        w = graph.get_collection("trainable_variables")[0]
        gradient = tf.gradients(tf.reduce_sum(w * float(tfdist.rank())), [w])[0]
        session.run(v1.global_variables_initializer())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, w)])
        assert any("already run" in str(c.message) for c in caught)
        before = session.run(w)
        session.run(step)
        np.testing.assert_allclose(session.run(w), before - (tfdist.size() - 1) / 2, rtol=1e-5)


def case_a_session_outside_its_graph() -> None:
    graph, step = graph_with_model(tfdist.rank())
    with graph.as_default():
        initializer = v1.global_variables_initializer()
    session = v1.Session(graph=graph)
    session.run(initializer)
    session.run(step, feed())
    session.close()


def case_gradients_in_variables_and_arrays() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [2], initializer=v1.zeros_initializer())
        u = v1.get_variable("u", [2], initializer=v1.zeros_initializer())
        kept = v1.get_variable("kept", [2], initializer=v1.zeros_initializer(), trainable=False)
        accumulate = kept.assign_add([1.0 + tfdist.rank(), 2.0])
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        step = optimizer.apply_gradients([(kept, w), (np.full(2, tfdist.rank(), np.float32), u)])
        session.run(v1.global_variables_initializer())
        session.run(accumulate)
        session.run(step)  # averages what each rank has accumulated
        ranks: Any = np.arange(tfdist.size())
        np.testing.assert_allclose(session.run(w), [-np.mean(1 + ranks), -2], rtol=1e-6)
        np.testing.assert_allclose(session.run(u), -np.mean(ranks), rtol=1e-6)
        np.testing.assert_allclose(session.run(kept), [1 + tfdist.rank(), 2])


def case_variables_made_from_one_tensor() -> None:
    """Rank 0 alone restores them; each variable keeps its own value."""
    with tf.Graph().as_default(), v1.Session() as session:
        zeros = tf.zeros([2])
        a, b = (v1.get_variable(name, initializer=zeros) for name in "ab")
        step = v1.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_sum(a * b))
        session.run(v1.global_variables_initializer())
        if tfdist.rank() == 0:
            a.load([1, 2], session)
            b.load([3, 4], session)
        session.run(step)
        np.testing.assert_array_equal(session.run([a, b]), [[1, 2], [3, 4]])


def case_an_update_in_a_condition_of_gradients_outside() -> None:
    v1.disable_control_flow_v2()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            w = v1.get_variable("w", [2], initializer=v1.zeros_initializer())
            optimizer = v1.train.GradientDescentOptimizer(1.0)
            pairs = optimizer.compute_gradients(tf.reduce_sum(w) * float(tfdist.rank()))
            finite = tf.math.is_finite(tf.linalg.global_norm([g for g, _ in pairs]))
            step = v1.cond(finite, lambda: optimizer.apply_gradients(pairs), lambda: tf.no_op())
            session.run(v1.global_variables_initializer())
            session.run(step)
            np.testing.assert_allclose(session.run(w), -(tfdist.size() - 1) / 2)
    finally:
        v1.enable_control_flow_v2()


def case_an_initialiser_made_after_the_block_that_disables_broadcast() -> None:
    with tf.Graph().as_default() as graph, v1.Session() as session:
        with tfdist.disable_broadcast():
            w = v1.get_variable("w", initializer=[float(tfdist.rank())])
            v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w))
        initializer = v1.global_variables_initializer()
        session.run(initializer)
        assert session.run(w) == tfdist.rank()
        assert not [op for op in graph.get_operations() if "tfdist/broadcast" in op.name]


def case_a_metric_built_without_broadcast_does_not_switch_it_off() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", initializer=[float(tfdist.rank())])
        with tfdist.disable_broadcast():
            tfdist.all_reduce(tf.reduce_sum(w))
        step = v1.train.GradientDescentOptimizer(0.0).minimize(tf.reduce_sum(w))
        session.run(w.initializer)
        session.run(step)
        assert session.run(w) == 0


def case_shapes_that_differ_at_run_time() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        values = v1.placeholder("float32", [None])
        total = tfdist.all_reduce(values, "sum")
        np.testing.assert_array_equal(session.run(total, {values: [1, 1, 1]}), [tfdist.size()] * 3)
        try:
            session.run(total, {values: np.ones(3 + 2 * (tfdist.rank() % 2))})
        except tfdist.DisagreementError as error:
            assert "of shape [(3,)]" in str(error) and "of shape [(5,)]" in str(error)
        else:
            raise AssertionError("different shapes were added")


def case_two_unordered_updates_in_one_run_are_warned_of() -> None:
    import warnings

    with tf.Graph().as_default(), v1.Session() as session:
        w, u, x = (v1.get_variable(name, [2], initializer=v1.ones_initializer()) for name in "wux")
        optimizer = v1.train.GradientDescentOptimizer(1.0)
        first = optimizer.minimize(tf.reduce_sum(w), var_list=[w])
        with tf.control_dependencies([first]):
            second = optimizer.minimize(tf.reduce_sum(u * tf.identity(w)), var_list=[u])
        third = optimizer.minimize(tf.reduce_sum(x), var_list=[x])
        session.run(v1.global_variables_initializer())
        state = state_of(session.graph)
        assert state.reach([first]).unordered == () == state.reach([second]).unordered
        assert len(state.reach([first, third]).unordered) == 2
        assert len(state.reach([second, third]).unordered) == 2
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session.run(first)
            assert not caught
