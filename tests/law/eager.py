"""Eager programs: loops with a tape and an update, all executed eagerly."""

import keras
import numpy as np
import tensorflow as tf

from tests.law.data import batches


def _variables():
    return tf.Variable(tf.random.normal([5, 3]), name="w"), tf.Variable(tf.zeros([3]), name="b")


def _loss(w, b, x, y):
    return tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)


def tape_and_optimizer(rank, size):
    """A tape, and apply_gradients of an optimizer of Keras."""
    w, b = _variables()
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-3)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
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
    """Gradients are divided by their global norm in the script, without clip_by_global_norm."""
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


def list_of_variables(rank, size):
    """No model: a list of variables, among them an embedding, optimizer.build and optimizer.apply."""
    w, b = _variables()
    table = tf.Variable(tf.random.normal([7, 3]), name="table")
    parameters = [w, b, table]
    optimizer = tf.keras.optimizers.SGD(0.3)
    optimizer.build(parameters)
    for x, y, category in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ w + b + tf.gather(table, category) - y) ** 2)
        optimizer.apply(tape.gradient(loss, parameters), parameters)
    return {"w": w.numpy(), "b": b.numpy(), "table": table.numpy()}


def layers_made_in_the_first_step(rank, size):
    """A Keras model that has no weights before its first call, under the tape."""
    model = keras.Sequential([keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.Adam(0.05, epsilon=1e-3)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return {str(n): w for n, w in enumerate(model.get_weights())}


def accumulated(rank, size):
    """Gradients of two batches are added up in a list, clipped and applied."""
    w, b = _variables()
    optimizer, sums = tf.keras.optimizers.SGD(0.5, momentum=0.9), None
    for number, (x, y, _) in enumerate(batches(rank, size, 6)):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y) / 2.0
        gradients = tape.gradient(loss, [w, b])
        sums = gradients if sums is None else [s + g for s, g in zip(sums, gradients)]
        if number % 2:
            optimizer.apply_gradients(zip(tf.clip_by_global_norm(sums, 0.1)[0], [w, b]))
            sums = None
    return {"w": w.numpy(), "b": b.numpy()}


def optimizer_of_tensorflow_1(rank, size):
    """minimize of a function, by an optimizer of TensorFlow 1."""
    w, b = _variables()
    optimizer = tf.compat.v1.train.AdamOptimizer(0.05, epsilon=1e-3)
    for x, y, _ in batches(rank, size):
        optimizer.minimize(lambda x=x, y=y: _loss(w, b, x, y), var_list=[w, b])
    return {"w": w.numpy(), "b": b.numpy()}


def gradients_in_numpy(rank, size):
    """NumPy computes the new values from the gradients."""
    w, b = _variables()
    moment = np.zeros([5, 3], "float32")
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
        dw, db = (g.numpy() for g in tape.gradient(loss, [w, b]))
        moment = 0.9 * moment + dw
        w.assign(w.numpy() - 0.1 * moment)
        b.assign(b.numpy() - 0.1 * np.clip(db, -0.05, 0.05))
    return {"w": w.numpy(), "b": b.numpy()}


def persistent_tape_and_two_optimizers(rank, size):
    """Two losses of one persistent tape, two optimizers, shared weights."""
    w, b = _variables()
    first, second = tf.keras.optimizers.SGD(0.2), tf.keras.optimizers.Adam(0.05, epsilon=1e-3)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape(persistent=True) as tape:
            output = tf.tanh(x @ w + b)
            loss, other = tf.reduce_mean((output - y) ** 2), tf.reduce_mean(tf.abs(output + y))
        dw, db = tape.gradient(loss, w), tape.gradient(other, b)
        first.apply_gradients([(dw, w)])
        second.apply_gradients([(db, b)])
    return {"w": w.numpy(), "b": b.numpy()}


def optimizer_made_later(rank, size):
    """Another optimizer takes over in the middle, and learning rates are assigned."""
    w, b = _variables()
    optimizer = tf.keras.optimizers.SGD(0.3)
    for number, (x, y, _) in enumerate(batches(rank, size, 6)):
        if number == 3:
            optimizer = tf.keras.optimizers.RMSprop(0.05, epsilon=1e-3)
        optimizer.learning_rate.assign(optimizer.learning_rate * 0.9)
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))
    return {"w": w.numpy(), "b": b.numpy()}


def forward_in_a_function(rank, size):
    """The forward pass is a tf.function, the tape around it is eager, gradients are clipped one by one."""
    w, b = _variables()
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-3)
    forward = tf.function(_loss)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            loss = forward(w, b, tf.constant(x), tf.constant(y))
        gradients = [tf.clip_by_norm(g, 0.05) for g in tape.gradient(loss, [w, b])]
        optimizer.apply_gradients(zip(gradients, [w, b]))
    return {"w": w.numpy(), "b": b.numpy()}
