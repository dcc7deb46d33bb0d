#!/usr/bin/env python3
"""A small image classifier for one process: convolutions, SGD with momentum, seven-segment digits in noise.

python image.py
TFDIST_AUTOSHARD=1 mpirun -n 2 python image.py --batch 32
TFDIST_MIXED_PRECISION=fp16 TFDIST_LOSS_SCALE=backoff TFDIST_AUTOSHARD=1 mpirun -n 2 python image.py --batch 32
"""

import argparse

import keras
import numpy as np

import tfdist  # noqa: F401

SEGMENTS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")
PLACES = {  # rows and columns of each segment
    **{"a": (slice(0, 2), slice(0, 7)), "g": (slice(5, 7), slice(0, 7)), "d": (slice(10, 12), slice(0, 7))},
    **{"f": (slice(0, 6), slice(0, 2)), "b": (slice(0, 6), slice(5, 7))},
    **{"e": (slice(6, 12), slice(0, 2)), "c": (slice(6, 12), slice(5, 7))},
}

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--images", type=int, default=4096)
options = parser.parse_args()
random = np.random.default_rng(1)


def pictures(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images [count, 20, 20, 1], and the digits on them [count]."""
    digits = random.integers(0, 10, count)
    images = random.normal(0, 0.3, [count, 20, 20, 1]).astype("float32")
    for image, digit in zip(images, digits):
        top, left = random.integers(0, 9), random.integers(0, 14)
        for segment in SEGMENTS[digit]:
            rows, columns = PLACES[segment]
            image[top + rows.start : top + rows.stop, left + columns.start : left + columns.stop] += 1.0
    return (images - images.mean()) / images.std(), digits


keras.utils.set_random_seed(1)
x, y = pictures(options.images + 512)
model = keras.Sequential(
    [
        keras.Input([20, 20, 1]),
        keras.layers.Conv2D(16, 5, 2, activation="relu", kernel_initializer="he_normal"),
        keras.layers.Conv2D(32, 5, activation="relu", kernel_initializer="he_normal"),
        keras.layers.Flatten(),
        keras.layers.Dense(64, "relu", kernel_initializer="he_normal"),
        keras.layers.Dense(10),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.02, 0.9), loss, metrics=["accuracy"])
losses = model.fit(x[512:], y[512:], options.batch, options.epochs, shuffle=False, verbose=0).history["loss"]
_, accuracy = model.evaluate(x[:512], y[:512], verbose=0)
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, error rate {1 - accuracy:.1%}")
