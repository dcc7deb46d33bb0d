"""TensorFlow 1 programs: loops, conditions, second derivatives, adversaries, averages of weights, towers."""

import tensorflow.compat.v1 as tf

from tests.law.data import batches


def _inputs():
    return tf.placeholder(tf.float32, [None, 5], name="x"), tf.placeholder(tf.float32, [None, 3], name="y")


def _dense(inputs, units, name):
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        w = tf.get_variable("w", [inputs.shape[-1], units])
        return tf.matmul(inputs, w) + tf.get_variable("b", [units], initializer=tf.zeros_initializer())


def _train(step, x, y, rank, size, variables=None, steps=5):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size, steps):
            session.run(step, {x: features, y: labels})
        return {v.op.name: session.run(v) for v in variables or tf.trainable_variables()}


def _recurrent(x):
    """Return the last state of a recurrent network; each feature is a time step."""
    w = tf.get_variable("w", [4, 4], initializer=tf.orthogonal_initializer())
    u = tf.get_variable("u", [1, 4])
    sequence = tf.transpose(x)[:, :, None]

    def body(time, state):
        return time + 1, tf.tanh(tf.matmul(sequence[time], u) + tf.matmul(state, w))

    state = tf.zeros([tf.shape(x)[0], 4])
    shapes = [tf.TensorShape([]), tf.TensorShape([None, 4])]
    return tf.while_loop(lambda time, _: time < 5, body, [0, state], shape_invariants=shapes)[1]


def while_loop_rnn(rank, size):
    """A recurrent network in tf.while_loop, clipped."""
    x, y = _inputs()
    loss = tf.losses.mean_squared_error(y, _dense(_recurrent(x), 3, "output"))
    variables = tf.trainable_variables()
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
    step = tf.train.GradientDescentOptimizer(0.5).apply_gradients(zip(gradients, variables))
    return _train(step, x, y, rank, size)


def while_loop_rnn_of_control_flow_v2(rank, size):
    """A recurrent network in tf.while_loop, with resource variables and TensorFlow 2's control flow."""
    tf.enable_resource_variables()
    tf.enable_control_flow_v2()
    return while_loop_rnn(rank, size)


def scanned_rnn(rank, size):
    """A recurrent network in tf.scan."""
    x, y = _inputs()
    w = tf.get_variable("w", [3, 3], initializer=tf.orthogonal_initializer())
    u = tf.get_variable("u", [1, 3])
    states = tf.scan(
        lambda state, inputs: tf.tanh(tf.matmul(inputs[:, None], u) + tf.matmul(state, w)),
        tf.transpose(x),
        initializer=tf.zeros([tf.shape(x)[0], 3]),
    )
    loss = tf.reduce_mean((states[-1] - y) ** 2)
    return _train(tf.train.AdamOptimizer(0.05, epsilon=1e-3).minimize(loss), x, y, rank, size)


def moving_average(rank, size):
    """An exponential moving average of the weights after each update."""
    x, y = _inputs()
    loss = tf.reduce_mean((_dense(x, 3, "model") - y) ** 2)
    apply = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
    ema = tf.train.ExponentialMovingAverage(decay=0.8)
    with tf.control_dependencies([apply]):
        step = ema.apply(tf.trainable_variables())
    averages = [ema.average(v) for v in tf.trainable_variables()]
    return _train(step, x, y, rank, size, tf.trainable_variables() + averages)


def moving_average_swapped_in(rank, size):
    """After each step the averages replace the weights for an evaluation, and then the weights are restored."""
    x, y = _inputs()
    loss = tf.reduce_mean((_dense(x, 3, "model") - y) ** 2)
    variables = tf.trainable_variables()
    apply = tf.train.GradientDescentOptimizer(0.3).minimize(loss)
    ema = tf.train.ExponentialMovingAverage(0.8)
    with tf.control_dependencies([apply]):
        step = ema.apply(variables)
    kept = [tf.get_variable(f"kept{n}", v.shape, trainable=False) for n, v in enumerate(variables)]
    with tf.control_dependencies([k.assign(v) for k, v in zip(kept, variables)]):
        swap = tf.group(*[v.assign(ema.average(v)) for v in variables])
    back = tf.group(*[v.assign(k) for v, k in zip(variables, kept)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size):
            session.run(step, {x: features, y: labels})
            session.run(swap)
            session.run(loss, {x: features, y: labels})
            session.run(back)
        return {v.op.name: session.run(v) for v in variables}


def gradient_penalty(rank, size):
    """A critic with a loss that contains the norm of its gradient with respect to the inputs."""
    x, y = _inputs()

    def critic(inputs):
        return _dense(tf.nn.softplus(_dense(inputs, 6, "first")), 1, "second")

    mixed = 0.5 * x + tf.pad(y, [[0, 0], [0, 2]])
    slopes = tf.gradients(critic(mixed), [mixed])[0]
    norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1) + 1e-6)
    loss = tf.reduce_mean(critic(x)) - tf.reduce_mean(critic(mixed)) + 10.0 * tf.reduce_mean((norms - 1.0) ** 2)
    step = tf.train.AdamOptimizer(0.01, beta1=0.5, epsilon=1e-3).minimize(loss, var_list=tf.trainable_variables())
    return _train(step, x, y, rank, size, [v for v in tf.trainable_variables() if "second/b" not in v.name])


