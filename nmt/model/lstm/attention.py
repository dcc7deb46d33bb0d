"""Attention of a decoder step to the encoder's outputs (the memory).

A query q [num_units] is scored against the key of each source position. A softmax over the positions of the sentence
gives the weights. The context is the weighted sum of the memory (not of the keys).

    luong           score = q . K                                (Luong et al. 2015, eq. 8, "general")
    scaled_luong    score = g (q . K)
    bahdanau        score = v . tanh(K + q Wq)                   (Bahdanau et al. 2015, appendix A.1.2)
    normed_bahdanau score = g v / |v| . tanh(K + q Wq + b)       (Salimans & Kingma 2016, eq. 2)

with K = memory Wm. Everything that does not depend on the query is computed once, before the decoder's loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.deferred_gradients import LoopOperand, batch_gradient

# (queries [batch * queries, num_units], keys [batch, time, num_units]) -> scores [batch, queries, time]
Score = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class AttendedMemory(NamedTuple):
    """Tensors of a batch of sentences that attention reads, computed once.

    Attributes:
        keys: keys, [batch, time, num_units].
        values: memory in batch-major order, [batch, time, memory_size], zero past the end.
        outside: mask added to the scores, [batch, time]: 0 inside a sentence, -1e30 past its end.
    """

    keys: tf.Tensor
    values: tf.Tensor
    outside: tf.Tensor


class Attention:
    """The variables of an attention.

    Creates, in the current variable scope, `memory_layer/kernel` [memory_size, num_units]. The variables of the score
    are in the scope `wrapper`: `luong_attention/attention_g` [] or
    `bahdanau_attention/{query_layer/kernel, attention_v, attention_g, attention_b}`.

    Args:
        architecture: the model's architecture.
        wrapper: variable scope of the cells that the attention is around.
    """

    def __init__(self, architecture: LSTMArchitecture, wrapper: str) -> None:
        units = architecture.num_units
        self._kind = architecture.attention
        get = tf.compat.v1.get_variable
        with tf.compat.v1.variable_scope("memory_layer"):
            self._memory_layer = tf.identity(get("kernel", [architecture.memory_size, units]))
        if self._kind == "scaled_luong":
            with tf.compat.v1.variable_scope(f"{wrapper}/luong_attention"):
                self._g = tf.identity(get("attention_g", [], initializer=tf.compat.v1.ones_initializer()))
        if "bahdanau" in self._kind:
            with tf.compat.v1.variable_scope(f"{wrapper}/bahdanau_attention"):
                self._v = tf.identity(get("attention_v", [units]))
                if self._kind == "normed_bahdanau":
                    start = tf.compat.v1.constant_initializer(math.sqrt(1.0 / units))
                    self._g = tf.identity(get("attention_g", [], initializer=start))
                    zeros = tf.compat.v1.zeros_initializer()
                    self._b = tf.identity(get("attention_b", [units], initializer=zeros))
                with tf.compat.v1.variable_scope("query_layer"):
                    self._query_layer = tf.identity(get("kernel", [units, units]))

    def over(self, memory: tf.Tensor, lengths: tf.Tensor) -> BoundAttention:
        """Return the attention to this memory [time, batch, memory_size], of these lengths (int32 [batch])."""
        time, batch = tf.unstack(tf.shape(memory)[:2])
        inside = tf.sequence_mask(lengths, time, memory.dtype)
        values = tf.transpose(memory, [1, 0, 2]) * inside[:, :, None]
        flat = tf.reshape(values, [-1, memory.shape[-1]])
        keys = tf.reshape(
            tf.matmul(flat, self._memory_layer),
            tf.stack([batch, time, self._memory_layer.shape[1]]),
        )
        # With a large finite number instead of minus infinity, weights past the end are exactly 0, too. And a sentence
        # without words gets a context of zeros instead of NaN.
        outside = (inside - 1.0) * 1e30
        if "luong" in self._kind:
            scaled = keys * self._g if self._kind == "scaled_luong" else keys
            return BoundAttention(_dots, True, AttendedMemory(scaled, values, outside))
        keys, score = self._additive(keys)
        return BoundAttention(score, False, AttendedMemory(keys, values, outside))

    def _additive(self, keys: tf.Tensor) -> tuple[tf.Tensor, Score]:
        v = self._v
        if self._kind == "normed_bahdanau":
            v = v * self._g * tf.math.rsqrt(tf.reduce_sum(tf.square(v)))
            keys += self._b

        def score(query: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
            projected = _by_sentence(tf.matmul(query, self._query_layer), keys)
            return tf.reduce_sum(v * tf.tanh(keys[:, None] + projected[:, :, None]), 3)

        return keys, score


class BoundAttention:
    """An attention to one batch of sentences.

    Args:
        score: score function of queries and keys.
        is_product: True if the score is the dot product of query and key.
        memory: keys, values and mask of the sentences.

    Attributes:
        memory: keys, values and mask of the sentences.
    """

    def __init__(self, score: Score, is_product: bool, memory: AttendedMemory) -> None:
        self._score = score
        self._is_product = is_product
        self.memory = memory

    def __call__(self, query: tf.Tensor, memory: AttendedMemory) -> tuple[tf.Tensor, tf.Tensor]:
        """Return contexts and weights of several queries per sentence, without a copy of the memory for each query.

        Args:
            query: queries, [batch * queries, num_units]; those of a sentence are consecutive.
            memory: the attribute `memory`, or its rows for some of the sentences.

        Returns:
            the contexts [batch * queries, memory_size] and the weights [batch * queries, time].
        """
        keys, values, outside = memory
        weights = tf.nn.softmax(self._score(query, keys) + outside[:, None])
        context = tf.reshape(tf.matmul(weights, values), tf.stack([-1, values.shape[2]]))
        return context, tf.reshape(weights, tf.stack([-1, tf.shape(values)[1]]))

    def in_loop(self, steps: tf.Tensor, context_kernel: tf.Tensor | None = None) -> AttentionInLoop:
        """Return this attention for use in one loop, with one query per sentence.

        Args:
            steps: number of steps of the loop, int32 [].
            context_kernel: kernel that each context is to be multiplied with, [memory_size, width]. The memory is
                multiplied once instead, and the contexts are these products [batch, width]. None for none.
        """
        memory = self.memory
        if context_kernel is not None:
            rows, width = context_kernel.shape
            product = tf.matmul(tf.reshape(memory.values, [-1, rows]), context_kernel)
            shape = tf.concat([tf.shape(memory.values)[:2], [width]], 0)
            memory = memory._replace(values=tf.reshape(product, shape))
        return AttentionInLoop(self._score, self._is_product, memory, steps)


class AttentionInLoop:
    """A `BoundAttention` in one loop; the gradients of keys and values are computed after the loop.

    See `nmt.model.lstm.deferred_gradients`. With an additive score (bahdanau) the keys' gradients are computed step by
    step, because keys and query pass through a tanh together.

    Attributes:
        outside: the mask for each step, [steps, batch, time], which `step` takes.
        zeros: zeros for each step, [steps, batch, width of a context], which `step` takes.
    """

    def __init__(
        self,
        score: Score,
        is_product: bool,
        memory: AttendedMemory,
        steps: tf.Tensor,
    ) -> None:
        keys, values, outside = memory
        self._scores: Callable[[tf.Tensor], tf.Tensor] = lambda query: score(query, keys)[:, 0]
        self.outside = tf.tile(outside[None], tf.stack([steps, 1, 1]))
        self._keys_operand: LoopOperand | None = None
        if is_product:
            operand = LoopOperand(keys, lambda queries, upstream: batch_gradient(upstream, queries))
            self._keys_operand = operand
            self._scores = lambda query: _products(query, operand.value)
            self.outside = operand.carry(self.outside)
        self._values = LoopOperand(values, batch_gradient)
        zeros = tf.zeros(tf.stack([steps, tf.shape(values)[0], values.shape[2]]), values.dtype)
        self.zeros = self._values.carry(zeros)

    def step(self, query: tf.Tensor, outside: tf.Tensor, zeros: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return contexts and weights of one step. Pass the queries and weights of all times to `close`."""
        weights = tf.nn.softmax(self._scores(query) + outside)
        return _weighted_sum(weights, self._values.value) + zeros, weights

    def close(self, queries: tf.Tensor, weights: tf.Tensor) -> None:
        """Take all queries [steps, batch, num_units] and weights [steps, batch, time] after the loop."""
        self._values.fed(weights)
        if self._keys_operand is not None:
            self._keys_operand.fed(queries)


def _dots(query: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    return tf.matmul(_by_sentence(query, keys), keys, transpose_b=True)


def _by_sentence(query: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Reshape queries [batch * queries, num_units] to [batch, queries, num_units]."""
    return tf.reshape(query, tf.stack([tf.shape(keys)[0], -1, query.shape[1]]))


def _products(vectors: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """[batch, n], [batch, time, n] -> [batch, time]: each sentence's vector times its rows. Rows get no gradient."""

    @tf.custom_gradient
    def products(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _each_row(vectors, rows), lambda upstream: _sum_of_rows(upstream, rows)

    return products(vectors)


def _weighted_sum(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """[batch, time], [batch, time, n] -> [batch, n]: weighted sum of each sentence's rows. Rows get no gradient."""

    @tf.custom_gradient
    def weighted(weights: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return _sum_of_rows(weights, rows), lambda upstream: _each_row(upstream, rows)

    return weighted(weights)


# Each function is the gradient of the other. A vector as the right operand is a third faster than transposed rows.
def _each_row(vectors: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.squeeze(tf.matmul(rows, vectors[:, :, None]), 2)


def _sum_of_rows(weights: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    return tf.squeeze(tf.matmul(weights[:, None], rows), 1)
