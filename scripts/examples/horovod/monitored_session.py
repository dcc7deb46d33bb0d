#!/usr/bin/env python3
"""Horovod's interface for TensorFlow 1: a monitored session, with hooks for the broadcast and the last step."""

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
dataset = tf.data.Dataset.from_tensor_slices(data).repeat().batch(args.batch_size)
images, labels = v1.data.make_one_shot_iterator(dataset).get_next()
kernel = v1.get_variable("kernel", [64, 10])
bias = v1.get_variable("bias", [10], initializer=v1.zeros_initializer())
logits = tf.reshape(images, [-1, 64]) @ kernel + bias
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))

step = v1.train.get_or_create_global_step()
optimizer = hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.1 * args.lr * hvd.size()), op=hvd.Average)
gradients, variables = zip(*optimizer.compute_gradients(loss))
clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
train = optimizer.apply_gradients(zip(clipped, variables), global_step=step)
last = args.steps // hvd.size() * hvd.size()

hooks = [hvd.BroadcastGlobalVariablesHook(0), v1.train.StopAtStepHook(last_step=last)]
seen, weights = [], []
with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
    while not session.should_stop():
        seen.append(session.run([loss, train])[0])
        if len(seen) == last - 1:
            weights = session.run([bias, kernel])  # before the last step
if hvd.rank() == 0:
    print(f"loss {seen[0]:.4f} -> {seen[-1]:.4f}")
    if args.save:
        np.savez(args.save, *weights)
