"""Eager programs: nested loops, second derivatives, and other threads."""

import tempfile
import threading

import keras
import numpy as np
import tensorflow as tf

from tests.law.data import batches
from tests.law.functions_derivatives import newton_direction


def _model():
    return keras.Sequential([keras.Input([5]), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])


def _step(model, optimizer, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


def _weights(model):
    return {str(n): w for n, w in enumerate(model.get_weights())}


def reptile(rank, size):
    """get_weights, some steps, set_weights to a point between old and new weights, repeated.

    Told: were set between two steps, to other values on each rank.
    """
    model = _model()
    data = batches(rank, size, 6)
    for start in range(0, 6, 3):
        before = model.get_weights()
        optimizer = keras.optimizers.SGD(0.3)
        for x, y, _ in data[start : start + 3]:
            _step(model, optimizer, x, y)
        after = model.get_weights()
        model.set_weights([b + 0.5 * (a - b) for b, a in zip(before, after)])
    return _weights(model)


def _folds(step, rank, size):
    model = _model()
    data = batches(rank, size, 6)
    first, results = model.get_weights(), {}
    for fold in range(3):
        model.set_weights(first)
        optimizer = keras.optimizers.Adam(0.05, epsilon=1e-3)
        for number, (x, y, _) in enumerate(data):
            if number % 3 != fold:
                step(model, optimizer, x, y)
        results[f"fold {fold}"] = model.get_weights()[0]
    return results


def folds(rank, size):
    """Cross-validation: weights are set back to the first ones before each fold."""
    return _folds(_step, rank, size)


def folds_of_a_function(rank, size):
    """Cross-validation by a function."""
    return _folds(lambda *arguments: tf.function(_step)(*arguments), rank, size)


def best_weights_kept(rank, size):
    """A step's weights are kept in NumPy, training continues, and the weights are restored later."""
    model, optimizer, kept = _model(), keras.optimizers.SGD(0.3), None
    for number, (x, y, _) in enumerate(batches(rank, size)):
        _step(model, optimizer, x, y)
        if number == 2:
            kept = model.get_weights()
    model.set_weights(kept)
    for x, y, _ in batches(rank, size, 2):
        _step(model, optimizer, x, y)
    return _weights(model)


def newton(rank, size):
    """A step of Newton's method, by assign_sub.

    Refused: another tape records operations on them. Put the step into a tf.function.
    """
    w = tf.Variable(tf.random.normal([5, 3], stddev=0.5))
    for x, y, _ in batches(rank, size, 3):
        w.assign_sub(0.5 * newton_direction(w, x, y))
    return {"w": w.numpy()}


def newton_by_an_optimizer(rank, size):
    """A step of Newton's method, applied by an optimizer."""
    w, optimizer = tf.Variable(tf.random.normal([5, 3], stddev=0.5)), keras.optimizers.SGD(0.5)
    for x, y, _ in batches(rank, size, 3):
        optimizer.apply([newton_direction(w, x, y)], [w])
    return {"w": w.numpy()}


def forward_gradient(rank, size):
    """Forward gradients (Baydin et al. 2022, equation 1), clipped: a ForwardAccumulator along one direction."""
    w = tf.Variable(tf.random.normal([5, 3], stddev=0.5))
    for number, (x, y, _) in enumerate(batches(rank, size)):
        direction = tf.eye(5, 3) * (1.0 if number % 2 else -0.5) + 0.1
        with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.3 * tf.tanh(accumulator.jvp(loss)) * direction)
    return {"w": w.numpy()}


def product_with_the_hessian_by_an_optimizer(rank, size):
    """A product with the Hessian by a tape within a ForwardAccumulator, applied by an optimizer of TensorFlow 1."""
    w, optimizer = tf.Variable(tf.random.normal([5, 3], stddev=0.5)), tf.compat.v1.train.GradientDescentOptimizer(0.3)
    for x, y, _ in batches(rank, size):
        with tf.autodiff.ForwardAccumulator(w, tf.eye(5, 3) + 0.1) as accumulator:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
            gradient = tape.gradient(loss, w)
        optimizer.apply_gradients([(tf.tanh(accumulator.jvp(gradient)), w)])
    return {"w": w.numpy()}


def gauss_newton(rank, size):
    """Least squares: the Jacobian of the residuals, its product with itself, a damped step.

    Refused: they are the derivatives of each of several numbers.
    """
    w = tf.Variable(tf.random.normal([5, 1], stddev=0.5))
    for x, y, _ in batches(rank, size, 3):
        with tf.GradientTape() as tape:
            residuals = tf.squeeze(tf.tanh(x @ w), 1) - y[:, 0]
        jacobian = tf.reshape(tape.jacobian(residuals, w), [-1, 5])
        normal = tf.transpose(jacobian) @ jacobian / len(x) + 0.1 * tf.eye(5)
        w.assign_sub(tf.linalg.solve(normal, tf.transpose(jacobian) @ residuals[:, None] / len(x)))
    return {"w": w.numpy()}


