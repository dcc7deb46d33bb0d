#!/usr/bin/env python3
"""Horovod's interface for TensorFlow 2: a wrapped tape in a function, and a broadcast after the first batch."""

import digits
import keras
import numpy as np
import tensorflow as tf

import tfdist.horovod as hvd  # was: import horovod.tensorflow as hvd

hvd.init()
args = digits.arguments()
data = tuple(digits.mine(part, hvd.rank(), hvd.size()) for part in digits.load())

keras.utils.set_random_seed(1)  # all ranks need rank 0's weights, since the first step comes before the broadcast
model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10),
    ]
)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)


@tf.function
def training_step(images, labels, first_batch):
    """Train one step and return the loss; after the first step, broadcast rank 0's variables."""
    with tf.GradientTape() as tape:
        loss = loss_of(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


seen = []
for number, (x, y) in enumerate(digits.batches(data, args.batch_size, args.steps)):
    seen.append(float(training_step(tf.constant(x), tf.constant(y), number == 0)))
if hvd.rank() == 0:
    print(f"loss {seen[0]:.4f} -> {seen[-1]:.4f}")
    if args.save:
        np.savez(args.save, *model.get_weights())
