#!/usr/bin/env python3
"""Keras: ``compile`` and ``fit``, with callbacks and validation. Every rank trains on its part of the data."""

import tempfile

import keras
import numpy as np

import tfdist  # the only necessary line; also used below to shard the data

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
train_x, train_y = tfdist.shard(x[:3584]), tfdist.shard(y[:3584])

model = keras.Sequential([keras.Input([20]), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(1e-2, clipnorm=1.0), "mse", metrics=["mae"])
history = model.fit(
    train_x,
    train_y,
    batch_size=64,
    epochs=5,
    verbose=2,
    validation_data=(x[3584:], y[3584:]),
    callbacks=[
        keras.callbacks.EarlyStopping("val_loss", patience=2),
        keras.callbacks.ModelCheckpoint(f"{tempfile.mkdtemp()}/best.keras", save_best_only=True),
    ],
).history
if tfdist.rank() == 0:
    print(f"loss {history['loss'][0]:.4f} -> {history['loss'][-1]:.4f}")
