"""Sublayers of a Transformer (Vaswani et al. 2017, section 3.1), each with its residual sum and normalisation."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from nmt.model.parts.dense import Dense
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.layer_norm import LayerNorm
from nmt.model.transformer.architecture import TransformerArchitecture
from nmt.model.transformer.attention import Attention, Keys

_scope = tf.compat.v1.variable_scope


class Dropouts:
    """The dropouts of a Transformer in training.

    Args:
        results: dropout of each sublayer's output before the residual sum, and of the embeddings.
        attention: dropout of attention weights.
        activations: dropout inside feed-forward layers.
    """

    def __init__(self, results: Dropout, attention: Dropout, activations: Dropout) -> None:
        self.results, self.attention, self.activations = results, attention, activations


class _Residual:
    """Residual sum with layer normalisation: x + part(norm(x)) for "pre", norm(x + part(x)) for "post"."""

    def __init__(self, architecture: TransformerArchitecture, dropout: Dropout) -> None:
        self._before, self._dropout = architecture.norm == "pre", dropout
        self._norm = LayerNorm("norm", architecture.num_units)

    def __call__(self, x: tf.Tensor, part: Callable[[tf.Tensor], tf.Tensor], drop: bool = True) -> tf.Tensor:
        result = part(self._norm(x) if self._before else x)
        total = x + (self._dropout(result) if drop else result)
        return total if self._before else self._norm(total)


class FeedForward:
    """Feed-forward sublayer max(0, x W_1 + b_1) W_2 + b_2 with its residual sum. Creates `feed_forward/...`."""

    def __init__(self, architecture: TransformerArchitecture, dropouts: Dropouts) -> None:
        with _scope("feed_forward"):
            self._inner = Dense("inner", architecture.num_units, architecture.inner_size)
            self._outer = Dense("outer", architecture.inner_size, architecture.num_units)
            self._sum = _Residual(architecture, dropouts.results)
        self._dropout = dropouts.activations

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[time, batch, width] -> [time, batch, width]."""
        return self._sum(x, lambda x: self._outer(self._dropout(tf.nn.relu(self._inner(x)))))

    def step(self, x: tf.Tensor) -> tf.Tensor:
        """[rows, width] -> [rows, width], without dropout."""
        return self._sum(x, lambda x: self._outer(tf.nn.relu(self._inner(x))), drop=False)


class SelfAttention:
    """Self-attention sublayer with its residual sum. Creates `self_attention/...`."""

    def __init__(self, architecture: TransformerArchitecture, dropouts: Dropouts) -> None:
        with _scope("self_attention"):
            self._attention = Attention(architecture.num_units, architecture.num_heads, dropouts.attention)
            self._sum = _Residual(architecture, dropouts.results)

    def __call__(self, x: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """[time, batch, width] -> [time, batch, width]; see `Attention` for the mask."""
        return self._sum(x, lambda x: self._attention(x, self._attention.keys(x), mask))

    def step(self, x: tf.Tensor, before: Keys) -> tuple[tf.Tensor, Keys]:
        """Run one step for words [rows, width] after those in `before`; return [rows, width] and the extended keys."""
        kept: list[Keys] = []

        def look(x: tf.Tensor) -> tf.Tensor:
            own = self._attention.step_keys(x)
            kept.append(Keys(*(tf.concat([old, new], 2) for old, new in zip(before, own, strict=True))))
            return self._attention.step(x, kept[0], None)

        return self._sum(x, look, drop=False), kept[0]


class SourceAttention:
    """Attention to the source with its residual sum. Creates `source_attention/...`."""

    def __init__(self, architecture: TransformerArchitecture, dropouts: Dropouts) -> None:
        with _scope("source_attention"):
            self._attention = Attention(architecture.num_units, architecture.num_heads, dropouts.attention)
            self._sum = _Residual(architecture, dropouts.results)

    def keys(self, outputs: tf.Tensor) -> Keys:
        """Return keys and values of the encoder's outputs [time, batch, width]."""
        return self._attention.keys(outputs)

    def __call__(self, x: tf.Tensor, read: Keys, mask: tf.Tensor) -> tf.Tensor:
        """[time, batch, width] -> [time, batch, width]; see `Attention` for the other arguments."""
        return self._sum(x, lambda x: self._attention(x, read, mask))

    def step(self, x: tf.Tensor, read: Keys, mask: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one step for words [rows, width]; return [rows, width] and the weights [rows, source time]."""
        weights: list[tf.Tensor] = []

        def look(x: tf.Tensor) -> tf.Tensor:
            result, found = self._attention.step_of_sentences(x, read, mask)
            weights.append(found)
            return result

        return self._sum(x, look, drop=False), weights[0]