def gradient_penalty_of_tapes(rank, size):
    """Two nested tapes: the gradient with respect to the inputs is a part of the loss."""
    model, optimizer = _model(), keras.optimizers.Adam(0.02, epsilon=1e-3)
    for x, y, _ in batches(rank, size):
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = model(x)
                total = tf.reduce_sum(output)
            slopes = inner.gradient(total, x)
            loss = tf.reduce_mean((output - y) ** 2) + 0.3 * tf.reduce_mean(tf.reduce_sum(slopes**2, axis=1))
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return _weights(model)


def sharpness_aware_by_hand(rank, size):
    """Weights are moved along the gradient, the gradient at that point is taken, and applied to the old weights."""
    model, optimizer = _model(), keras.optimizers.SGD(0.3)
    for x, y, _ in batches(rank, size):
        variables = model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, variables)
        factor = 0.3 / (tf.linalg.global_norm(gradients) + 1e-12)
        for v, g in zip(variables, gradients):
            v.assign_add(g * factor)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        second = tape.gradient(loss, variables)
        for v, g in zip(variables, gradients):
            v.assign_sub(g * factor)
        optimizer.apply_gradients(zip(second, variables))
    return _weights(model)


def average_of_weights_by_hand(rank, size):
    """A teacher model has the moving average of the student's weights, and makes targets for the student."""
    student, teacher = _model(), _model()
    teacher.set_weights(student.get_weights())
    optimizer = keras.optimizers.SGD(0.3)
    for x, y, _ in batches(rank, size):
        with tf.GradientTape() as tape:
            output = student(x)
            loss = tf.reduce_mean((output - y) ** 2) + 0.5 * tf.reduce_mean((output - teacher(x)) ** 2)
        gradients = tape.gradient(loss, student.trainable_variables)
        optimizer.apply_gradients(zip(gradients, student.trainable_variables))
        for slow, fast in zip(teacher.weights, student.weights):
            slow.assign(0.8 * slow + 0.2 * fast)
    return {**_weights(student), **{f"teacher {n}": w for n, w in _weights(teacher).items()}}


def _while_another_thread_looks(model, data, train):
    """Train in the main thread while another thread has a tape open, for gradients with respect to the inputs."""
    inputs = tf.constant(data[0][0])
    opened, trained = threading.Event(), threading.Event()

    def look():
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(model(inputs))
            opened.set()
            trained.wait(10)
        tape.gradient(total, inputs)

    train(data[0])
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    opened.wait(10)
    for batch in data[1:]:
        train(batch)
    trained.set()
    thread.join(10)
    return _weights(model)


def another_thread_looks(rank, size):
    """An optimizer applies while another thread has a tape open."""
    model, optimizer = _model(), keras.optimizers.SGD(0.3)
    return _while_another_thread_looks(model, batches(rank, size), lambda batch: _step(model, optimizer, *batch[:2]))


def another_thread_looks_and_gradients_are_subtracted(rank, size):
    """Gradients are clipped and subtracted by assign_sub while another thread has a tape open."""
    model = _model()

    def train(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch[0]) - batch[1]) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.2)
        for v, g in zip(model.trainable_variables, gradients):
            v.assign_sub(0.5 * g)

    return _while_another_thread_looks(model, batches(rank, size), train)


def loaded_on_rank_0(rank, size):
    """Rank 0 alone sets its weights, as from a file, before it trains."""
    model, optimizer = _model(), keras.optimizers.Adam(0.05, epsilon=1e-3)
    if rank == 0:
        model.set_weights([np.full(w.shape, 0.1 * (n + 1), "float32") for n, w in enumerate(model.get_weights())])
    for x, y, _ in batches(rank, size):
        _step(model, optimizer, x, y)
    return _weights(model)


def checkpoint_of_each_rank(rank, size):
    """tf.train.Checkpoint saves model and optimizer in the middle; a new model and optimizer are restored from it."""
    model, optimizer = _model(), keras.optimizers.Adam(0.05, epsilon=1e-3)
    data = batches(rank, size, 6)
    for x, y, _ in data[:3]:
        _step(model, optimizer, x, y)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=model, optimizer=optimizer).save(f"{folder}/checkpoint")
        model, optimizer = _model(), keras.optimizers.Adam(0.05, epsilon=1e-3)
        optimizer.build(model.trainable_variables)
        tf.train.Checkpoint(model=model, optimizer=optimizer).restore(path)
    for x, y, _ in data[3:]:
        _step(model, optimizer, x, y)
    return _weights(model)
