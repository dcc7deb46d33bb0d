"""Check of gradients against finite differences, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

v1 = tf.compat.v1


def assert_gradients_are_slopes(build: Callable[[], tf.Tensor], step: float = 1e-5) -> None:
    """Check the scalar that `build` adds to a graph: its gradient by each variable, along a random direction."""
    with tf.Graph().as_default(), v1.variable_scope(v1.get_variable_scope(), dtype=tf.float64):
        loss = build()
        variables = v1.trainable_variables()
        rng = np.random.default_rng(3)
        directions = [rng.standard_normal(v.shape.as_list()) for v in variables]
        pairs = zip(tf.gradients(loss, variables), directions, strict=True)
        slopes = [tf.reduce_sum(tf.convert_to_tensor(g) * d) for g, d in pairs]
        scale = v1.placeholder(tf.float64, [len(variables)])
        moves = zip(variables, tf.unstack(scale), directions, strict=True)
        move = tf.group(*[v1.assign_add(v, s * d) for v, s, d in moves])
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            computed = session.run(slopes)
            for k, variable in enumerate(variables):
                unit = np.eye(len(variables))[k] * step
                session.run(move, {scale: unit})
                above = session.run(loss)
                session.run(move, {scale: -2 * unit})
                below = session.run(loss)
                session.run(move, {scale: unit})
                assert computed[k] == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-7), variable.name
