"""Programs with ``tf.function``: second derivatives, derivatives of single examples, nested steps."""

import tensorflow as tf

from tests.law.data import PARTS, batches


def _linear():
    w = tf.Variable(tf.random.normal([5, 3], stddev=0.5), name="w")
    return w, tf.Variable(tf.zeros([3]), name="b")


def newton_direction(w, x, y):
    """Return Newton's direction for a convex loss, with the Hessian as the Jacobian of the gradient."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(tf.math.log(tf.cosh(x @ w - y))) + 0.1 * tf.reduce_sum(w**2)
        gradient = inner.gradient(loss, w)
    hessian = tf.reshape(outer.jacobian(gradient, w), [15, 15])
    return tf.reshape(tf.linalg.solve(hessian, tf.reshape(gradient, [15, 1])), [5, 3])


def newton_and_assign_sub(rank, size):
    """A step of Newton's method by tape.jacobian, applied by assign_sub."""
    w, _ = _linear()

    @tf.function
    def train_step(x, y):
        w.assign_sub(0.5 * newton_direction(w, x, y))

    for x, y, _ in batches(rank, size, 3):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy()}


def newton_and_optimizer(rank, size):
    """A step of Newton's method by tape.jacobian, applied by an optimizer."""
    w, _ = _linear()
    optimizer = tf.keras.optimizers.SGD(0.5)

    @tf.function
    def train_step(x, y):
        optimizer.apply([newton_direction(w, x, y)], [w])

    for x, y, _ in batches(rank, size, 3):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy()}


