#!/usr/bin/env python3
"""A custom training loop: a tape in a ``tf.function``, clipping, and a Keras optimizer."""

import keras
import numpy as np
import tensorflow as tf

import tfdist

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
dataset = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=1)).batch(64, drop_remainder=True)

model = keras.Sequential([keras.Input([20]), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
optimizer = keras.optimizers.Adam(1e-2)


@tf.function
def step(features, labels):
    """Update the model once, and return the loss."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(features, training=True) - labels) ** 2)
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, model.trainable_variables), 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


means = [float(tfdist.all_reduce(np.mean([step(*batch).numpy() for batch in dataset]))) for _ in range(5)]
if tfdist.rank() == 0:
    print(f"loss {means[0]:.4f} -> {means[-1]:.4f}")
