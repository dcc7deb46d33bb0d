"""Programs of Keras: compile and fit, with models and data of all kinds."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

from tests.law.data import arrays, rows


def two_layers():
    return keras.Sequential([keras.Input([5]), layers.Dense(7, activation="tanh"), layers.Dense(3)])


def weights_of(model):
    return {str(n): w for n, w in enumerate(model.get_weights())}


def _fit(model, rank, size, optimizer=None, **options):
    x, y, _ = arrays(rank, size, 4)
    model.compile(optimizer=optimizer or keras.optimizers.Adam(0.05, epsilon=1e-3), loss="mse")
    model.fit(x, y, batch_size=rows(size), epochs=2, shuffle=False, verbose=0, **options)
    return weights_of(model)


def sequential(rank, size):
    """A Sequential model with an input shape, trained with Adam."""
    return _fit(two_layers(), rank, size)


def functional(rank, size):
    """A functional model with a residual and LayerNormalization."""
    inputs = keras.Input([5])
    hidden = layers.LayerNormalization()(layers.Dense(5, "gelu")(inputs) + inputs)
    return _fit(keras.Model(inputs, layers.Dense(3)(hidden)), rank, size)


def subclassed(rank, size):
    """A subclass of Model, which builds its layers in the first step."""

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden, self.out = layers.Dense(7, "tanh"), layers.Dense(3)

        def call(self, inputs):
            return self.out(self.hidden(inputs))

    return _fit(Network(), rank, size, keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True))


def custom_train_step(rank, size):
    """A custom train_step: a tape, clipping, apply_gradients, metrics."""

    class Network(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                prediction = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=prediction)
            gradients = tape.gradient(loss, self.trainable_variables)
            gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
            return {"loss": loss}

    return _fit(Network([keras.Input([5]), layers.Dense(3)]), rank, size, keras.optimizers.SGD(0.5))


def train_step_without_optimizer(rank, size):
    """A custom train_step that subtracts gradients without an optimizer."""

    class Network(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            for v, g in zip(self.trainable_variables, tape.gradient(loss, self.trainable_variables)):
                v.assign_sub(0.3 * g)
            return {"loss": loss}

    return _fit(Network([keras.Input([5]), layers.Dense(3)]), rank, size)


def from_a_dataset(rank, size):
    """A tf.data.Dataset, batched and prefetched."""
    x, y, _ = arrays(rank, size, 4)
    model = two_layers()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), keras.losses.MeanSquaredError())
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(rows(size)).prefetch(2), epochs=2, verbose=0)
    return weights_of(model)


def from_a_generator(rank, size):
    """An endless Python generator, and steps_per_epoch."""
    x, y, _ = arrays(rank, size, 4)

    def generate():
        while True:
            for start in range(0, len(x), rows(size)):
                yield x[start : start + rows(size)], y[start : start + rows(size)]

    model = two_layers()
    model.compile("rmsprop", "mse")
    model.optimizer.epsilon = 1e-2
    model.fit(generate(), steps_per_epoch=4, epochs=2, verbose=0)
    return weights_of(model)


def train_on_batch(rank, size):
    """model.train_on_batch in a loop of the script."""
    x, y, _ = arrays(rank, size)
    model = two_layers()
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    for start in range(0, len(x), rows(size)):
        model.train_on_batch(x[start : start + rows(size)], y[start : start + rows(size)])
    return weights_of(model)


def eagerly(rank, size):
    """compile(run_eagerly=True)."""
    x, y, _ = arrays(rank, size, 3)
    model = two_layers()
    model.compile(keras.optimizers.Adam(0.05, epsilon=1e-3), "mse", run_eagerly=True)
    model.fit(x, y, batch_size=rows(size), shuffle=False, verbose=0)
    return weights_of(model)


def several_steps_at_once(rank, size):
    """compile(steps_per_execution=2, jit_compile=True).

    Says: XLA.
    """
    x, y, _ = arrays(rank, size, 4)
    model = two_layers()
    model.compile(keras.optimizers.Adam(0.05, epsilon=1e-3), "mse", steps_per_execution=2, jit_compile=True)
    model.fit(x, y, batch_size=rows(size), epochs=2, shuffle=False, verbose=0)
    return weights_of(model)


def several_losses(rank, size):
    """Two outputs, two losses with weights, and a penalty of the weights."""
    x, y, category = arrays(rank, size, 4)
    inputs = keras.Input([5])
    hidden = layers.Dense(7, "tanh", kernel_regularizer=keras.regularizers.L2(0.05))(inputs)
    outputs = {"value": layers.Dense(3, name="value")(hidden), "kind": layers.Dense(7, name="kind")(hidden)}
    model = keras.Model(inputs, outputs)
    losses = {"value": "mse", "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile(keras.optimizers.SGD(0.2), losses, loss_weights={"value": 1.0, "kind": 0.3}, metrics={"value": "mae"})
    model.fit(x, {"value": y, "kind": category}, batch_size=rows(size), epochs=2, shuffle=False, verbose=0)
    return weights_of(model)


def sample_weight(rank, size):
    """A weight for each sample."""
    x, _, _ = arrays(rank, size, 4)
    return _fit(two_layers(), rank, size, keras.optimizers.SGD(0.2), sample_weight=np.abs(x[:, 0]))


def class_weight(rank, size):
    """A weight for each class."""
    x, _, category = arrays(rank, size, 4)
    model = keras.Sequential([keras.Input([5]), layers.Dense(7, "softmax")])
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy", metrics=["accuracy"])
    weights = {k: 1.0 + 0.5 * k for k in range(7)}
    model.fit(x, category, batch_size=rows(size), epochs=2, shuffle=False, verbose=0, class_weight=weights)
    return weights_of(model)


def validation_data(rank, size):
    """validation_data, and validation_split in a second fit."""
    x, y, _ = arrays(rank, size, 4)
    model = two_layers()
    model.compile(keras.optimizers.Adam(0.05, epsilon=1e-3), "mse", metrics=["mae"])
    model.fit(x, y, rows(size), epochs=2, shuffle=False, verbose=0, validation_data=(x[:4], y[:4]))
    model.fit(x, y, rows(size), shuffle=False, verbose=0, validation_split=0.25)
    return weights_of(model)
