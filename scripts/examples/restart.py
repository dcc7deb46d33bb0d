#!/usr/bin/env python3
"""A tape loop that continues from its last checkpoint.

    tfdist-run -n 2 --max-restarts 3 python scripts/examples/restart.py FOLDER [--crash]

With ``--crash`` the last rank dies once, at step 120: the second attempt continues from step 100. SIGTERM to any rank
ends all ranks after the same step, with a checkpoint.
"""

import os
import signal
import sys

import numpy as np
import tensorflow as tf

import tfdist

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
x, y = tfdist.shard((x, y))

kernel, step = tf.Variable(tf.zeros([20, 1])), tf.Variable(0, dtype=tf.int64, trainable=False)
optimizer = tf.keras.optimizers.Adam(0.05)
optimizer.build([kernel])  # its state exists before a checkpoint is restored
checkpoint = tf.train.Checkpoint(kernel=kernel, optimizer=optimizer, step=step)
manager = tf.train.CheckpointManager(checkpoint, sys.argv[1], max_to_keep=2)
checkpoint.restore(manager.latest_checkpoint)  # None at the first start: nothing is restored
begun = int(step)


@tf.function
def train(features, labels):
    """Train on one batch and return its loss."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.tanh(features @ kernel) - labels) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
    step.assign_add(1)
    return loss


signal.signal(signal.SIGTERM, lambda *_: tfdist.ask_to_stop())
losses = []
while int(step) < 200 and not tfdist.asked_to_stop():
    first = int(step) * 32 % len(x)  # the data follow from the step, so that a restart sees the same
    losses.append(float(train(x[first : first + 32], y[first : first + 32])))
    if int(step) % 50 == 0 or tfdist.asked_to_stop():
        manager.save()  # rank 0 writes
    last_rank = tfdist.rank() == tfdist.size() - 1
    if "--crash" in sys.argv and int(step) == 120 and last_rank and os.environ.get("TFDIST_RESTARTS", "0") == "0":
        os._exit(1)
if tfdist.rank() == 0:
    print(f"steps {begun} to {int(step)}, loss {losses[0]:.4f} -> {losses[-1]:.4f}")
