"""Dropout whose masks are a pure function of a seed (Srivastava et al. 2014, inverted scaling).

The caller feeds one seed, int32 [2], in each training step. Each dropout operation of the graph folds its own number
into the seed. Equal seeds therefore give equal masks, independent of other random operations and of scheduling.
"""

from __future__ import annotations

import tensorflow as tf


class Dropout:
    """Dropout with one rate in a model; its operations are numbered in the order in which they are built.

    Args:
        rate: dropout probability, in [0, 1). At 0 nothing is added to the graph.
        seed: int32 [2], required when rate > 0.
        first_place: number of the first operation, so that the numbers of several `Dropout` objects differ.
        per_sentence: True if an operation uses one mask for all times of a sentence (Gal, Ghahramani 2016), False for
            a new mask at each time.
    """

    def __init__(
        self, rate: float = 0.0, seed: tf.Tensor | None = None, first_place: int = 0, per_sentence: bool = False
    ) -> None:
        self._keep = 1.0 - rate
        self._seed = seed
        self._places = first_place
        self._per_sentence = per_sentence

    @property
    def keep(self) -> float:
        """The probability that an element is kept."""
        return self._keep

    @property
    def active(self) -> bool:
        """True if the dropout probability is not 0."""
        return self._keep < 1.0

    def mask(self, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return a mask [time, batch, size]: 0 where dropped, 1 / (1 - rate) where kept. Call only when active."""
        factors = self._factors(shape, dtype)
        return tf.broadcast_to(factors, shape) if self._per_sentence else factors

    def _factors(self, shape: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        """Return a mask as `mask`, or [1, batch, size] if it is equal at all times."""
        shape = tf.concat([[1], shape[1:]], 0) if self._per_sentence else shape
        seed = tf.random.experimental.stateless_fold_in(self._seed, self._places)
        self._places += 1
        # Two draws of 16 bits from each random number take half the time. Masks took 3 % of a training step.
        size = tf.reduce_prod(shape)
        numbers = tf.random.stateless_uniform([(size + 1) // 2], seed, None, None, tf.uint32)
        halves = tf.reshape(tf.bitcast(numbers, tf.uint16), [-1])[:size]
        kept = tf.reshape(halves < tf.constant(min(round(self._keep * 2**16), 2**16 - 1), tf.uint16), shape)
        return tf.cast(kept, dtype) * tf.constant(1.0 / self._keep, dtype)

    def __call__(self, values: tf.Tensor) -> tf.Tensor:
        """Return the values [time, batch, size] with a new mask applied."""
        if not self.active:
            return values
        return values * self._factors(tf.shape(values), values.dtype)

    def whole(self, vectors: tf.Tensor) -> tf.Tensor:
        """Return the vectors [time, batch, size], each either kept or dropped as a whole."""
        if not self.active:
            return vectors
        return vectors * self.mask(tf.concat([tf.shape(vectors)[:2], [1]], 0), vectors.dtype)
