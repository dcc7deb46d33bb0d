"""Character convolution: computes a source word's vector from its characters, also for words that are not in training.

The vector is the largest response of each filter of a convolution over the word's characters. All filters have one
width (Kim, Jernite, Sontag, Rush 2016, "Character-aware neural language models", section 2.1):

    f_i = <C[:, i:i+5], H>,   y = tanh(max_i f_i + b)

where C are the characters' embeddings. (The paper takes the tanh before the maximum; the result is the same, and this
order is cheaper.) A window counts if it begins inside the word; near the word's end it also reads padding.
"""

from __future__ import annotations

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.text.character_vocabulary import PADDING, SENTENCE_PADDING, WORD_LENGTH

CHARACTER_SIZE = 16  # Kim et al. have 15
WIDTH = 5


class CharacterEmbedding:
    """Embedding of words given as characters.

    Creates `embeddings/encoder/embedding_encoder` [NUM_CHARACTERS, CHARACTER_SIZE] and
    `embeddings/encoder/convolution/{kernel, bias}`, [WIDTH, CHARACTER_SIZE, source_size] and [source_size].
    """

    def __init__(self, architecture: Architecture) -> None:
        get = tf.compat.v1.get_variable
        self._size = architecture.source_size
        self._table = get(architecture.source_embedding, [architecture.src_vocab_size, CHARACTER_SIZE])
        with tf.compat.v1.variable_scope("embeddings/encoder/convolution"):
            self._kernel = tf.identity(get("kernel", [WIDTH, CHARACTER_SIZE, self._size]))
            self._bias = tf.identity(get("bias", [self._size], initializer=tf.compat.v1.zeros_initializer()))

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Return the vectors [time, batch, source_size] of words, int32 [time, batch, WORD_LENGTH].

        A word's vector does not depend on its neighbours. Past a sentence's end all its elements are -1.
        """
        words = tf.reshape(ids, [-1, WORD_LENGTH])
        inside = tf.not_equal(words, PADDING) & tf.not_equal(words, SENTENCE_PADDING)
        longest = tf.reduce_max(tf.reduce_sum(tf.cast(inside, tf.int32), 1))
        # Few words are as long as the array. Columns with padding only would be most of the work and are cut off.
        used = tf.clip_by_value(longest + WIDTH - 1, WIDTH, WORD_LENGTH)
        characters = tf.nn.embedding_lookup(self._table, words[:, :used])
        responses = tf.nn.conv1d(characters, self._kernel, 1, "VALID")  # [words, used - WIDTH + 1, source_size]
        begins = inside[:, : used - WIDTH + 1, None]
        # A large finite number, because minus infinity has no gradient.
        nothing = tf.constant(-1e30, responses.dtype)
        best = tf.reduce_max(tf.where(begins, responses, nothing), 1)
        vectors = tf.reshape(tf.tanh(best + self._bias), tf.concat([tf.shape(ids)[:2], [self._size]], 0))
        vectors.set_shape([None, None, self._size])
        return vectors
