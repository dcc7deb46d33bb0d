"""``tf.function``: a tape in a step that is traced."""

import tensorflow as tf

from conformance_programs.data import batches


class Network(tf.Module):
    """Two layers, made at once."""

    def __init__(self, name=None):
        super().__init__(name=name)
        self.w1 = tf.Variable(tf.random.normal([5, 7], stddev=0.3), name="w1")
        self.b1 = tf.Variable(tf.zeros([7]), name="b1")
        self.w2 = tf.Variable(tf.random.normal([7, 3], stddev=0.3), name="w2")

    def __call__(self, x):
        return tf.tanh(x @ self.w1 + self.b1) @ self.w2

    def loss(self, x, y):
        return tf.reduce_mean(tf.square(self(x) - y))


def _values(network):
    return {v.name.split(":")[0]: v.numpy() for v in network.trainable_variables}


def optimizer_inside(rank, size):
    """Tape, clipping and an optimizer of Keras in one function."""
    network = Network()
    optimizer = tf.keras.optimizers.Adam(learning_rate=0.05, epsilon=1e-3)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        gradients = tape.gradient(loss, network.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))
        return loss

    for x, y, _ in batches(rank, size):
        train_step(x, y)
    return _values(network)


def gradients_leave(rank, size):
    """The function returns loss and gradients, which an optimizer applies outside."""
    network = Network()
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def loss_and_gradients(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        return loss, tape.gradient(loss, network.trainable_variables)

    for x, y, _ in batches(rank, size):
        _, gradients = loss_and_gradients(tf.constant(x), tf.constant(y))
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))
    return _values(network)
