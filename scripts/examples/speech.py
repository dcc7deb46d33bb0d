#!/usr/bin/env python3
"""A speech recognizer for one process: spectrogram, convolutions, bidirectional LSTM, CTC (Graves et al. 2006).

    python speech.py
    TFDIST_AUTOSHARD=1 mpirun -n 2 python speech.py --batch 32
    TFDIST_SYNC=bmuf:steps=8 TFDIST_AUTOSHARD=1 mpirun -n 2 python speech.py --batch 32

The speech consists of telephone keys. Each digit is a chord of two tones with random length and pitch, in noise.
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import tfdist  # noqa: F401

RATE, SECONDS, DIGITS = 8000, 1.0, 5  # samples a second; seconds and most digits of an utterance
LOW, HIGH = (697, 770, 852, 941), (1209, 1336, 1477)

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--utterances", type=int, default=2048)
options = parser.parse_args()
random = np.random.default_rng(1)


def speak(digits: np.ndarray) -> np.ndarray:
    """Return the samples of one utterance."""
    sound, place, speed = (
        random.normal(0, 0.3, int(RATE * SECONDS)),
        random.integers(0, 400),
        random.uniform(0.97, 1.03),
    )
    for digit in digits:
        length, gap = random.integers(700, 1100), random.integers(150, 400)
        time = np.arange(length) / RATE * 2 * np.pi * speed
        chord = np.sin(LOW[digit // 3] * time) + np.sin(HIGH[digit % 3] * time)
        sound[place : place + length] += (chord * random.uniform(0.5, 1.0))[: len(sound) - place]
        place += length + gap
    return sound.astype("float32")


def corpus(utterances: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log spectrograms [utterances, frames, bins], and labels [utterances, DIGITS]: digit + 1, padded with 0."""
    labels = np.zeros([utterances, DIGITS], "int32")
    sounds = []
    for label in labels:
        digits = random.integers(0, 10, random.integers(2, DIGITS + 1))
        label[: len(digits)] = digits + 1
        sounds.append(speak(digits))
    frames = tf.abs(tf.signal.stft(np.array(sounds), frame_length=256, frame_step=128))
    return np.log(frames.numpy()[:, :, 16:64] + 1e-3), labels


def error_rate(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return insertions, deletions and substitutions per digit, with the best digit of each frame."""
    best = logits.argmax(2)
    written = np.where(np.diff(best, prepend=-1, axis=1) != 0, best, 0)
    rows = [[row[row > 0].tolist() for row in ids] for ids in (written, labels)]
    found, wanted = (tf.ragged.constant(one, tf.int64).to_sparse() for one in rows)
    distances = tf.edit_distance(found, wanted, normalize=False)
    return float(tf.reduce_sum(distances)) / int((labels > 0).sum())


keras.utils.set_random_seed(1)
x, y = corpus(options.utterances + 256)
inputs = keras.Input(x.shape[1:])
h = keras.layers.Reshape([*x.shape[1:], 1])(inputs)
h = keras.layers.Conv2D(16, 3, [1, 2], "same", activation="relu")(h)
h = keras.layers.Conv2D(16, 3, [2, 2], "same", activation="relu")(h)
h = keras.layers.Reshape([h.shape[1], h.shape[2] * h.shape[3]])(h)
h = keras.layers.Bidirectional(keras.layers.LSTM(48, return_sequences=True))(h)
model = keras.Model(inputs, keras.layers.Dense(11)(h))
model.compile(keras.optimizers.Adam(3e-3, clipnorm=1.0), keras.losses.CTC())
losses = model.fit(x[256:], y[256:], options.batch, options.epochs, shuffle=False, verbose=0).history["loss"]
errors = error_rate(model.predict(x[:256], verbose=0), y[:256])
print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, digit error rate {errors:.1%}")
