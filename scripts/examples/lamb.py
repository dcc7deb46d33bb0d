#!/usr/bin/env python3
"""Large batches: Keras's own LAMB, with a learning rate for the batch of all ranks, a warmup and a decay.

LAMB (You et al. 2020) gives each layer a rate by its norms. It gets averaged gradients, so that only the import is
needed. For other optimizers use ``tfdist.larc(keras.optimizers.SGD(rate, 0.9))``.
"""

import keras
import numpy as np

import tfdist  # the only necessary line; also used below to shard the data, and for the learning rate

random = np.random.default_rng(0)
x = random.normal(size=(16384, 20)).astype("float32")
y = np.tanh(x @ random.normal(size=(20, 1))).astype("float32")
train_x, train_y = tfdist.shard(x), tfdist.shard(y)

batch, epochs = 256, 6
steps = epochs * len(train_x) // batch
decay = keras.optimizers.schedules.PolynomialDecay(1e-2, steps, end_learning_rate=0.0)
rate = tfdist.schedules.scaled(decay, "sqrt", warmup_steps=steps // 10)

model = keras.Sequential([keras.Input([20]), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.Lamb(rate), "mse")
losses = model.fit(train_x, train_y, batch_size=batch, epochs=epochs, verbose=2).history["loss"]
if tfdist.rank() == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
