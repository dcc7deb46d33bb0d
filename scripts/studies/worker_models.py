"""Worker models: two small models for many workers, which one process computes together.

Each weight has a first axis for the worker. A sample is a row of word numbers: 0 is an unknown word, 1 the start, 2 the
end.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

WORDS = 1000
_UNKNOWN, _START, _END, _NOTHING = 0, 1, 2, -1
Weights = Sequence[Any]
Shapes = list[tuple[int, ...]]


class Model(Protocol):
    """One model and its data.

    Attributes:
      train: int32 [samples, numbers].
      held_out: int32 [samples, numbers].
      shapes: shapes of a worker's weights.
    """

    train: np.ndarray
    held_out: np.ndarray
    shapes: Shapes

    def losses(self, weights: Weights, samples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the sums of the losses of each worker's words, and the numbers of the words, float32 [workers].

        Args:
          weights: as ``shapes``, with a first axis for the worker.
          samples: int32 [workers, batch, numbers].
        """


class NextWord:
    """Predicts the next word from the three before it (Bengio et al. 2003): embeddings, one hidden layer, softmax.

    Args:
      path: text whose words are separated by spaces.
    """

    _CONTEXT, _EMBEDDING, _HIDDEN, _HELD_OUT = 3, 24, 64, 20_000

    def __init__(self, path: Path) -> None:
        context, rows = self._CONTEXT, []
        for line in _numbers(path):
            numbers = [_START] * context + line + [_END]
            rows += [numbers[at : at + context + 1] for at in range(len(numbers) - context)]
        self.train, self.held_out = _split(rows, self._HELD_OUT, [path])
        inputs = context * self._EMBEDDING
        self.shapes: Shapes = [(WORDS, self._EMBEDDING), (inputs, self._HIDDEN), (self._HIDDEN,)]
        self.shapes += [(self._HIDDEN, WORDS), (WORDS,)]

    def losses(self, weights: Weights, samples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See ``Model``."""
        embedding, hidden, hidden_bias, output, output_bias = weights
        workers, batch = tf.shape(samples)[0], tf.shape(samples)[1]
        read = tf.gather(embedding, samples[:, :, :-1], batch_dims=1)
        inputs = tf.reshape(read, [workers, batch, self._CONTEXT * self._EMBEDDING])
        middle = tf.tanh(tf.matmul(inputs, hidden) + hidden_bias[:, None])
        found = _loss(tf.matmul(middle, output) + output_bias[:, None], samples[:, :, -1])
        return tf.reduce_sum(found, 1), tf.fill([workers], tf.cast(batch, tf.float32))


class Translator:
    """Translates sentences of up to twelve words: an LSTM reads, and another one writes (Sutskever et al. 2014).

    Args:
      source: text whose words are separated by spaces.
      target: its translation, line by line.
    """

    _LENGTH, _EMBEDDING, _HIDDEN, _HELD_OUT = 12, 24, 48, 1000

    def __init__(self, source: Path, target: Path) -> None:
        rows = []
        for ours, theirs in zip(_numbers(source), _numbers(target), strict=True):
            if max(len(ours), len(theirs)) <= self._LENGTH:
                padded = ours + [_END] * (self._LENGTH - len(ours))
                wanted = [*theirs, _END] + [_NOTHING] * (self._LENGTH - len(theirs))
                rows.append(padded + wanted)
        self.train, self.held_out = _split(rows, self._HELD_OUT, [source, target])
        cell = (self._EMBEDDING + self._HIDDEN, 4 * self._HIDDEN)
        self.shapes: Shapes = [(WORDS, self._EMBEDDING), (WORDS, self._EMBEDDING)]
        self.shapes += [cell, (4 * self._HIDDEN,), cell, (4 * self._HIDDEN,), (self._HIDDEN, WORDS), (WORDS,)]

    def losses(self, weights: Weights, samples: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See ``Model``."""
        ours, theirs, reader, reader_bias, writer, writer_bias, output, output_bias = weights
        source, wanted = samples[:, :, : self._LENGTH], samples[:, :, self._LENGTH :]
        begun = tf.concat([tf.fill(tf.shape(wanted[:, :, :1]), _START), tf.maximum(wanted[:, :, :-1], 0)], 2)
        nothing = tf.zeros([*tf.unstack(tf.shape(samples))[:2], self._HIDDEN])
        state, losses, counts = (nothing, nothing), [], []
        for place in range(self._LENGTH):
            state = _lstm(tf.gather(ours, source[:, :, place], batch_dims=1), state, reader, reader_bias)
        for place in range(self._LENGTH + 1):
            state = _lstm(tf.gather(theirs, begun[:, :, place], batch_dims=1), state, writer, writer_bias)
            known = tf.cast(wanted[:, :, place] != _NOTHING, tf.float32)
            logits = tf.matmul(state[0], output) + output_bias[:, None]
            losses.append(tf.reduce_sum(known * _loss(logits, tf.maximum(wanted[:, :, place], 0)), 1))
            counts.append(tf.reduce_sum(known, 1))
        return tf.add_n(losses), tf.add_n(counts)


def _lstm(inputs: Any, state: tuple[Any, Any], kernel: Any, bias: Any) -> tuple[Any, Any]:
    """Return the next hidden state and cell state of an LSTM, float32 [workers, batch, hidden]."""
    hidden, cell = state
    gates = tf.matmul(tf.concat([inputs, hidden], 2), kernel) + bias[:, None]
    enter, forget, new, leave = tf.split(gates, 4, 2)
    cell = tf.sigmoid(forget + 1) * cell + tf.sigmoid(enter) * tf.tanh(new)
    return tf.sigmoid(leave) * tf.tanh(cell), cell


def _loss(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


def _numbers(path: Path) -> list[list[int]]:
    """Return the numbers of the words of each line."""
    lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    counts = Counter(word for line in lines for word in line)
    ids = {word: number for number, (word, _) in enumerate(counts.most_common(WORDS - 3), 3)}
    return [[ids.get(word, _UNKNOWN) for word in line] for line in lines]


def _split(rows: Sequence[Sequence[int]], held_out: int, paths: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Return training samples and held-out ones. Raises SystemExit if there are too few."""
    if len(rows) < 2 * held_out:
        names = ", ".join(map(str, paths))
        sys.exit(f"{names}: {len(rows)} samples; give a text with at least {2 * held_out}")
    every = np.array(rows, np.int32)
    return every[:-held_out], every[-held_out:]


def initial(model: Model, seed: int) -> list[np.ndarray]:
    """Return initial weights, the same for each way to train."""
    random = np.random.default_rng(seed)
    return [
        random.normal(size=shape, scale=0.1 if shape[0] == WORDS else shape[0] ** -0.5).astype(np.float32)
        if len(shape) > 1
        else np.zeros(shape, np.float32)
        for shape in model.shapes
    ]


def parameters(model: Model) -> int:
    """Return the number of a worker's weights."""
    return sum(math.prod(shape) for shape in model.shapes)
