#!/usr/bin/env python3
"""Keras: a custom ``train_step``, which clips gradients before it applies them."""

import keras
import numpy as np
import tensorflow as tf

import tfdist


class Regression(keras.Model):
    """Clips the gradients of the whole batch, averaged over all ranks."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(64, "relu")
        self.out = keras.layers.Dense(1)

    def call(self, x):
        """Return the output of a network with one hidden layer."""
        return self.out(self.hidden(x))

    def train_step(self, data):
        """Train on one batch; the code is the same as for one process."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, self.trainable_variables), 1.0)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss, "norm": norm}


random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
dataset = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=1).batch(64))

model = Regression()
model.compile(keras.optimizers.SGD(0.05, momentum=0.9))
losses = model.fit(dataset, epochs=5, verbose=2).history["loss"]
if tfdist.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
