"""TensorFlow 1 programs: optimizers in a session, and changes of gradients before they are applied."""

import tensorflow.compat.v1 as tf

from tests.law.data import batches


def _dense(inputs, units, name, activation=None):
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        kernel = tf.get_variable("kernel", [inputs.shape[-1], units])
        bias = tf.get_variable("bias", [units], initializer=tf.zeros_initializer())
        outputs = tf.matmul(inputs, kernel) + bias
        return activation(outputs) if activation else outputs


def _model():
    x = tf.placeholder(tf.float32, [None, 5], name="x")
    y = tf.placeholder(tf.float32, [None, 3], name="y")
    hidden = _dense(x, 7, "hidden", tf.nn.tanh)
    output = _dense(hidden, 3, "output")
    return x, y, tf.reduce_mean(tf.squared_difference(output, y))


def _train(step, x, y, rank, size):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size):
            session.run(step, feed_dict={x: features, y: labels})
        return {v.op.name: session.run(v) for v in tf.trainable_variables()}


def minimize(rank, size):
    """MomentumOptimizer.minimize."""
    x, y, loss = _model()
    step = tf.train.MomentumOptimizer(learning_rate=0.1, momentum=0.9).minimize(loss)
    return _train(step, x, y, rank, size)


def clipped_by_global_norm(rank, size):
    """compute_gradients, clip_by_global_norm, apply_gradients with keyword arguments."""
    x, y, loss = _model()
    global_step = tf.train.get_or_create_global_step()
    optimizer = tf.train.AdamOptimizer(learning_rate=0.05, epsilon=1e-3)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, _ = tf.clip_by_global_norm(gradients, 0.1)
    step = optimizer.apply_gradients(grads_and_vars=zip(clipped, variables), global_step=global_step)
    return _train(step, x, y, rank, size)


def monitored_session(rank, size):
    """MonitoredTrainingSession with a hook that reads variables, until StopAtStepHook."""
    x, y, loss = _model()
    global_step = tf.train.get_or_create_global_step()
    step = tf.train.AdagradOptimizer(0.3).minimize(loss, global_step=global_step)
    variables = tf.trainable_variables()
    values = {}

    class AtTheEnd(tf.train.SessionRunHook):
        def end(self, session):
            values.update({v.op.name: session.run(v) for v in variables})

    data = iter(batches(rank, size, 10))
    hooks = [tf.train.StopAtStepHook(last_step=5), AtTheEnd()]
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        while not session.should_stop():
            features, labels, _ = next(data)
            session.run(step, feed_dict={x: features, y: labels})
    return values


def embedding(rank, size):
    """An embedding, which has gradients of IndexedSlices, with plain gradient descent."""
    i = tf.placeholder(tf.int32, [None])
    y = tf.placeholder(tf.float32, [None, 3])
    table = tf.get_variable("table", [7, 4])
    output = _dense(tf.nn.embedding_lookup(table, i), 3, "output")
    loss = tf.losses.mean_squared_error(labels=y, predictions=output)
    step = tf.train.GradientDescentOptimizer(0.5).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _, labels, category in batches(rank, size):
            session.run(step, feed_dict={i: category, y: labels})
        return dict(zip(["table", "kernel", "bias"], session.run(tf.trainable_variables())))


def learning_rate_placeholder(rank, size):
    """A learning rate that is fed to a placeholder and decays."""
    x, y, loss = _model()
    rate = tf.placeholder(tf.float32, [], name="rate")
    step = tf.train.RMSPropOptimizer(rate, epsilon=1e-2).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (features, labels, _) in enumerate(batches(rank, size)):
            session.run([step, loss], {x: features, y: labels, rate: 0.05 * 0.8**number})
        return {v.op.name: session.run(v) for v in tf.trainable_variables()}


def two_learning_rates(rank, size):
    """Two optimizers for two parts of a model, grouped.

    Says: one run reaches average of gradients 0 and average of gradients 1.
    """
    tf.enable_resource_variables()  # other variables could be updated before a gradient has read the old value
    x, y, loss = _model()
    hidden = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="hidden")
    output = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="output")
    gradients = tf.gradients(loss, hidden + output)
    with tf.control_dependencies(gradients):  # both optimizers use gradients at the weights before the step
        gradients = [tf.identity(gradient) for gradient in gradients]
    first = tf.train.GradientDescentOptimizer(0.3).apply_gradients(zip(gradients[: len(hidden)], hidden))
    second = tf.train.AdamOptimizer(0.05, epsilon=1e-3).apply_gradients(zip(gradients[len(hidden) :], output))
    return _train(tf.group(first, second), x, y, rank, size)


def regularized(rank, size):
    """A weight penalty from REGULARIZATION_LOSSES, and a learning rate that follows the global step."""
    x = tf.placeholder(tf.float32, [None, 5])
    y = tf.placeholder(tf.float32, [None, 3])
    w = tf.get_variable("w", [5, 3], regularizer=lambda v: 0.1 * tf.nn.l2_loss(v))
    loss = tf.reduce_mean((tf.matmul(x, w) - y) ** 2) + tf.add_n(tf.get_collection("regularization_losses"))
    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.3, global_step, decay_steps=2, decay_rate=0.5, staircase=True)
    step = tf.train.GradientDescentOptimizer(rate).minimize(loss, global_step)
    return _train(step, x, y, rank, size)
