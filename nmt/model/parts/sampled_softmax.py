"""Sampled softmax: cross-entropy over a sample of the vocabulary (Jean, Cho, Memisevic, Bengio 2015, section 3).

The softmax is taken over a word's label and n distinct words S that are drawn for the whole batch, each logit z
corrected by how often its word is expected in a sample (TensorFlow's candidate sampling reference, "Sampled softmax"):

    loss = -log(exp(z_label - log E_label) / sum over k in S + {label} of exp(z_k - log E_k))

A drawn word that is a position's label does not count there a second time. Words are drawn one after the other, the
ones drawn before put back but not counted, with the log-uniform probabilities of TensorFlow's sampler, which suit a
vocabulary in order of frequency:

    P(k) = log((k + 2) / (k + 1)) / log(V + 1),    E_k = 1 - (1 - P(k))^draws

TensorFlow's sampler has a state, so that a run could not be repeated; here the sample is a pure function of a seed, of
the same distribution.
"""

from __future__ import annotations

import tensorflow as tf


def sampled_cross_entropy_sum(
    rows: tf.Tensor, kernel: tf.Tensor, labels: tf.Tensor, num_sampled: int, seed: tf.Tensor
) -> tf.Tensor:
    """The loss above in nats, summed.

    Only the columns of the labels and of the sample are read. The kernel's gradient is dense all the same: slices
    are of rows, and these are columns. That costs one pass over the kernel, as the update does.

    Args:
        rows: [positions, units]; there may be no positions.
        kernel: [units, vocabulary].
        labels: int32 [positions].
        num_sampled: n, from 1 to vocabulary.
        seed: int32 [2]; equal seeds, equal samples.

    Returns:
        a scalar of the rows' type. Its size says little beside that of the full softmax.
    """
    vocabulary = kernel.shape[1]
    sample, draws = log_uniform_sample(vocabulary, num_sampled, seed)
    log_expected = tf.cast(tf.math.log(expected_counts(vocabulary, draws)), rows.dtype)
    weights = tf.transpose(tf.gather(kernel, tf.concat([labels, sample], 0), axis=1))
    of_labels, of_sample = tf.split(weights, tf.stack([tf.size(labels), num_sampled]))
    right = tf.reduce_sum(rows * of_labels, 1) - tf.gather(log_expected, labels)
    # Behind this operation mixed precision stays in float32: see `nmt.model.parts.softmax_cross_entropy`.
    products = tf.ensure_shape(tf.matmul(rows, of_sample, transpose_b=True), [None, num_sampled])
    logits = tf.where(
        tf.equal(labels[:, None], sample),
        tf.constant(-1e30, rows.dtype),
        products - tf.gather(log_expected, sample),
    )
    return tf.reduce_sum(tf.reduce_logsumexp(tf.concat([right[:, None], logits], 1), 1) - right)


def log_uniform_sample(vocabulary: int, num_sampled: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Distinct words in the order in which they are drawn, int32 [num_sampled], and the draws that they took.

    If the draws of word k arrive at the rate P(k), its first one comes after -log(u) / P(k) for a uniform u, and the
    earliest n words are the sample (Efraimidis & Spirakis 2006). Between two new words the draws of old ones are
    independent of which they are, and geometrically distributed.
    """
    of_words, of_draws = (tf.random.experimental.stateless_fold_in(seed, part) for part in range(2))
    probabilities = log_uniform(vocabulary)
    arrival = -_uniform_logarithms(vocabulary, of_words) / probabilities
    _, sample = tf.math.top_k(-arrival, num_sampled)
    repeated = tf.cumsum(tf.gather(probabilities, sample), exclusive=True)  # the chance to draw an old word
    wasted = tf.floor(_uniform_logarithms(num_sampled, of_draws) / tf.math.log(repeated))
    return sample, num_sampled + tf.reduce_sum(wasted)


def log_uniform(vocabulary: int) -> tf.Tensor:
    """P(k), float64 [vocabulary]."""
    rank = tf.range(1, vocabulary + 1, dtype=tf.float64)
    return tf.math.log1p(1 / rank) / tf.math.log(tf.constant(vocabulary + 1.0, tf.float64))


def expected_counts(vocabulary: int, draws: tf.Tensor) -> tf.Tensor:
    """E_k, float64 [vocabulary]."""
    return -tf.math.expm1(draws * tf.math.log1p(-log_uniform(vocabulary)))


def _uniform_logarithms(count: int, seed: tf.Tensor) -> tf.Tensor:
    """Logarithms of uniform numbers in (0, 1), float64 [count]."""
    return tf.math.log(tf.random.stateless_uniform([count], seed, 1e-300, 1.0, tf.float64))
