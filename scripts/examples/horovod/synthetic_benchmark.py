#!/usr/bin/env python3
"""Horovod's synthetic benchmark: images a second of one rank and of all ranks, on artificial data."""

import timeit

import digits
import keras
import numpy as np
import tensorflow as tf

import tfdist.horovod as hvd  # was: import horovod.tensorflow as hvd

hvd.init()
args = digits.arguments()
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.Flatten(),
        keras.layers.Dense(256, activation="relu"),
        keras.layers.Dense(10),
    ]
)
optimizer = keras.optimizers.SGD(args.lr * hvd.size())
images, labels = digits.load()
data = tf.constant(digits.mine(images, hvd.rank(), hvd.size())[: args.batch_size])
target = tf.constant(digits.mine(labels, hvd.rank(), hvd.size())[: args.batch_size])
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def benchmark_step(first_batch):
    """Train one step on the same batch, and return the loss."""
    with tf.GradientTape() as tape:
        loss = loss_of(target, model(data, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=hvd.Compression.none)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    if first_batch:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return loss


first = float(benchmark_step(True))
per_second = []
for _ in range(3):
    seconds = timeit.timeit(lambda: benchmark_step(False), number=args.steps // 4)
    per_second.append(args.batch_size * (args.steps // 4) / seconds)
last = float(benchmark_step(False))
if hvd.rank() == 0:
    mean, spread = np.mean(per_second), 1.96 * np.std(per_second)
    print(f"images a second of each rank: {mean:.1f} +- {spread:.1f}")
    print(f"images a second of {hvd.size()} ranks: {hvd.size() * mean:.1f} +- {hvd.size() * spread:.1f}")
    print(f"loss {first:.4f} -> {last:.4f}")
    if args.save:
        np.savez(args.save, *model.get_weights())
