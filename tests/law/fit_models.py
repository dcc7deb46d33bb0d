"""Keras 3 programs: models with embeddings, frozen parts, batch statistics, strategy scopes, names and orders."""

import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.law.data import arrays, batches, rows


def _fitted(model, x, y, size, optimizer=None, loss="mse", epochs=2):
    model.compile(optimizer or keras.optimizers.Adam(0.05, epsilon=1e-3), loss)
    model.fit(x, y, batch_size=rows(size), epochs=epochs, shuffle=False, verbose=0)
    return {v.path: v.numpy() for v in model.trainable_variables}


def _words(rank, size, optimizer):
    _, y, category = arrays(rank, size, 4)
    words = np.stack([category, (category * 3 + 1) % 7], axis=1)
    model = keras.Sequential([keras.Input([2], dtype="int32"), layers.Embedding(7, 4, name="words"), layers.Flatten()])
    model.add(layers.Dense(3, name="out"))
    return _fitted(model, words, y, size, optimizer)


def embedding_and_descent(rank, size):
    """An embedding with SGD; its rows occur several times in a batch."""
    return _words(rank, size, keras.optimizers.SGD(0.5))


def embedding_and_adam(rank, size):
    """An embedding with Adam.

    Differs: a row that occurs several times has several gradients; one process squares each of them, ranks square
    their mean; TFDIST_SPARSE=unmerged does not merge them.

    Says: Adam of Keras squares or clips each row of a lookup by itself.
    """
    return _words(rank, size, keras.optimizers.Adam(0.05, epsilon=1e-3))


def low_rank_adaptation(rank, size):
    """enable_lora: the kernel is frozen, two small factors are trained."""
    x, y, _ = arrays(rank, size, 4)
    dense = layers.Dense(6, name="adapted")
    model = keras.Sequential([keras.Input([5]), dense, layers.Dense(3, name="out")])
    dense.enable_lora(2)
    return {**_fitted(model, x, y, size), "kernel": dense.kernel.numpy()}


def frozen_layers(rank, size):
    """A layer that is not trained, with different initial values on each rank."""
    x, y, _ = arrays(rank, size, 4)
    frozen = layers.Dense(6, "tanh", trainable=False, name="frozen")
    model = keras.Sequential([keras.Input([5]), frozen, layers.Dense(3, name="out")])
    return {**_fitted(model, x, y, size, keras.optimizers.SGD(0.2)), "frozen": frozen.kernel.numpy()}


def batch_normalization(rank, size):
    """BatchNormalization between two layers.

    Differs: each rank normalizes by the mean and variance of its own part of the batch.
    """
    x, y, _ = arrays(rank, size, 4)
    model = keras.Sequential([keras.Input([5]), layers.Dense(6, name="in"), layers.BatchNormalization(name="norm")])
    model.add(layers.Dense(3, name="out"))
    return _fitted(model, x, y, size, keras.optimizers.SGD(0.2))


def dropout(rank, size):
    """Dropout between two layers.

    Differs: each rank draws its own masks.
    """
    x, y, _ = arrays(rank, size, 4)
    model = keras.Sequential([keras.Input([5]), layers.Dense(16, "relu", name="in"), layers.Dropout(0.5)])
    model.add(layers.Dense(3, name="out"))
    return _fitted(model, x, y, size, keras.optimizers.SGD(0.2))


def recurrent(rank, size):
    """An LSTM with masked steps."""
    x, y, _ = arrays(rank, size, 4)
    sequence = np.where(x > -0.8, x, 0.0).reshape(-1, 5, 1)
    model = keras.Sequential([keras.Input([5, 1]), layers.Masking(), layers.LSTM(4, name="lstm")])
    model.add(layers.Dense(3, name="out"))
    return _fitted(model, sequence, y, size)


def attention_and_a_shared_layer(rank, size):
    """MultiHeadAttention, and one layer that is used twice."""
    x, y, _ = arrays(rank, size, 4)
    inputs = keras.Input([5, 1])
    shared = layers.Dense(4, name="shared")
    states = shared(inputs)
    states = states + layers.MultiHeadAttention(2, 2, use_bias=False, name="attention")(states, states)
    states = keras.ops.mean(states, axis=1) + keras.ops.mean(shared(inputs * 0.5), axis=1)
    model = keras.Model(inputs, layers.Dense(3, name="out")(states))
    return _fitted(model, x[..., None], y, size, keras.optimizers.SGD(0.2))


