#!/usr/bin/env python3
"""A training loop that executes eagerly, with an optimizer of TensorFlow 1."""

import numpy as np
import tensorflow as tf

import tfdist

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
dataset = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=1)).batch(64, drop_remainder=True)

kernel = tf.Variable(tf.random.normal([20, 1], stddev=0.1))  # all ranks begin with rank 0's values
bias = tf.Variable([0.0])
optimizer = tf.compat.v1.train.MomentumOptimizer(0.05, 0.9)

means = []
for _ in range(5):
    losses = []
    for features, labels in dataset:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(features @ kernel + bias) - labels) ** 2)
        gradients = tape.gradient(loss, [kernel, bias])
        optimizer.apply_gradients(zip(gradients, [kernel, bias]))
        losses.append(float(loss))
    means.append(float(tfdist.all_reduce(np.mean(losses))))
if tfdist.rank() == 0:
    print(f"loss {means[0]:.4f} -> {means[-1]:.4f}")
