#!/usr/bin/env python3
"""Horovod's interface for Keras: a wrapped optimizer, and callbacks."""

import digits
import keras
import numpy as np

import tfdist.horovod.keras as hvd  # was: import horovod.keras as hvd

hvd.init()
args = digits.arguments()
x, y = (digits.mine(part, hvd.rank(), hvd.size()) for part in digits.load())

keras.utils.set_random_seed(hvd.rank())
model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.Conv2D(8, 3, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
scaled_lr = args.lr * hvd.size()
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(scaled_lr, momentum=0.9))
model.compile(loss="sparse_categorical_crossentropy", optimizer=optimizer, metrics=["accuracy"])
steps_per_epoch = len(x) // args.batch_size
epochs = max(3, args.steps // steps_per_epoch)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateScheduleCallback(scaled_lr, start_epoch=1, multiplier=0.5),
]
history = model.fit(
    x, y, batch_size=args.batch_size, epochs=epochs, shuffle=False, callbacks=callbacks,
    verbose=2 if hvd.rank() == 0 else 0,
).history  # fmt: skip
if hvd.rank() == 0:
    print(f"loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.4f}")
    if args.save:
        np.savez(args.save, *model.get_weights())
