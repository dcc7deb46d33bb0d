"""Programs of tf_keras, the package that continues Keras 2: legacy optimizers, minimize, and tables of embeddings."""

import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

from tests.law.data import arrays, batches, rows


def dense():
    return keras.Sequential([layers.Input([5]), layers.Dense(4, "tanh"), layers.Dense(3)])


def values(model, optimizer):
    optimizer = getattr(optimizer, "optimizer", optimizer)  # of TensorFlow 1, which Keras has wrapped
    kept = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    found = keras.backend.batch_get_value([*model.weights, *kept])
    return {str(number): value for number, value in enumerate(found)}


def fitted(model, optimizer, rank, size, with_category=False, **options):
    x, y, category = arrays(rank, size, 4)
    model.compile(optimizer, "mse", **options)
    model.fit([x, category] if with_category else x, y, batch_size=rows(size), shuffle=False, verbose=0)
    return values(model, model.optimizer)


def with_an_embedding():
    x, category = keras.Input([5]), keras.Input([], dtype="int32")
    output = layers.Add()([layers.Dense(3, "tanh")(x), layers.Embedding(7, 3)(category)])
    return keras.Model([x, category], output)


def embedding_and_adam_of_keras_2(rank, size):
    """An embedding with Adam, which adds up the gradients of a row before it squares them."""
    return fitted(with_an_embedding(), keras.optimizers.Adam(0.05, epsilon=1e-3), rank, size, True)


def legacy_adam_and_an_embedding(rank, size):
    """An embedding with the legacy Adam."""
    return fitted(with_an_embedding(), keras.optimizers.legacy.Adam(0.05, epsilon=1e-3), rank, size, True)


def legacy_momentum_and_an_embedding(rank, size):
    """An embedding with the legacy SGD."""
    return fitted(with_an_embedding(), keras.optimizers.legacy.SGD(0.1, momentum=0.9), rank, size, True)


def legacy_clipnorm(rank, size):
    """clipnorm of a legacy optimizer."""
    return fitted(dense(), keras.optimizers.legacy.SGD(0.1, momentum=0.9, clipnorm=0.05), rank, size)


def legacy_global_clipnorm_eagerly(rank, size):
    """global_clipnorm of a legacy optimizer, and run_eagerly."""
    optimizer = keras.optimizers.legacy.Adam(0.05, epsilon=1e-3, global_clipnorm=0.05)
    return fitted(dense(), optimizer, rank, size, run_eagerly=True)


def synchronized_batch_normalization(rank, size):
    """BatchNormalization(synchronized=True): weights and moving statistics."""
    parts = [layers.Dense(4, "tanh"), layers.BatchNormalization(synchronized=True), layers.Dense(3)]
    model = keras.Sequential([layers.Input([5]), *parts])
    return fitted(model, keras.optimizers.legacy.SGD(0.1, momentum=0.9), rank, size)


def legacy_train_on_batch(rank, size):
    """train_on_batch of a model that is built by its first batch, with a legacy optimizer."""
    model = keras.Sequential([layers.Dense(4, "tanh"), layers.Dense(3)])
    model.compile(keras.optimizers.legacy.SGD(0.1, momentum=0.9), "mse")
    for x, y, _ in batches(rank, size):
        model.train_on_batch(x, y)
    return values(model, model.optimizer)


def _loop(optimizer, wrap, rank, size):
    model = dense()

    @wrap
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 0.05)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for x, y, _ in batches(rank, size):
        step(tf.constant(x), tf.constant(y))
    return values(model, optimizer)


def legacy_loop_in_a_function(rank, size):
    """Tape, clipping and a legacy optimizer in one function."""
    return _loop(keras.optimizers.legacy.Adam(0.05, epsilon=1e-3), tf.function, rank, size)


def legacy_eager_loop(rank, size):
    """Tape, clipping and a legacy optimizer, eagerly."""
    return _loop(keras.optimizers.legacy.Adam(0.05, epsilon=1e-3), lambda step: step, rank, size)


def _minimized(optimizer, rank, size):
    model = dense()
    for x, y, _ in batches(rank, size):
        optimizer.minimize(lambda x=x, y=y: tf.reduce_mean((model(x) - y) ** 2), model.trainable_variables)
    return values(model, optimizer)


def minimize_of_a_loss(rank, size):
    """optimizer.minimize, with global_clipnorm."""
    return _minimized(keras.optimizers.Adam(0.05, epsilon=1e-3, global_clipnorm=0.05), rank, size)


def legacy_minimize_of_a_loss(rank, size):
    """minimize of a legacy optimizer, with clipnorm."""
    return _minimized(keras.optimizers.legacy.SGD(0.1, momentum=0.9, clipnorm=0.05), rank, size)
