"""Which variables a gradient depends on, found in a function's graph."""

from __future__ import annotations

from typing import cast

import tensorflow as tf

from tfdist.compat.variables import key
from tfdist.replicas.loss_reads import loss_reads


def test_what_is_read_and_what_is_only_written() -> None:
    names = (
        "weights",
        "scale",
        "table",
        "in_a_call",
        "in_a_branch",
        "in_a_loop",
        "written",
        "unread",
    )
    v = {name: tf.Variable(tf.ones([3, 3])) for name in names}

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        v["written"].assign_add(x)
        return x @ v["in_a_call"]

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = inner(x @ v["weights"]) * v["scale"]
            y = tf.cond(v["written"][0, 0] > 3.0, lambda: y @ v["in_a_branch"], lambda: y)
            y = tf.while_loop(lambda n, y: n < 2, lambda n, y: (n + 1, y @ v["in_a_loop"]), (0, y))[1]
            loss = tf.reduce_sum(y * tf.gather(v["table"], [1]) + v["unread"])
        v["unread"].assign(v["unread"] + loss)
        return tape.gradient(loss, v["weights"])

    graph = step.get_concrete_function(tf.TensorSpec([3, 3])).graph
    read = loss_reads([graph.outputs[0]])
    assert {name for name in names if key(v[name]) in read} == {*names} - {"unread"}


def test_in_a_sessions_graph() -> None:
    v1 = tf.compat.v1
    for resource in (True, False):
        with tf.Graph().as_default():
            v = [v1.get_variable(n, [3], use_resource=resource) for n in ("w", "code", "other", "one", "both")]
            chosen = tf.cond(v1.placeholder(tf.bool, []), lambda: v[3] * v[4], lambda: v[1] + 0.0)  # noqa: B023
            gradient = tf.gradients(tf.reduce_sum(v[0] * v[1] * chosen * tf.exp(v[4])), v[0])[0]
            assert {cast("tf.Operation", key).name for key in loss_reads([gradient])} == {"code", "one", "both"}
