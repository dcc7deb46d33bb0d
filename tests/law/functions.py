"""Programs with ``tf.function``: a tape in a traced step."""

import numpy as np
import tensorflow as tf

from tests.law.data import batches


class Network(tf.Module):
    """Two layers; the constructor makes all variables."""

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
    """The function returns loss, clipped gradients and their norm; an optimizer applies the gradients outside."""
    network = Network()
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

    norms = []

    @tf.function
    def loss_and_gradients(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        return loss, *tf.clip_by_global_norm(tape.gradient(loss, network.trainable_variables), 0.1)

    for x, y, _ in batches(rank, size):
        _, gradients, norm = loss_and_gradients(tf.constant(x), tf.constant(y))
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))
        norms.append(norm.numpy())
    return {**_values(network), "norms": np.array(norms)}


def gradients_subtracted_outside(rank, size):
    """The function returns gradients, and assign_sub outside subtracts them from the variables."""
    network = Network()

    @tf.function
    def gradients_of(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        return tape.gradient(loss, network.trainable_variables)

    for x, y, _ in batches(rank, size):
        for variable, gradient in zip(network.trainable_variables, gradients_of(tf.constant(x), tf.constant(y))):
            variable.assign_sub(0.3 * gradient)
    return _values(network)


def subtracted_inside(rank, size):
    """The function updates its variables by assign_sub."""
    network = Network()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        gradients = tape.gradient(loss, network.trainable_variables)
        for variable, gradient in zip(network.trainable_variables, gradients):
            variable.assign_sub(0.3 * gradient)
        return loss

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return _values(network)


def descent_in_numpy(rank, size):
    """Gradients go to NumPy as one vector; gradient descent in NumPy sets the variables."""
    network = Network()
    variables = network.trainable_variables

    @tf.function
    def loss_and_gradients(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        return loss, tape.gradient(loss, variables)

    for x, y, _ in batches(rank, size):
        _, gradients = loss_and_gradients(tf.constant(x), tf.constant(y))
        flat = np.concatenate([v.numpy().ravel() for v in variables])
        flat = flat - 0.3 * np.concatenate([g.numpy().ravel() for g in gradients])
        start = 0
        for variable in variables:
            count = int(np.prod(variable.shape))
            variable.assign(flat[start : start + count].reshape(variable.shape))
            start += count
    return _values(network)


def quasi_newton_in_numpy(rank, size):
    """L-BFGS in NumPy on one batch; a function computes the loss and the gradient at each point.

    Says: were set between two steps, to other values on each rank.
    """
    network = Network()
    variables = network.trainable_variables
    shapes = [v.shape.as_list() for v in variables]
    cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    x, y, _ = batches(rank, size)[0]

    @tf.function
    def evaluate(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        return loss, tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(loss, variables)], axis=0)

    def gradient_at(point):
        for variable, part, shape in zip(variables, np.split(point, cuts), shapes):
            variable.assign(part.reshape(shape))
        return evaluate(x, y)[1].numpy()

    point = np.concatenate([v.numpy().ravel() for v in variables])
    gradient, pairs = gradient_at(point), []
    for _ in range(4):
        direction, kept = gradient.copy(), []
        for s, t in reversed(pairs):
            a = s @ direction / (t @ s)
            direction -= a * t
            kept.append(a)
        if pairs:
            s, t = pairs[-1]
            direction *= s @ t / (t @ t)
        for (s, t), a in zip(pairs, reversed(kept)):
            direction += s * (a - t @ direction / (t @ s))
        new = point - 0.3 * direction
        new_gradient = gradient_at(new)
        pairs.append((new - point, new_gradient - gradient))
        point, gradient = new, new_gradient
    return _values(network)


def nested_functions(rank, size):
    """An inner function computes gradients, an outer one clips and applies them."""
    network = Network()
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)

    @tf.function
    def gradients_of(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        return tape.gradient(loss, network.trainable_variables)

    @tf.function
    def train_step(x, y):
        gradients, _ = tf.clip_by_global_norm(gradients_of(x, y), 0.1)
        optimizer.apply_gradients(zip(gradients, network.trainable_variables))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return _values(network)


def micro_batches(rank, size):
    """Gradients of micro-batches are added up in a Python loop within the function, clipped and applied."""
    network = Network()
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-3)

    @tf.function
    def train_step(parts):
        sums = [tf.zeros_like(v) for v in network.trainable_variables]
        for x, y in parts:
            with tf.GradientTape() as tape:
                loss = network.loss(x, y) / len(parts)
            gradients = tape.gradient(loss, network.trainable_variables)
            sums = [s + g for s, g in zip(sums, gradients)]
        sums, _ = tf.clip_by_global_norm(sums, 0.1)
        optimizer.apply_gradients(zip(sums, network.trainable_variables))

    data = [(tf.constant(x), tf.constant(y)) for x, y, _ in batches(rank, size, 6)]
    for start in range(0, 6, 2):
        train_step(data[start : start + 2])
    return _values(network)


def micro_batches_in_a_traced_loop(rank, size):
    """Gradients of micro-batches are added up in a loop over tf.range, divided and applied without clipping.

    Says: gradients come out of a tf.function or a loop inside this one.
    """
    network = Network()
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

    @tf.function
    def train_step(xs, ys):
        sums = [tf.zeros_like(v) for v in network.trainable_variables]
        for k in tf.range(2):
            with tf.GradientTape() as tape:
                loss = network.loss(xs[k], ys[k])
            gradients = tape.gradient(loss, network.trainable_variables)
            sums = [s + g for s, g in zip(sums, gradients)]
        optimizer.apply_gradients([(s / 2.0, v) for s, v in zip(sums, network.trainable_variables)])

    data = batches(rank, size, 6)
    for start in range(0, 6, 2):
        first, second = data[start], data[start + 1]
        train_step(tf.stack([first[0], second[0]]), tf.stack([first[1], second[1]]))
    return _values(network)


def accumulated_in_variables_and_clipped(rank, size):
    """One function adds gradients to variables, another one clips and applies these sums."""
    network = Network()
    optimizer = tf.keras.optimizers.SGD(0.5)
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in network.trainable_variables]
    variables = network.trainable_variables

    @tf.function
    def accumulate(x, y):
        with tf.GradientTape() as tape:
            loss = network.loss(x, y)
        for s, g in zip(sums, tape.gradient(loss, variables)):
            s.assign_add(g)

    @tf.function
    def apply():
        gradients, _ = tf.clip_by_global_norm([s / 2.0 for s in sums], 0.1)
        optimizer.apply_gradients(zip(gradients, variables))
        for s in sums:
            s.assign(tf.zeros_like(s))

    for number, (x, y, _) in enumerate(batches(rank, size, 6)):
        accumulate(tf.constant(x), tf.constant(y))
        if number % 2:
            apply()
    return {v.name.split(":")[0]: v.numpy() for v in variables}
