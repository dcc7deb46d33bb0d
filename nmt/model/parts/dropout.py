"""Dropout with masks that are a pure function of a seed (Srivastava et al. 2014, inverted scaling).

The caller feeds one [2] int32 seed per training step; every place that drops folds in its own number. The
same seed thus gives the same masks, whatever else the graph draws and however its operations are scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

DROPOUT_MASKS = ("step", "sentence")


@dataclass(frozen=True)
class OtherDropout:
    """Probabilities to drop, beside that of a layer's input.

    Attributes:
        source_words: of a source word as a whole, whose vector is then zero (Gal, Ghahramani 2016, section 4.2,
            but each occurrence by itself).
        target_words: of a target word that the decoder reads.
        outputs: of a number in the vectors that the output layer reads.
        attention: of a weight of attention, where a family has such a dropout.
        activations: of a number inside a feed-forward layer, behind its activation; likewise.
    """

    source_words: float = 0.0
    target_words: float = 0.0
    outputs: float = 0.0
    attention: float = 0.0
    activations: float = 0.0


class Dropout:
    """Masks for all the places of one model, numbered in the order in which they are built.

    Args:
        rate: the probability to drop, in [0, 1). At 0 nothing is added to the graph.
        seed: int32 [2], wanted when rate > 0.
        first_place: the number of the first, where a model has several of these.
        per_sentence: whether a place has one mask for all times of a sentence (Gal, Ghahramani 2016), and not another
            at each.

    Raises:
        ValueError: rate out of range, or no seed to draw from.
    """

    def __init__(
        self, rate: float = 0.0, seed: tf.Tensor | None = None, first_place: int = 0, per_sentence: bool = False
    ) -> None:
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"dropout is {rate}; it must be at least 0 and less than 1")
        if rate > 0.0 and seed is None:
            raise ValueError(
                f"dropout is {rate}, but there is no dropout_seed (an int32 tensor of shape [2])",
            )
        self._keep = 1.0 - rate
        self._seed = seed
        self._places = first_place
        self._per_sentence = per_sentence

    @property
    def keep(self) -> float:
        """The probability to keep."""
        return self._keep

    @property
    def active(self) -> bool:
        """Whether anything is dropped."""
        return self._keep < 1.0

    def mask(self, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Factors [time, batch, size]: 0 where dropped, 1 / (1 - rate) where kept. Only when active."""
        factors = self._factors(shape, dtype)
        return tf.broadcast_to(factors, shape) if self._per_sentence else factors

    def _factors(self, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """The same; [1, batch, size] if they are equal at all times."""
        shape = tf.concat([[1], shape[1:]], 0) if self._per_sentence else shape
        seed = tf.random.experimental.stateless_fold_in(self._seed, self._places)
        self._places += 1
        # Two draws of 16 bits from each random number take half the time, of which masks took 3 % of a training step.
        size = tf.reduce_prod(shape)
        numbers = tf.random.stateless_uniform([(size + 1) // 2], seed, None, None, tf.uint32)
        halves = tf.reshape(tf.bitcast(numbers, tf.uint16), [-1])[:size]
        kept = tf.reshape(halves < tf.constant(min(round(self._keep * 2**16), 2**16 - 1), tf.uint16), shape)
        return tf.cast(kept, dtype) * tf.constant(1.0 / self._keep, dtype)

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        """Values [time, batch, size] with a fresh mask."""
        if not self.active:
            return values
        return values * self._factors(tf.shape(values), values.dtype)

    def whole(self, vectors: tf.Tensor) -> tf.Tensor:
        """Vectors [time, batch, size], each kept or dropped as a whole."""
        if not self.active:
            return vectors
        return vectors * self.mask(tf.concat([tf.shape(vectors)[:2], [1]], 0), vectors.dtype)
