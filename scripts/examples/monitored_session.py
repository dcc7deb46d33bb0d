#!/usr/bin/env python3
"""TensorFlow 1: a monitored session with hooks; only rank 0 writes checkpoints."""

import tempfile

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
step = v1.train.get_or_create_global_step()
train = v1.train.AdamOptimizer(0.05).minimize(loss, global_step=step)

directory = tempfile.mkdtemp() if tfdist.rank() == 0 else None
hooks = [v1.train.StopAtStepHook(last_step=200), v1.train.NanTensorHook(loss)]
losses = []
with v1.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=hooks) as session:
    while not session.should_stop():
        losses.append(session.run([loss, train])[0])
if tfdist.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
