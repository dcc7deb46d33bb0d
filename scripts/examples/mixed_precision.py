#!/usr/bin/env python3
"""Mixed precision with a loss scale and accumulation, by settings from the script."""

import numpy as np
import tensorflow as tf

import tfdist

tfdist.configure(mixed_precision="fp16", loss_scale="backoff", accumulate_steps=2)  # before the step is traced

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
data = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y))).shuffle(4096, seed=1).repeat().batch(32).take(400)

kernel = tf.Variable(tf.zeros([20, 1]))
optimizer = tf.keras.optimizers.Adam(0.05)


@tf.function
def train(features, labels):
    """Train on one batch and return its loss."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.tanh(features @ kernel) - labels) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
    return loss


losses = [float(train(features, labels)) for features, labels in data]
if tfdist.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