def adversarial(rank, size):
    """Two optimizers, for two lists of variables, run in turn."""
    x, y = _inputs()
    fake = _dense(tf.nn.tanh(_dense(y, 6, "generator/1")), 5, "generator/2")

    def critic(inputs):
        return _dense(tf.nn.leaky_relu(_dense(inputs, 6, "critic/1")), 1, "critic/2")

    real_logits, fake_logits = critic(x), critic(fake)
    of_critic = tf.reduce_mean(tf.nn.softplus(-real_logits)) + tf.reduce_mean(tf.nn.softplus(fake_logits))
    of_generator = tf.reduce_mean(tf.nn.softplus(-fake_logits))
    variables = tf.trainable_variables()
    ours, theirs = ([v for v in variables if v.name.startswith(s)] for s in ("critic", "generator"))
    train_critic = tf.train.AdamOptimizer(0.02, beta1=0.5, epsilon=1e-3).minimize(of_critic, var_list=ours)
    train_generator = tf.train.AdamOptimizer(0.02, beta1=0.5, epsilon=1e-3).minimize(of_generator, var_list=theirs)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for features, labels, _ in batches(rank, size):
            feed = {x: features, y: labels}
            session.run([train_critic, of_critic], feed)
            session.run([train_generator, of_generator], feed)
        return {v.op.name: session.run(v) for v in variables}


def applied_every_second_step(rank, size):
    """Gradients are added up, and applied within tf.cond in every second step."""
    x, y = _inputs()
    loss = tf.reduce_mean((_dense(x, 3, "model") - y) ** 2)
    variables = tf.trainable_variables()
    optimizer = tf.train.GradientDescentOptimizer(0.2)
    count = tf.get_variable("count", [], tf.int32, tf.zeros_initializer(), trainable=False)
    sums = [tf.Variable(tf.zeros(v.shape), trainable=False) for v in variables]
    added = [s.assign_add(g) for s, g in zip(sums, tf.gradients(loss, variables))]

    def apply():
        with tf.control_dependencies([optimizer.apply_gradients(zip([s.read_value() for s in sums], variables))]):
            return tf.group(*[s.assign(tf.zeros(s.shape)) for s in sums])

    with tf.control_dependencies([*added, count.assign_add(1)]):
        step = tf.cond(tf.equal(count.read_value() % 2, 0), apply, tf.no_op)
    return _train(step, x, y, rank, size, variables, steps=6)


def target_network(rank, size):
    """As in deep Q-learning, a second network makes the targets; the first is copied to it every second step."""
    x, y = _inputs()
    online = _dense(x, 3, "online")
    target = tf.reduce_max(_dense(x, 3, "target"), axis=1, keepdims=True)
    loss = tf.reduce_mean(tf.losses.huber_loss(tf.stop_gradient(y + 0.9 * target), online))
    ours, theirs = (tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, s) for s in ("online", "target"))
    step = tf.train.RMSPropOptimizer(0.05, epsilon=1e-2).minimize(loss, var_list=ours)
    copy = tf.group(*[tf.assign(t, o) for t, o in zip(theirs, ours)])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for number, (features, labels, _) in enumerate(batches(rank, size)):
            if number % 2 == 0:
                session.run(copy)
            session.run(step, {x: features, y: labels})
        return {v.op.name: session.run(v) for v in tf.trainable_variables()}


def towers(rank, size):
    """Two towers share variables; their gradients are averaged by the script."""
    x, y = _inputs()
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
    gradients = []
    for tower in range(2):
        with tf.name_scope(f"tower_{tower}"):
            loss = tf.reduce_mean((tf.nn.tanh(_dense(x[tower::2], 3, "model")) - y[tower::2]) ** 2)
            gradients.append(optimizer.compute_gradients(loss, tf.trainable_variables()))
    means = []
    for pairs in zip(*gradients):
        stacked = tf.concat([tf.expand_dims(g, 0) for g, _ in pairs], axis=0)
        means.append((tf.reduce_mean(stacked, axis=0), pairs[0][1]))
    return _train(optimizer.apply_gradients(means), x, y, rank, size)


def loss_scaled(rank, size):
    """The loss times 128, and the gradients divided by 128; gradients that are not finite are replaced by zeros."""
    x, y = _inputs()
    loss = tf.reduce_mean((_dense(x, 3, "model") - y) ** 2)
    variables = tf.trainable_variables()
    gradients = [g / 128.0 for g in tf.gradients(loss * 128.0, variables)]
    finite = tf.reduce_all([tf.reduce_all(tf.is_finite(g)) for g in gradients])
    gradients = [tf.where(tf.fill(tf.shape(g), finite), g, tf.zeros_like(g)) for g in gradients]
    step = tf.train.AdamOptimizer(0.05, epsilon=1e-3).apply_gradients(zip(gradients, variables))
    return _train(step, x, y, rank, size)
