"""Programs with ``tf.function``: loops, strategies, compiled parts, layers of Keras, other optimizers."""

import keras
import tensorflow as tf

from tests.law.data import arrays, batches, rows


def _sequential():
    return keras.Sequential([keras.Input([5]), keras.layers.Dense(7, "tanh"), keras.layers.Dense(3)])


def _linear():
    w = tf.Variable(tf.random.normal([5, 3], stddev=0.5), name="w")
    return w, tf.Variable(tf.zeros([3]), name="b")


def _loss(w, b, x, y):
    return tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)


def model_of_keras(rank, size):
    """A Keras model with a loss object, trained in a custom loop with optimizer.apply."""
    model = _sequential()
    optimizer, criterion = keras.optimizers.AdamW(0.05, epsilon=1e-3), keras.losses.MeanSquaredError()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = criterion(y, model(x, training=True)) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply(gradients, model.trainable_weights)
        return loss

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {str(n): w for n, w in enumerate(model.get_weights())}


def loss_scaled_by_hand(rank, size):
    """The loss times 256, and the gradients divided by 256."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.3)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            scaled = 256.0 * _loss(w, b, x, y)
        gradients = [g / 256.0 for g in tape.gradient(scaled, [w, b])]
        optimizer.apply_gradients(zip(gradients, [w, b]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def loss_compiled(rank, size):
    """XLA compiles only the loss, in a separate function."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.3, momentum=0.9)
    loss_of = tf.function(_loss, jit_compile=True)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(w, b, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def step_compiled(rank, size):
    """XLA must compile the whole step.

    Refused: XLA cannot compile the exchange between the ranks. Leave jit_compile out.
    """
    w, b = _linear()

    @tf.function(jit_compile=True)
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
        for v, g in zip([w, b], tape.gradient(loss, [w, b])):
            v.assign_sub(0.3 * g)

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def custom_gradient(rank, size):
    """tf.custom_gradient: the forward pass rounds activations, and the backward pass leaves gradients unchanged."""
    w, b = _linear()
    v = tf.Variable(tf.random.normal([3, 3]), name="v")
    optimizer = tf.keras.optimizers.SGD(0.3)

    @tf.custom_gradient
    def rounded(x):
        return tf.round(4.0 * x) / 4.0, lambda upstream: upstream

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((rounded(tf.tanh(x @ w + b)) @ v - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b, v]), [w, b, v]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy(), "v": v.numpy()}


def while_loop(rank, size):
    """The gradient of a loop over time; the category masks the state."""
    w, b = _linear()
    u = tf.Variable(tf.random.normal([3, 3], stddev=0.3), name="u")
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-3)

    @tf.function
    def train_step(x, y, lengths):
        with tf.GradientTape() as tape:
            state = tf.zeros_like(y)
            for time in tf.range(6):
                new = tf.tanh(x @ w + b + state @ u)
                state = tf.where(time < lengths[:, None], new, state)
            loss = tf.reduce_mean((state - y) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [w, b, u]), 0.2)
        optimizer.apply_gradients(zip(gradients, [w, b, u]))

    for x, y, category in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y), tf.constant(category))
    return {"w": w.numpy(), "b": b.numpy(), "u": u.numpy()}


def loop_over_a_dataset(rank, size):
    """An epoch in one function: for x, y in dataset."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.3, momentum=0.9)
    features, labels, _ = arrays(rank, size)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(rows(size))

    @tf.function
    def train_epoch(dataset):
        last = tf.constant(0.0)
        for x, y in dataset:
            with tf.GradientTape() as tape:
                last = _loss(w, b, x, y)
            gradients, _ = tf.clip_by_global_norm(tape.gradient(last, [w, b]), 0.1)
            optimizer.apply_gradients(zip(gradients, [w, b]))
        return last

    train_epoch(dataset)
    train_epoch(dataset)
    return {"w": w.numpy(), "b": b.numpy()}


def one_device_strategy(rank, size):
    """strategy.run of a OneDeviceStrategy, with variables made in its scope."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        w, b = _linear()
        optimizer = tf.keras.optimizers.SGD(0.3)

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))
        return loss

    @tf.function
    def train_step(x, y):
        losses = strategy.run(replica_step, args=(x, y))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def variables_made_in_the_first_trace(rank, size):
    """A module makes its variables at its first call, within the function."""

    class Lazy(tf.Module):
        def __init__(self):
            super().__init__()
            self.w = None

        def __call__(self, x):
            if self.w is None:
                self.w = tf.Variable(tf.random.normal([5, 3], stddev=0.5), name="w")
                self.b = tf.Variable(tf.zeros([3]), name="b")
            return tf.tanh(x @ self.w + self.b)

    model, optimizer = Lazy(), tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": model.w.numpy(), "b": model.b.numpy()}


def tf_gradients_in_a_function(rank, size):
    """tf.gradients and an optimizer of TensorFlow 1 in a function."""
    w, b = _linear()
    optimizer = tf.compat.v1.train.AdamOptimizer(0.05, epsilon=1e-3)

    @tf.function
    def train_step(x, y):
        gradients = tf.gradients(_loss(w, b, x, y), [w, b])
        optimizer.apply_gradients(zip([tf.clip_by_norm(g, 0.1) for g in gradients], [w, b]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def concrete_function(rank, size):
    """A step with an input signature and an embedding, called as a concrete function."""
    table = tf.Variable(tf.random.normal([7, 3]), name="table")
    optimizer = tf.keras.optimizers.SGD(0.5)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, 3])])
    def train_step(category, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.nn.embedding_lookup(table, category) - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    step = train_step.get_concrete_function()
    for _, y, category in batches(rank, size):
        step(tf.constant(category), tf.constant(y))
    return {"table": table.numpy()}


def average_of_weights(rank, size):
    """tf.train.ExponentialMovingAverage after each step, in the function."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.3)
    ema = tf.train.ExponentialMovingAverage(0.7)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
        optimizer.apply_gradients(zip(tape.gradient(loss, [w, b]), [w, b]))
        ema.apply([w, b])

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    averages = {"average of w": ema.average(w).numpy(), "average of b": ema.average(b).numpy()}
    return {"w": w.numpy(), "b": b.numpy(), **averages}


def applied_every_second_time(rank, size):
    """One function adds gradients to variables, and applies them in tf.cond every second time."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.3, momentum=0.9)
    optimizer.build([w, b])
    sums = [tf.Variable(tf.zeros_like(v), trainable=False) for v in (w, b)]
    count = tf.Variable(0, trainable=False)

    def apply():
        optimizer.apply([s / 2.0 for s in sums], [w, b])
        for s in sums:
            s.assign(tf.zeros_like(s))
        return True

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = _loss(w, b, x, y)
        for s, g in zip(sums, tape.gradient(loss, [w, b])):
            s.assign_add(g)
        count.assign_add(1)
        tf.cond(count % 2 == 0, apply, lambda: False)

    for x, y, _ in batches(rank, size, 6):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}
