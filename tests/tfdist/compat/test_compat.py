"""Internals of TensorFlow and Keras that tfdist uses: one test for each; its name says which one has changed."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.compat import datasets, eager, graphs, keras_fit, objects, optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.devices import devices_are_known

v1 = tf.compat.v1


class TestGraphs:
    def test_which_tensors_are_symbolic(self) -> None:
        assert not graphs.is_symbolic(tf.constant(1.0))
        with tf.Graph().as_default():
            assert graphs.is_symbolic(tf.constant(1.0))

    def test_the_kinds_of_graphs(self) -> None:
        seen: list[tf.Graph] = []

        @tf.function
        def outer(x: tf.Tensor) -> tf.Tensor:
            def branch() -> tf.Tensor:
                seen.append(v1.get_default_graph())
                return x

            seen.append(v1.get_default_graph())
            return tf.cond(x > 0, branch, lambda: -x)

        outer(tf.constant(1.0))
        own, inner = seen
        plain = tf.Graph()
        assert [graphs.is_of_function(g) for g in (own, inner, plain)] == [True, True, False]
        assert [graphs.is_plain_function(g) for g in (own, inner, plain)] == [True, False, False]
        found = {id(g) for g in objects.existing(tf.Graph)}
        assert {id(g) for g in (own, inner, plain)} <= found

    def test_reference_dtypes(self) -> None:
        with tf.Graph().as_default():
            old, new = (v1.get_variable(f"w{use}", [1], use_resource=use) for use in (False, True))
            assert graphs.is_reference(old.op.outputs[0].dtype)
            assert not graphs.is_reference(new.handle.dtype)

    def test_the_order_and_the_inputs_of_operations(self) -> None:
        with tf.Graph().as_default(), v1.Session() as session:
            one, two = tf.constant(1.0), tf.constant(2.0)
            result = tf.identity(one)
            assert graphs.order(one.op) < graphs.order(two.op) < graphs.order(result.op)
            graphs.replace_input(result.op, 0, two)
            assert session.run(result) == 2

    def test_conditions_and_loops_of_tensorflow_1(self) -> None:
        with tf.Graph().as_default() as graph:
            v1.disable_control_flow_v2()
            try:
                found: list[list[Any]] = []

                def branch() -> tf.Tensor:
                    found.append(graphs.control_flow_around(graph))
                    with graphs.without_control_dependencies(graph, outside.op):
                        found.append(graphs.control_flow_around(graph))
                    return tf.constant(1)

                outside = tf.constant(True)
                v1.cond(outside, branch, lambda: tf.constant(2))
            finally:
                v1.enable_control_flow_v2()
            (inner, last), others = found[0], found[1]
            assert inner.pred.op.type in ("Identity", "PlaceholderWithDefault", "Const")
            assert last is None
            assert others == [None]
            assert graphs.control_flow(outside.op) is None

    def test_building_without_the_callers_constraints(self) -> None:
        with tf.Graph().as_default() as graph:
            before = tf.constant(1)
            with tf.control_dependencies([before]), v1.colocate_with(before.op):
                with graphs.without_control_dependencies(graph):
                    free = tf.constant(2)
                bound = tf.constant(3)
        assert not free.op.control_inputs
        assert [op.name for op in bound.op.control_inputs] == [before.op.name]
        assert free.op.colocation_groups() == [f"loc:@{free.op.name}".encode()]


class TestSessions:
    def test_what_a_run_fetches(self) -> None:
        with tf.Graph().as_default() as graph:
            x, y = tf.constant(1.0, name="x"), tf.constant(2.0, name="y")
            assert set(graphs.fetched_names(graph, {"a": x, "b": [y.op, "x:0"]})) == {"x:0", "y"}

    def test_whether_one_is_open(self) -> None:
        session = v1.Session(graph=tf.Graph())
        assert graphs.is_open(session)
        session.close()
        assert not graphs.is_open(session)


def test_which_function_is_compiled() -> None:
    seen: list[str | None] = []

    def step(x: tf.Tensor) -> tf.Tensor:
        seen.append(graphs.compiled())
        return x

    for jit_compile in (None, True):
        tf.function(step, jit_compile=jit_compile, autograph=False)(tf.constant(1.0))
    assert [name for name in seen if name] == ["step"] * (len(seen) // 2)
    assert seen[0] is None


def test_a_caller_keeps_nothing_that_it_deletes() -> None:
    held = tf.Module()
    known = weakref.ref(held)
    graphs.compiled()
    del held
    assert known() is None


class TestEager:
    def test_mode(self) -> None:
        with tf.Graph().as_default():
            assert not tf.executing_eagerly()
            with eager.mode():
                assert tf.constant(1.0).numpy() == 1

    def test_what_tapes_record(self) -> None:
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            assert eager.records(tape)
            with eager.unrecorded():
                y = x * 5.0
            eager.record_operation("Test", [y], [x], lambda d: [d * 7.0])
        assert not eager.records(tape)
        assert tape.gradient(y, x).numpy() == 7

    def test_whether_devices_are_known(self) -> None:
        code = (
            "import sys; from tfdist.compat.devices import devices_are_known as known\n"
            "assert 'tensorflow' not in sys.modules and not known(sys.modules)\n"
            "import tensorflow as tf; assert not known(sys.modules)\n"
            "tf.config.list_physical_devices(); assert known(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=Path(__file__).parents[3])
        assert devices_are_known({}) is False


class TestVariables:
    def test_handles_and_names(self) -> None:
        one, two = (tf.Variable(1.0, name="same") for _ in range(2))
        assert tf_variables.has_name(one)
        assert tf_variables.name(one) != tf_variables.name(two)
        assert tf_variables.key(one) == tf_variables.handle_number(one.handle) != tf_variables.key(two)

    def test_those_that_exist(self) -> None:
        gc.collect()
        one, two = tf.Variable(1.0), tf.Variable([2])
        with tf.Graph().as_default():
            of_graph = v1.get_variable("w", [1], use_resource=True)
        found = tf_variables.existing()
        places = [next(n for n, v in enumerate(found) if v is wanted) for wanted in (one, two)]
        assert places == sorted(places)
        assert not any(v is of_graph for v in found)


def test_what_datasets_are_made_of() -> None:
    memory = tf.data.Dataset.from_tensor_slices((np.arange(3), np.arange(3.0)))
    (inner,) = datasets.made_of(memory.batch(2))
    assert inner is memory
    tensors = datasets.in_memory(memory)
    assert tensors is not None and [t.dtype for t in tensors] == [tf.int64, tf.float64]
    assert datasets.in_memory(memory.batch(2)) is None


class TestFit:
    def test_where_batches_come_from(self) -> None:
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        seen: list[int] = []

        class Shorter(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                seen.append(batch)

        from keras.src.backend.tensorflow.trainer import TFEpochIterator

        made = TFEpochIterator.__init__

        def shortened(self: Any, *args: Any, **kwargs: Any) -> None:
            made(self, *args, **kwargs)
            dataset = keras_fit.dataset_of(self)
            keras_fit.shorten(self, 2)
            keras_fit.take_from(self, lambda: dataset.take(2))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TFEpochIterator, "__init__", shortened)
            model.fit(np.ones([10, 1]), np.ones([10, 1]), batch_size=2, verbose=0, callbacks=[Shorter()])
        assert seen == [0, 1]

    def test_where_it_begins(self) -> None:
        model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        epochs: list[int] = []

        class Begin(keras.callbacks.Callback):
            def on_train_begin(self, logs: Any = None) -> None:
                assert keras_fit.initial_epoch(self.model) in (None, 0)
                keras_fit.begin_at(self.model, 2)

            def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
                epochs.append(epoch)

        model.fit(np.ones([2, 1]), np.ones([2, 1]), epochs=4, verbose=0, callbacks=[Begin()])
        assert epochs == [2, 3]


class TestOptimizers:
    def test_which_one_wraps_which(self) -> None:
        sgd = keras.optimizers.SGD(0.5)
        scaled = keras.optimizers.LossScaleOptimizer(sgd)
        assert optimizers.tree(scaled) == [scaled, sgd] and optimizers.innermost(scaled) == [sgd]
        if hasattr(keras.optimizers, "MultiOptimizer"):  # since Keras 3.15
            adam = keras.optimizers.Adam(0.5)
            several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(sgd, {"a": adam}))
            assert optimizers.innermost(keras.optimizers.LossScaleOptimizer(several)) == [adam, sgd]
        assert optimizers.scales_the_loss(scaled) == "LossScaleOptimizer"
        assert optimizers.scales_the_loss(sgd) == ""

    def test_what_they_keep(self) -> None:
        w = keras.Variable(np.ones(3, "float32"))
        adam = keras.optimizers.Adam(0.5)
        adam.build([w])
        own = optimizers.own_variables(adam)
        assert len(own) == len(optimizers.listed(adam)) == 4
        assert all(isinstance(v, tf.Variable) for v in own)
        assert {id(v) for v in optimizers.variables(keras.optimizers.LossScaleOptimizer(adam))} >= {id(v) for v in own}
        without = {id(v) for v in optimizers.not_state(adam)}
        assert [tuple(v.shape) for v in own if id(v) not in without] == [(3,), (3,)]
        assert [tf_variables.native(v) is tf_variables.native(w) for v in optimizers.trained_by(adam)] == [True]
        with tf.Graph().as_default():
            old, v = v1.train.AdamOptimizer(0.5), v1.get_variable("w", [3], use_resource=True)
            old.apply_gradients([(tf.ones([3]), v)])
            assert len(optimizers.own_variables(old)) == 4


def test_the_rate_of_an_optimizer() -> None:
    """The rate of the next step, from a number, tensor, function or schedule; Keras 3 is not asked for its rate."""
    v1 = tf.compat.v1.train
    told = [
        v1.GradientDescentOptimizer(0.5),
        v1.AdamOptimizer(lambda: 0.5),
        v1.MomentumOptimizer(tf.constant(0.5), 0.9),
    ]
    assert [float(optimizers.rate(one)) for one in told] == [0.5] * 3
    assert optimizers.of_keras_3(keras.optimizers.SGD()) and not optimizers.of_keras_3(told[0])
    old = pytest.importorskip("tf_keras").optimizers
    for kind in (old.SGD, old.legacy.SGD):
        optimizer = kind(old.schedules.ExponentialDecay(0.5, 1, 0.5))
        assert not optimizers.of_keras_3(optimizer) and float(optimizers.rate(kind(0.25))) == 0.25
        variable, found = tf.Variable(1.0), []
        for _ in range(3):
            found.append(float(optimizers.rate(optimizer)))
            optimizer.apply_gradients([(tf.constant(1.0), variable)])
        assert found == [0.5, 0.25, 0.125]


def test_what_an_optimizers_checkpoint_holds(tmp_path: Path) -> None:
    for value in (3.0, 0.0):
        optimizer, held, holder = keras.optimizers.SGD(), tf.Variable(value), tf.Module()
        holder.made = [tf.Variable(value + 1)]
        optimizers.track(optimizer, "ours", held)
        optimizers.track(optimizer, "more", holder)
        checkpoint = tf.train.Checkpoint(optimizer=optimizer)
        if value:
            path = checkpoint.write(str(tmp_path / "c"))
    checkpoint.read(path)
    assert (held.numpy(), holder.made[0].numpy()) == (3, 4)
