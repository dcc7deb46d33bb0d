"""TensorFlow 1 programs: scripts that update variables without an optimizer of TensorFlow."""

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import gen_training_ops as training_ops

from tests.law.data import batches


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
    """Return Adam's update in the style of scripts for generative models: slots, and assignments to all variables."""
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
    with tf.control_dependencies(updates):  # else t may change before the updates read it, in one process too
        return t.assign_add(1.0)


def adam_by_assign(rank, size):
    """Adam written by hand with assignments to slots."""
    x, y, loss, variables = _model()
    return _train(_adam_updates(variables, loss), x, y, rank, size)


def sign_descent_by_assign(rank, size):
    """A step by the sign and the root of the clipped gradient, assigned by tf.assign_add."""
    x, y, loss, variables = _model()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
    step = [tf.assign_add(v, -0.1 * tf.sign(g) * tf.sqrt(tf.abs(g))) for v, g in zip(variables, gradients)]
    return _train(step, x, y, rank, size)


def raw_adam(rank, size):
    """A group of operations that TensorFlow's optimizers use: training_ops.resource_apply_adam."""
    x, y, loss, variables = _model(use_resource=True)
    t = tf.get_variable("t", [], initializer=tf.zeros_initializer(), trainable=False, use_resource=True)
    new_t = t.assign_add(1.0)
    updates = []
    for v, g in zip(variables, tf.gradients(loss, variables)):
        m, s = (
            tf.get_variable(f"{v.op.name}_{n}", v.shape, None, tf.zeros_initializer(), None, False, use_resource=True)
            for n in ("m", "s")
        )
        updates.append(
            training_ops.resource_apply_adam(
                v.handle, m.handle, s.handle, 0.9**new_t, 0.95**new_t, 0.05, 0.9, 0.95, 1e-3, g, use_locking=False
            )
        )
    return _train(tf.group(*updates), x, y, rank, size)


def raw_descent(rank, size):
    """tf.raw_ops.ResourceApplyGradientDescent."""
    x, y, loss, variables = _model(use_resource=True)
    updates = [
        tf.raw_ops.ResourceApplyGradientDescent(var=v.handle, alpha=0.3, delta=g)
        for v, g in zip(variables, tf.gradients(loss, variables))
    ]
    return _train(tf.group(*updates), x, y, rank, size)


def scattered_rows(rank, size):
    """tf.scatter_sub of the rows of an embedding's gradient."""
    i = tf.placeholder(tf.int32, [None])
    y = tf.placeholder(tf.float32, [None, 3])
    table = tf.get_variable("table", [7, 3])
    loss = tf.reduce_mean((tf.nn.embedding_lookup(table, i) - y) ** 2)
    gradient = tf.gradients(loss, table)[0]
    step = tf.scatter_sub(table, gradient.indices, 0.5 * gradient.values)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _, labels, category in batches(rank, size):
            session.run(step, {i: category, y: labels})
        return {"table": session.run(table)}


def accumulated_in_variables(rank, size):
    """Gradients added up in variables over two batches, clipped, and applied by an optimizer."""
    x, y, loss, variables = _model()
    optimizer = tf.train.MomentumOptimizer(0.2, 0.9)
    sums = [tf.Variable(tf.zeros_like(v.initialized_value()), trainable=False) for v in variables]
    zero = [s.assign(tf.zeros_like(s)) for s in sums]
    add = [s.assign_add(g) for s, (g, _) in zip(sums, optimizer.compute_gradients(loss, variables))]
    clipped, _ = tf.clip_by_global_norm([s / 2.0 for s in sums], 0.1)
    apply = optimizer.apply_gradients(zip(clipped, variables))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (features, labels, _) in enumerate(batches(rank, size, 6)):
            if number % 2 == 0:
                session.run(zero)
            session.run(add, {x: features, y: labels})
            if number % 2:
                session.run(apply)
        return {v.op.name: session.run(v) for v in variables}


def accumulated_and_assigned(rank, size):
    """Gradients added up in variables over two batches, subtracted by assign_sub."""
    x, y, loss, variables = _model()
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in variables]
    add = tf.group(*[s.assign_add(g) for s, g in zip(sums, tf.gradients(loss, variables))])
    apply = tf.group(*[v.assign_sub(0.2 * s) for v, s in zip(variables, sums)])
    with tf.control_dependencies([apply]):
        zero = tf.group(*[s.assign(tf.zeros(s.shape)) for s in sums])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (features, labels, _) in enumerate(batches(rank, size, 6)):
            session.run(add, {x: features, y: labels})
            if number % 2:
                session.run(zero)
        return {v.op.name: session.run(v) for v in variables}