def clipped_examples(rank, size):
    """As in differentially private training, each example's gradient is clipped, and their mean is applied.

    Says: gradients come out of a tf.function or a loop inside this one.
    """
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.reduce_mean((x @ w + b - y) ** 2, axis=1)
        jacobians = tape.jacobian(losses, [w, b])
        norms = tf.sqrt(sum(tf.reduce_sum(tf.reshape(j, [tf.shape(x)[0], -1]) ** 2, axis=1) for j in jacobians))
        factors = tf.minimum(1.0, 0.5 / norms)
        gradients = [tf.reduce_mean(tf.einsum("i,i...->i...", factors, j), axis=0) for j in jacobians]
        optimizer.apply_gradients(zip(gradients, [w, b]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def persistent_tape(rank, size):
    """One persistent tape and two optimizers, as in adversarial training."""
    generator, critic = tf.keras.layers.Dense(5, name="g"), tf.keras.layers.Dense(1, "tanh", name="c")
    generator.build([None, 3])
    critic.build([None, 5])
    of_generator, of_critic = tf.keras.optimizers.Adam(0.02, epsilon=1e-3), tf.keras.optimizers.Adam(0.02, epsilon=1e-3)

    @tf.function
    def train_step(real, z):
        with tf.GradientTape(persistent=True) as tape:
            fake = generator(z)
            loss_c = tf.reduce_mean(tf.nn.softplus(-critic(real)) + tf.nn.softplus(critic(fake)))
            loss_g = tf.reduce_mean(tf.nn.softplus(-critic(fake)))
        gradients_c = tape.gradient(loss_c, critic.trainable_variables)
        gradients_g = tape.gradient(loss_g, generator.trainable_variables)
        del tape
        of_critic.apply_gradients(zip(gradients_c, critic.trainable_variables))
        of_generator.apply_gradients(zip(gradients_g, generator.trainable_variables))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    variables = generator.trainable_variables + critic.trainable_variables
    return {v.path: v.numpy() for v in variables}


def gradient_penalty_in_a_function(rank, size):
    """The penalty of a Wasserstein critic: a tape on the inputs within the tape on the weights."""
    w1 = tf.Variable(tf.random.normal([5, 6], stddev=0.4), name="w1")
    w2 = tf.Variable(tf.random.normal([6, 1], stddev=0.4), name="w2")
    optimizer = tf.keras.optimizers.RMSprop(0.01, epsilon=1e-3)

    @tf.function
    def train_step(real, fake, mix):
        with tf.GradientTape() as tape:
            between = mix * real + (1.0 - mix) * fake
            with tf.GradientTape() as inner:
                inner.watch(between)
                score = tf.nn.softplus(between @ w1) @ w2
            slopes = inner.gradient(score, between)
            penalty = tf.reduce_mean((tf.norm(slopes + 1e-8, axis=1) - 1.0) ** 2)
            loss = tf.reduce_mean(tf.nn.softplus(fake @ w1) @ w2 - tf.nn.softplus(real @ w1) @ w2) + 10.0 * penalty
        optimizer.apply_gradients(zip(tape.gradient(loss, [w1, w2]), [w1, w2]))

    for x, y, category in batches(rank, size):
        fake = tf.pad(tf.constant(y), [[0, 0], [0, 2]])
        train_step(tf.constant(x), fake, tf.constant(category[:, None] / 7.0, tf.float32))
    return {"w1": w1.numpy(), "w2": w2.numpy()}


def meta_learning(rank, size):
    """Each task takes its own step within the outer tape; the outer loss is the mean over tasks."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.Adam(0.05, epsilon=1e-3)

    def loss_of(w, b, x, y):
        return tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)

    @tf.function
    def train_step(xs, ys):
        with tf.GradientTape() as outer:
            losses = []
            for x, y in zip(tf.unstack(xs), tf.unstack(ys)):
                with tf.GradientTape() as inner:
                    loss = loss_of(w, b, x[:2], y[:2])
                dw, db = inner.gradient(loss, [w, b])
                losses.append(loss_of(w - 0.4 * dw, b - 0.4 * db, x[2:], y[2:]))
            loss = tf.reduce_mean(tf.stack(losses))
        optimizer.apply_gradients(zip(outer.gradient(loss, [w, b]), [w, b]))

    for x, y, _ in batches(0, 1, 3):
        xs, ys = x.reshape(PARTS, 4, 5), y.reshape(PARTS, 4, 3)
        train_step(tf.constant(xs[rank::size]), tf.constant(ys[rank::size]))
    return {"w": w.numpy(), "b": b.numpy()}


def sharpness_aware(rank, size):
    """Weights are moved along the gradient, the gradient at that point is taken, and applied to the old weights."""
    w, b = _linear()
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

    def gradients_of(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ w + b) - y) ** 2)
        return tape.gradient(loss, [w, b])

    @tf.function
    def train_step(x, y):
        first = gradients_of(x, y)
        factor = 0.5 / (tf.linalg.global_norm(first) + 1e-12)
        moves = [g * factor for g in first]
        for v, move in zip([w, b], moves):
            v.assign_add(move)
        second = gradients_of(x, y)
        for v, move in zip([w, b], moves):
            v.assign_sub(move)
        optimizer.apply_gradients(zip(second, [w, b]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy()}


def product_with_the_hessian(rank, size):
    """A step along the gradient, divided by a term with a product of the Hessian."""
    w, _ = _linear()

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
            gradient = inner.gradient(loss, w)
        product = outer.gradient(gradient, w, output_gradients=tf.ones_like(gradient))
        w.assign_sub(0.3 * gradient / (1.0 + tf.abs(product)))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy()}


def forward_mode(rank, size):
    """The derivative along one direction by ForwardAccumulator, and a step along that direction."""
    w, _ = _linear()

    @tf.function
    def train_step(x, y, direction):
        with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
            loss = tf.reduce_mean((x @ w - y) ** 2)
        w.assign_sub(0.3 * tf.tanh(accumulator.jvp(loss)) * direction)

    for number, (x, y, _) in enumerate(batches(rank, size)):
        train_step(tf.constant(x), tf.constant(y), tf.eye(5, 3) * (1.0 if number % 2 else -0.5) + 0.1)
    return {"w": w.numpy()}


def forward_over_backward(rank, size):
    """A product with the Hessian, as TensorFlow's guide recommends it: a tape within a ForwardAccumulator."""
    w, _ = _linear()

    @tf.function
    def train_step(x, y, direction):
        with tf.autodiff.ForwardAccumulator(w, direction) as accumulator:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ w) - y) ** 2)
            gradient = tape.gradient(loss, w)
        w.assign_sub(0.3 * tf.tanh(accumulator.jvp(gradient)))

    for number, (x, y, _) in enumerate(batches(rank, size)):
        train_step(tf.constant(x), tf.constant(y), tf.eye(5, 3) * (1.0 if number % 2 else -0.5) + 0.1)
    return {"w": w.numpy()}


def recomputed(rank, size):
    """tf.recompute_grad around a block, clipping, an optimizer."""
    w, b = _linear()
    v = tf.Variable(tf.random.normal([3, 3], stddev=0.5), name="v")
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)
    block = tf.recompute_grad(lambda x: tf.tanh(tf.tanh(x @ w + b) @ v))

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((block(x) - y) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, [w, b, v]), 0.1)
        optimizer.apply_gradients(zip(gradients, [w, b, v]))

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": w.numpy(), "b": b.numpy(), "v": v.numpy()}
