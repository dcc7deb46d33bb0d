#!/usr/bin/env python3
"""Horovod's interface for TensorFlow 1: a wrapped optimizer, a broadcast operation, and a plain session."""

import digits
import numpy as np
import tensorflow as tf

import tfdist.horovod as hvd  # was: import horovod.tensorflow as hvd

v1 = tf.compat.v1
v1.disable_eager_execution()
hvd.init()
args = digits.arguments()
data = tuple(digits.mine(part, hvd.rank(), hvd.size()) for part in digits.load())

v1.set_random_seed(hvd.rank())
images = v1.placeholder(tf.float32, [None, 8, 8, 1])
labels = v1.placeholder(tf.int64, [None])
hidden_kernel = v1.get_variable("hidden/kernel", [64, 32])
hidden_bias = v1.get_variable("hidden/bias", [32], initializer=v1.zeros_initializer())
kernel = v1.get_variable("output/kernel", [32, 10])
hidden = tf.tanh(tf.reshape(images, [-1, 64]) @ hidden_kernel + hidden_bias)
losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=hidden @ kernel)
loss = tf.reduce_mean(losses)

optimizer = v1.train.MomentumOptimizer(args.lr * hvd.size(), 0.9)
optimizer = hvd.DistributedOptimizer(optimizer)
train = optimizer.minimize(loss, global_step=v1.train.get_or_create_global_step())
bcast = hvd.broadcast_global_variables(0)

with v1.Session() as session:
    session.run(v1.global_variables_initializer())
    session.run(bcast)
    seen = []
    for x, y in digits.batches(data, args.batch_size, args.steps):
        seen.append(session.run([loss, train], {images: x, labels: y})[0])
    weights = session.run({v.op.name: v for v in v1.trainable_variables()})
if hvd.rank() == 0:
    print(f"loss {seen[0]:.4f} -> {seen[-1]:.4f}")
    if args.save:
        np.savez(args.save, *[weights[name] for name in sorted(weights)])
