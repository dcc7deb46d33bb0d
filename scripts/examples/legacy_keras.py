#!/usr/bin/env python3
"""Keras 2 (``tf_keras``), as in older scripts."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # must be set before TensorFlow is imported

import numpy as np
import tensorflow as tf

import tfdist

random = np.random.default_rng(0)
x = random.normal(size=(4096, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")

model = tf.keras.Sequential([tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.legacy.SGD(0.05, momentum=0.9, clipnorm=1.0), "mse")
verbose = 2 if tfdist.rank() == 0 else 0
losses = model.fit(tfdist.shard(x), tfdist.shard(y), batch_size=64, epochs=5, verbose=verbose).history["loss"]
if tfdist.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
