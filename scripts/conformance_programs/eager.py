"""Eager execution throughout: a loop, a tape, an update."""

import tensorflow as tf

from conformance_programs.data import batches


def _variables():
    return tf.Variable(tf.random.normal([5, 3]), name="w"), tf.Variable(tf.zeros([3]), name="b")


def tape_and_optimizer(rank, size):
    """A tape, and apply_gradients of an optimizer of Keras."""
    w, b = _variables()
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-3)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)
        gradients = tape.gradient(loss, [w, b])
        optimizer.apply_gradients(zip(gradients, [w, b]))
    return {"w": w.numpy(), "b": b.numpy()}


def tape_and_assign_sub(rank, size):
    """A tape, and assign_sub."""
    w, b = _variables()
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b - y) ** 2)
        dw, db = tape.gradient(loss, [w, b])
        w.assign_sub(0.3 * dw)
        b.assign_sub(0.3 * db)
    return {"w": w.numpy(), "b": b.numpy()}


def clipped_by_hand(rank, size):
    """The global norm taken and divided by, without clip_by_global_norm."""
    w, b = _variables()
    optimizer = tf.keras.optimizers.SGD(0.5)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b - y) ** 2)
        gradients = tape.gradient(loss, (w, b))
        norm = tf.sqrt(sum(tf.reduce_sum(g**2) for g in gradients))
        factor = tf.minimum(1.0, 0.1 / norm)
        optimizer.apply_gradients([(g * factor, v) for g, v in zip(gradients, (w, b))])
    return {"w": w.numpy(), "b": b.numpy()}
