"""Sampled softmax: cross-entropy over a sample of the vocabulary (Jean, Cho, Memisevic, Bengio 2015, section 3).

The softmax is over a position's label and n distinct words S, which are drawn once for the whole batch. Each logit z is
corrected by its word's expected count E in a sample (TensorFlow's candidate sampling reference, "Sampled softmax"):

    loss = -log(exp(z_label - log E_label) / sum over k in S + {label} of exp(z_k - log E_k))

A drawn word that equals a position's label is not counted there twice. Words are drawn one after the other with
replacement until n are distinct. The log-uniform probabilities are those of TensorFlow's sampler, which suit a
vocabulary sorted by frequency:

    P(k) = log((k + 2) / (k + 1)) / log(V + 1),    E_k = 1 - (1 - P(k))^draws

With TensorFlow's sampler, which has a state, a run could not be repeated. Here the sample has the same distribution and
is a pure function of a seed.
"""

from __future__ import annotations

import tensorflow as tf


def sampled_cross_entropy_sum(
    rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, num_sampled: int, seed: tf.Tensor
) -> tf.Tensor:
    """Return the loss above in nats, summed over the positions.

    Only the columns of the labels and of the sample are read. The kernel's gradient is dense nevertheless, because
    IndexedSlices hold rows and not columns. It costs one pass over the kernel, as the update does.

    Args:
        rows: the output layer's inputs, [positions, units]; 0 positions are allowed.
        kernel: kernel of the output layer, [units, vocabulary].
        labels: int32 [positions].
        num_sampled: n, from 1 to the size of the vocabulary.
        seed: int32 [2]; equal seeds give equal samples.

    Returns:
        a scalar of the rows' dtype. It is not comparable with the loss of the full softmax.
    """
    vocabulary = kernel.shape[1]
    sample, draws = log_uniform_sample(vocabulary, num_sampled, seed)
    log_expected = tf.cast(tf.math.log(expected_counts(vocabulary, draws)), rows.dtype)
    weights = tf.transpose(tf.gather(kernel, tf.concat([labels, sample], 0), axis=1))
    of_labels, of_sample = tf.split(weights, tf.stack([tf.size(labels), num_sampled]))
    right = tf.reduce_sum(rows * of_labels, 1) - tf.gather(log_expected, labels)
    # After `ensure_shape` mixed precision stays in float32: see `nmt.model.parts.softmax_cross_entropy`.
    products = tf.ensure_shape(tf.matmul(rows, of_sample, transpose_b=True), [None, num_sampled])
    logits = tf.where(
        tf.equal(labels[:, None], sample),
        tf.constant(-1e30, rows.dtype),
        products - tf.gather(log_expected, sample),
    )
    return tf.reduce_sum(tf.reduce_logsumexp(tf.concat([right[:, None], logits], 1), 1) - right)


def log_uniform_sample(vocabulary: int, num_sampled: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return distinct words in the order in which they are drawn, int32 [num_sampled], and the number of draws.

    If draws of word k arrive at the rate P(k), the first one arrives after the time -log(u) / P(k), with u uniform. The
    n earliest words are the sample (Efraimidis & Spirakis 2006). The number of repeated draws between two new words is
    geometrically distributed and does not depend on which words are repeated.
    """
    of_words, of_draws = (tf.random.experimental.stateless_fold_in(seed, part) for part in range(2))
    probabilities = log_uniform(vocabulary)
    arrival = -_uniform_logarithms(vocabulary, of_words) / probabilities
    _, sample = tf.math.top_k(-arrival, num_sampled)
    repeated = tf.cumsum(tf.gather(probabilities, sample), exclusive=True)  # the probability to draw a word again
    wasted = tf.floor(_uniform_logarithms(num_sampled, of_draws) / tf.math.log(repeated))
    return sample, num_sampled + tf.reduce_sum(wasted)


def log_uniform(vocabulary: int) -> tf.Tensor:
    """Return P(k), float64 [vocabulary]."""
    rank = tf.range(1, vocabulary + 1, dtype=tf.float64)
    return tf.math.log1p(1 / rank) / tf.math.log(tf.constant(vocabulary + 1.0, tf.float64))


def expected_counts(vocabulary: int, draws: tf.Tensor) -> tf.Tensor:
    """Return E_k, float64 [vocabulary]."""
    return -tf.math.expm1(draws * tf.math.log1p(-log_uniform(vocabulary)))


def _uniform_logarithms(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Return logarithms of uniform random numbers in (0, 1), float64 [count]."""
    return tf.math.log(tf.random.stateless_uniform([count], seed, 1e-300, 1.0, tf.float64))