class DecayedAdam(tf.train.Optimizer):
    """A custom optimizer that overrides apply_gradients, as in scripts for language models."""

    def __init__(self, learning_rate, decay=0.01, name="DecayedAdam"):
        super().__init__(False, name)
        self.learning_rate, self.decay = learning_rate, decay

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Return the updates of moments and parameters, with weight decay."""
        updates = []
        for gradient, parameter in grads_and_vars:
            if gradient is None:
                continue
            moments = [
                tf.get_variable(
                    f"{parameter.op.name}/{n}", parameter.shape, tf.float32, tf.zeros_initializer(), None, False
                )
                for n in ("m", "v")
            ]
            m = 0.9 * moments[0] + 0.1 * gradient
            v = 0.95 * moments[1] + 0.05 * tf.square(gradient)
            update = m / (tf.sqrt(v) + 1e-2) + self.decay * parameter
            updates += [parameter.assign(parameter - self.learning_rate * update), moments[0].assign(m)]
            updates += [moments[1].assign(v)]
        return tf.group(*updates, name=name)


def optimizer_that_overrides_apply(rank, size):
    """A subclass of Optimizer overrides apply_gradients with assignments; the script clips and counts steps."""
    x, y, loss, variables = _model()
    global_step = tf.train.get_or_create_global_step()
    clipped, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), clip_norm=0.1)
    step = DecayedAdam(0.05).apply_gradients(zip(clipped, variables), global_step=global_step)
    step = tf.group(step, [global_step.assign(global_step + 1)])
    return _train(step, x, y, rank, size)


def weights_clipped_after(rank, size):
    """As in training of critics: after the optimizer, an assignment clips the weights."""
    x, y, loss, variables = _model()
    apply = tf.train.RMSPropOptimizer(0.1, epsilon=1e-2).minimize(loss)
    with tf.control_dependencies([apply]):
        step = tf.group(*[v.assign(tf.clip_by_value(v, -0.4, 0.4)) for v in variables])
    return _train(step, x, y, rank, size)


def gradients_fed_back(rank, size):
    """Gradients are fetched, added up in NumPy, and fed to placeholders that an optimizer applies.

    Says: a session hands out gradients of w that are this rank's own.
    """
    x, y, loss, variables = _model()
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients = tf.gradients(loss, variables)
    fed = [tf.placeholder(tf.float32, v.shape) for v in variables]
    apply = optimizer.apply_gradients(zip(fed, variables))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        sums = [np.zeros(v.shape, "float32") for v in variables]
        for number, (features, labels, _) in enumerate(batches(rank, size, 6)):
            found = session.run(gradients, {x: features, y: labels})
            sums = [s + g for s, g in zip(sums, found)]
            if number % 2:
                session.run(apply, dict(zip(fed, sums)))
                sums = [np.zeros_like(s) for s in sums]
        return {v.op.name: session.run(v) for v in variables}


def descent_in_numpy_by_load(rank, size):
    """Gradients are fetched, NumPy computes new values, and v.load sets them.

    Told: a session hands out gradients.
    """
    x, y, loss, variables = _model()
    gradients = tf.gradients(loss, variables)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size):
            found, values = session.run([gradients, variables], {x: features, y: labels})
            for v, value, gradient in zip(variables, values, found):
                v.load(value - 0.3 * gradient, session)
        return {v.op.name: session.run(v) for v in variables}


def newton_by_hessians(rank, size):
    """tf.hessians, and a damped step of Newton's method that an optimizer applies."""
    x, y = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 3])
    w = tf.get_variable("w", [5, 1])
    loss = tf.reduce_mean(tf.log(tf.cosh(tf.matmul(x, w) - y[:, :1]))) + 0.1 * tf.reduce_sum(w**2)
    gradient, hessian = tf.gradients(loss, w)[0], tf.reshape(tf.hessians(loss, w)[0], [5, 5])
    direction = tf.linalg.solve(hessian, gradient)
    step = tf.train.GradientDescentOptimizer(0.5).apply_gradients([(direction, w)])
    return _train(step, x, y, rank, size)
