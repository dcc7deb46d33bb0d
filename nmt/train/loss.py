"""What a summed cross-entropy becomes: the quantity that is descended, and the quantity that is printed."""

from __future__ import annotations

import math

import tensorflow as tf


def per_sentence(loss_sum: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
    """The training loss: nats summed over target words, divided by the number of sentences (both scalars).

    With `sentences` = sentences in the batch of all ranks / number of ranks, the mean of this over the ranks
    is what one process gets from the whole batch, whether or not the ranks' slices are equally large.
    """
    return loss_sum / tf.cast(sentences, loss_sum.dtype)


def perplexity(loss_sum: float, words: float) -> float:
    """exp(nats per target word, eos counted); infinite where that overflows, NaN if there are no words.

    >>> perplexity(2 * math.log(8), 2)
    8.0
    """
    if words <= 0:
        return math.nan
    try:
        return math.exp(loss_sum / words)
    except OverflowError:
        return math.inf