def tied_weights(rank, size):
    """An embedding that is also the output layer: its transpose makes the logits."""
    _, _, category = arrays(rank, size, 4)

    class Tied(keras.Model):
        def __init__(self):
            super().__init__()
            self.words, self.hidden = layers.Embedding(7, 4, name="words"), layers.Dense(4, "tanh", name="hidden")

        def call(self, inputs):
            states = self.hidden(self.words(inputs))
            return keras.ops.matmul(states, keras.ops.transpose(self.words.embeddings))

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _fitted(Tied(), category, (category * 2 + 1) % 7, size, keras.optimizers.SGD(0.5), loss)


def mirrored_strategy(rank, size):
    """A model made and compiled in the scope of a MirroredStrategy of one device."""
    return _in_a_scope(tf.distribute.MirroredStrategy(["/cpu:0"]), rank, size)


def one_device_scope(rank, size):
    """A model made and compiled in the scope of a OneDeviceStrategy."""
    return _in_a_scope(tf.distribute.OneDeviceStrategy("/cpu:0"), rank, size)


def _in_a_scope(strategy, rank, size):
    x, y, _ = arrays(rank, size, 4)
    with strategy.scope():
        model = keras.Sequential([keras.Input([5]), layers.Dense(7, "tanh", name="in"), layers.Dense(3, name="out")])
        model.compile(keras.optimizers.SGD(0.2), "mse")
    model.fit(x, y, batch_size=rows(size), shuffle=False, verbose=0)
    return {v.path: v.numpy() for v in model.trainable_variables}


def layers_in_the_order_of_a_set(rank, size):
    """Named branches are made in a loop over a set of strings, which has another order in each process."""
    x, y, _ = arrays(rank, size, 4)
    inputs, branches = keras.Input([5]), {}
    for name in {"alpha", "beta", "gamma", "delta", "epsilon"}:
        start = keras.initializers.Constant(0.1 * len(name) + 0.05 * (name > "c") + 0.01 * rank)
        branches[name] = layers.Dense(3, "tanh", kernel_initializer=start, name=name)(inputs * (0.2 * len(name)))
    output = sum(branches[name] * (k + 1.0) for k, name in enumerate(sorted(branches)))
    found = _fitted(keras.Model(inputs, output), x, y, size, keras.optimizers.SGD(0.02))
    return {name: found[f"{name}/kernel"] for name in sorted(branches)}


def names_that_differ_in_a_number(rank, size):
    """tower_1, tower_2 and tower_11 have the same shapes and different data."""
    x, y, _ = arrays(rank, size, 4)
    inputs = keras.Input([5])
    towers = [
        keras.Sequential([layers.Dense(4, "tanh", name="dense_1"), layers.Dense(3, name="dense_2")], name=f"tower_{k}")
        for k in (1, 2, 11)
    ]
    output = sum(tower(inputs * (k + 0.5)) for k, tower in enumerate(towers))
    return _fitted(keras.Model(inputs, output), x, y, size, keras.optimizers.SGD(0.05))


def names_counted_on_rank_0(rank, size):
    """Rank 0 has made another model before, so that Keras gives its layers higher numbers in their names."""
    x, y, _ = arrays(rank, size, 4)
    if rank == 0:
        keras.Sequential([keras.Input([5]), layers.Dense(7), layers.Dense(3)])
    model = keras.Sequential([keras.Input([5]), layers.Dense(7, "tanh"), layers.Dense(3)])
    return {str(n): v for n, v in enumerate(_fitted(model, x, y, size).values())}


def loaded_saved_model(rank, size):
    """tf.saved_model.load: a tape trains the variables of the loaded module."""
    w = tf.Variable(tf.random.normal([5, 3]), name="w")
    module = tf.Module()
    module.w = w
    module.output = tf.function(lambda x: tf.tanh(x @ w), input_signature=[tf.TensorSpec([None, 5])])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        loaded = tf.saved_model.load(folder)
    optimizer = keras.optimizers.Adam(0.05, epsilon=1e-3)

    @tf.function
    def train_step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((loaded.output(x) - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, loaded.w), loaded.w)])

    for x, y, _ in batches(rank, size):
        train_step(tf.constant(x), tf.constant(y))
    return {"w": loaded.w.numpy()}


def saved_and_loaded_by_keras(rank, size):
    """model.save in the middle, keras.models.load_model, and fit continues with the optimizer's state."""
    x, y, _ = arrays(rank, size, 4)
    model = keras.Sequential([keras.Input([5]), layers.Dense(7, "tanh", name="in"), layers.Dense(3, name="out")])
    _fitted(model, x, y, size)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        model = keras.models.load_model(f"{folder}/model.keras")
    model.fit(x, y, batch_size=rows(size), shuffle=False, verbose=0)
    return {v.path: v.numpy() for v in model.trainable_variables}
