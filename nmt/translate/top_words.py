"""The most probable next words, and the sum that makes their logits log-probabilities, in few passes over all words.

A selection of k of n values looks at each value by itself; the greatest of a block of values does not. So the k blocks
with the greatest maxima are selected first, which hold the k greatest values, and then k of their values.
"""

from __future__ import annotations

import tensorflow as tf

_BLOCKS = sorted(range(32, 97), key=lambda size: abs(size - 64))


def top_words(
    logits: tf.Tensor, count: int, forbidden: tf.Tensor | None = None, block: int | None = None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The `count` greatest logits of each row, and all rows' logarithms of summed exponentials.

    Args:
        logits: [rows, vocabulary].
        count: at least 1; of fewer words, all are returned, if the graph knows how many there are.
        forbidden: [vocabulary], added to the logits before words are chosen, but not before they are summed up: 0, or
            minus infinity for a word that may not be chosen. None: all may be.
        block: words that are compared at once; None for about 64, and a divisor of the vocabulary if there is one:
            others cost a copy of the logits.

    Returns:
        logits [rows, count], greatest first, and of equal ones the first; their words, int32 [rows, count]; and
        log(sum(exp(logits))), [rows, 1], by which a logit is greater than the word's log-probability.
    """
    choice = logits if forbidden is None else logits + forbidden
    values, words = _greatest(choice, count, block)
    most = values[:, :1] if forbidden is None else tf.reduce_max(logits, 1, keepdims=True)
    return values, words, most + tf.math.log(tf.reduce_sum(tf.exp(logits - most), 1, keepdims=True))


def _greatest(logits: tf.Tensor, count: int, block: int | None) -> tuple[tf.Tensor, tf.Tensor]:
    vocabulary = logits.shape[1]
    if vocabulary is None:  # of a shortlist, which is short
        return tuple(tf.math.top_k(logits, count))
    block = block or next((size for size in _BLOCKS if vocabulary % size == 0), _BLOCKS[0])
    count, blocks = min(count, vocabulary), -(-vocabulary // block)
    if blocks < 2 * count:
        return tuple(tf.math.top_k(logits, count))
    return _of_blocks(logits, count, block, blocks)


def _of_blocks(logits: tf.Tensor, count: int, block: int, blocks: int) -> tuple[tf.Tensor, tf.Tensor]:
    missing = blocks * block - logits.shape[1]
    if missing:
        logits = tf.pad(logits, [[0, 0], [0, missing]], constant_values=-float("inf"))
    grouped = tf.reshape(logits, [-1, blocks, block])
    _, chosen = tf.math.top_k(tf.reduce_max(grouped, 2), count)
    chosen = tf.sort(chosen, 1)  # so that of equal values the first is taken
    values, places = tf.math.top_k(tf.reshape(tf.gather(grouped, chosen, batch_dims=1), [-1, count * block]), count)
    return values, tf.gather(chosen, places // block, batch_dims=1) * block + places % block
