"""Which variables a gradient depends on, found in a function's graph."""

from __future__ import annotations

from typing import cast

import tensorflow as tf

from tfdist.variables.loss_reads import loss_reads


def test_what_is_read_and_what_is_only_written() -> None:
    names = ("weights", "scale", "table", "in_a_call", "in_a_condition", "in_a_loop", "written", "unread")
    v = {name: tf.Variable(tf.ones([3, 3])) for name in names}

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        v["written"].assign_add(x)
        return x @ v["in_a_call"]

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = inner(x @ v["weights"]) * v["scale"]
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: y @ v["in_a_condition"], lambda: y)
            y = tf.while_loop(lambda n, y: n < 2, lambda n, y: (n + 1, y @ v["in_a_loop"]), (0, y))[1]
            loss = tf.reduce_sum(y * tf.gather(v["table"], [1]) + v["unread"])
        v["unread"].assign(v["unread"] + loss)
        return tape.gradient(loss, v["weights"])

    graph = step.get_concrete_function(tf.TensorSpec([3, 3])).graph
    read = loss_reads([graph.outputs[0]])
    found = {name for name in names if ("handle", v[name].handle._id) in read}
    assert found == {"weights", "scale", "table", "in_a_call", "in_a_condition", "in_a_loop"}


def test_in_a_sessions_graph() -> None:
    v1 = tf.compat.v1
    for resource in (True, False):
        with tf.Graph().as_default():
            w, code, other = (v1.get_variable(n, [3], use_resource=resource) for n in ("w", "code", "other"))
            gradient = tf.gradients(tf.reduce_sum(w * code), w)[0]
            assert other is not None
            assert {cast("tf.Operation", key).name for key in loss_reads([gradient])} == {"code"}
