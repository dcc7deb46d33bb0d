"""TensorFlow 1: scripts that update variables by themselves, without an optimizer of TensorFlow."""

import tensorflow.compat.v1 as tf

from conformance_programs.data import batches


def _model(use_resource=None):
    x = tf.placeholder(tf.float32, [None, 5], name="x")
    y = tf.placeholder(tf.float32, [None, 3], name="y")
    w = tf.get_variable("w", [5, 3], use_resource=use_resource)
    b = tf.get_variable("b", [3], use_resource=use_resource, initializer=tf.random_normal_initializer())
    loss = tf.reduce_mean((tf.tanh(tf.matmul(x, w) + b) - y) ** 2)
    return x, y, loss, [w, b]


def _train(step, x, y, rank, size):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size):
            session.run(step, {x: features, y: labels})
        return {v.op.name: session.run(v) for v in tf.trainable_variables()}


def descent_by_assign(rank, size):
    """tf.assign(v, v - rate * gradient)."""
    x, y, loss, variables = _model()
    gradients = tf.gradients(loss, variables)
    step = [tf.assign(v, v - 0.3 * g) for v, g in zip(variables, gradients)]
    return _train(step, x, y, rank, size)


def descent_by_assign_sub(rank, size):
    """v.assign_sub(rate * gradient), grouped."""
    x, y, loss, variables = _model()
    gradients = tf.gradients(loss, variables)
    step = tf.group(*[v.assign_sub(0.3 * g) for v, g in zip(variables, gradients)])
    return _train(step, x, y, rank, size)


def _adam_updates(variables, loss, rate=0.05, first=0.9, second=0.95, epsilon=1e-3):
    """As scripts of generative models have it: slots, and assignments of all."""
    updates = []
    t = tf.Variable(1.0, name="adam_t", trainable=False)
    for v, g in zip(variables, tf.gradients(loss, variables)):
        m = tf.Variable(tf.zeros(v.shape), name=v.op.name + "_m", trainable=False)
        s = tf.Variable(tf.zeros(v.shape), name=v.op.name + "_s", trainable=False)
        new_m = first * m + (1.0 - first) * g
        new_s = second * s + (1.0 - second) * tf.square(g)
        unbiased = new_m / (1.0 - tf.pow(first, t))
        new_v = v - rate * unbiased / tf.sqrt(new_s / (1.0 - tf.pow(second, t)) + epsilon)
        updates += [m.assign(new_m), s.assign(new_s), v.assign(new_v)]
    updates.append(t.assign_add(1.0))
    return tf.group(*updates)


def adam_by_assign(rank, size):
    """Adam written by hand with assignments to slots."""
    x, y, loss, variables = _model()
    return _train(_adam_updates(variables, loss), x, y, rank, size)
