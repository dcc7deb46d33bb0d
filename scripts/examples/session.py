#!/usr/bin/env python3
"""TensorFlow 1: a graph and a session, with gradients clipped before they are applied."""

import numpy as np
import tensorflow as tf

import tfdist

v1 = tf.compat.v1
v1.disable_eager_execution()

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
dataset = tfdist.shard(tf.data.Dataset.from_tensor_slices((x, y)).shuffle(4096, seed=1).repeat()).batch(64)
features, labels = v1.data.make_one_shot_iterator(dataset).get_next()

kernel = v1.get_variable("kernel", [20, 1])
loss = tf.reduce_mean((tf.tanh(features @ kernel) - labels) ** 2)
gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, [kernel]), 1.0)
train = v1.train.MomentumOptimizer(0.05, 0.9).apply_gradients(zip(gradients, [kernel]))
mean = tfdist.all_reduce(loss)

with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    before = session.run(mean)
    for _ in range(200):
        session.run(train)
    after = session.run(mean)
if tfdist.rank() == 0:
    print(f"loss {before:.4f} -> {after:.4f}")
