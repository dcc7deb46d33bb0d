"""Transformer (Vaswani et al. 2017, "Attention Is All You Need"), with layer normalisation before or after sublayers.

    encoder layer   self-attention; feed-forward
    decoder layer   self-attention to earlier words; attention to the source; feed-forward

Embeddings are multiplied by the square root of their width (section 3.4), and positions are added. Training computes
all target positions at once. Search computes one position at a time and keeps the keys and values of earlier words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.interface import Decoding, Memory, Translator
from nmt.model.parts.dense import glorot
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.initializers import InitialDistribution
from nmt.model.parts.layer_norm import LayerNorm
from nmt.model.parts.masks import inside, later, outside
from nmt.model.parts.placement import Placement
from nmt.model.parts.positions import Learned, Positions, Sinusoidal
from nmt.model.transformer.architecture import TransformerArchitecture
from nmt.model.transformer.attention import Keys
from nmt.model.transformer.layers import Dropouts, FeedForward, SelfAttention, SourceAttention

_scope = tf.compat.v1.variable_scope


class _EncoderLayer:
    def __init__(self, architecture: TransformerArchitecture, dropouts: Dropouts) -> None:
        self.self_attention = SelfAttention(architecture, dropouts)
        self.feed_forward = FeedForward(architecture, dropouts)


class _DecoderLayer:
    def __init__(self, architecture: TransformerArchitecture, dropouts: Dropouts) -> None:
        self.self_attention = SelfAttention(architecture, dropouts)
        self.source_attention = None if architecture.language_model else SourceAttention(architecture, dropouts)
        self.feed_forward = FeedForward(architecture, dropouts)


class _Sources(NamedTuple):
    """Tensors of the source that steps read.

    Attributes:
        mask: mask of the source's padding, [batch, 1, 1, source time].
        keys: keys and values of each decoder layer.
    """

    mask: tf.Tensor
    keys: Sequence[Keys]


class _Side:
    """The common parts of encoder and decoder: positions, scaling, and the last normalisation."""

    def __init__(self, architecture: TransformerArchitecture, dropouts: Dropouts) -> None:
        self.architecture, self.dropouts = architecture, dropouts
        width = architecture.num_units
        self._scale = math.sqrt(width)
        dtype = tf.compat.v1.get_variable_scope().dtype
        self._positions: Positions = Sinusoidal(width, dtype)
        if architecture.positions == "learned":
            self._positions = Learned("positions", architecture.max_positions, width, _words_start(architecture))
        self._last = LayerNorm("norm", width) if architecture.norm == "pre" else None

    def begin(self, embedded: tf.Tensor) -> tf.Tensor:
        """Return the lowest layer's inputs for embedded words [time, batch, width]."""
        placed = embedded * self._scale + self._positions.first(tf.shape(embedded)[0])[:, None]
        return self.dropouts.results(placed)

    def begin_step(self, embedded: tf.Tensor, place: tf.Tensor) -> tf.Tensor:
        """Return the lowest layer's inputs for words [rows, width] at one position, without dropout."""
        return embedded * self._scale + self._positions.at(place)

    def end(self, x: tf.Tensor) -> tf.Tensor:
        """Return the top layer's outputs, normalised for norm="pre"."""
        return x if self._last is None else self._last(x)


def _words_start(architecture: TransformerArchitecture) -> InitialDistribution:
    return InitialDistribution("normal", architecture.num_units**-0.5)


class TransformerTranslator(Translator):
    """A Transformer in the current default graph; arguments as for `Translator`."""

    architecture: TransformerArchitecture

    def _embeddings_start(self, architecture: TransformerArchitecture) -> InitialDistribution:
        return _words_start(architecture)

    def _output_start(self, architecture: TransformerArchitecture) -> InitialDistribution:
        return glorot(architecture.num_units, architecture.tgt_vocab_size)

    def _build(self, architecture: TransformerArchitecture, dropout: Dropout, placement: Placement) -> None:
        dropouts = Dropouts(dropout, self._drop_attention, self._drop_activations)
        self._devices = placement
        if not architecture.language_model:
            with _scope("encoder"), tf.device(placement.layer(0)):
                self._encoder = _Side(architecture, dropouts)
                self._encoder_layers = []
                for number in range(architecture.num_encoder_layers):
                    with _scope(f"layer_{number}"), tf.device(placement.layer(number)):
                        self._encoder_layers.append(_EncoderLayer(architecture, dropouts))
        with _scope("decoder"), tf.device(placement.layer(0)):
            self._decoder = _Side(architecture, dropouts)
            self._decoder_layers = []
            for number in range(architecture.num_decoder_layers):
                with _scope(f"layer_{number}"), tf.device(placement.layer(number)):
                    self._decoder_layers.append(_DecoderLayer(architecture, dropouts))

    def _read(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        mask = outside(lengths, tf.shape(embedded)[0], embedded.dtype)[:, None, None]
        x = self._encoder.begin(embedded)
        for number, layer in enumerate(self._encoder_layers):
            with tf.device(self._devices.layer(number)):
                x = layer.feed_forward(layer.self_attention(x, mask))
        x = self._encoder.end(x)
        return Memory(x * inside(lengths, tf.shape(embedded)[0], x.dtype), lengths, ())

    def _over(self, memory: Memory) -> Decoding:
        return _Decoding(self._decoder, self._decoder_layers, memory, self._devices)


class _Decoding(Decoding):
    """A Transformer decoder for one memory."""

    def __init__(self, side: _Side, layers: Sequence[_DecoderLayer], memory: Memory, devices: Placement) -> None:
        self._side, self._layers, self._devices = side, layers, devices
        architecture, batch = side.architecture, tf.shape(memory.lengths)[0]
        heads = architecture.num_heads
        size = architecture.num_units // heads
        nothing = tf.zeros(tf.stack([batch, heads, 0, size]), memory.outputs.dtype)
        # The placeholder makes the time dimension unknown, because it grows in the search loop.
        nothing = tf.compat.v1.placeholder_with_default(nothing, [None, heads, None, size])
        self.initial_state = tuple(Keys(nothing, nothing) for _ in layers)
        mask = outside(memory.lengths, tf.shape(memory.outputs)[0], memory.outputs.dtype)[:, None, None]
        keys = []
        for number, layer in enumerate(layers):
            if layer.source_attention is not None:
                with tf.device(devices.layer(number)):
                    keys.append(layer.source_attention.keys(memory.outputs))
        self.sources = _Sources(mask, keys) if keys else ()

    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """Return the outputs for given target words, with dropout."""
        x, mask = self._side.begin(embedded), later(tf.shape(embedded)[0], embedded.dtype)
        for number, layer in enumerate(self._layers):
            with tf.device(self._devices.layer(number)):
                x = layer.self_attention(x, mask)
                if layer.source_attention is not None:
                    x = layer.source_attention(x, self.sources.keys[number], self.sources.mask)
                x = layer.feed_forward(x)
        return self._side.end(x)

    def step(
        self, embedded: tf.Tensor, state: Sequence[Keys], sources: Any
    ) -> tuple[tf.Tensor, Sequence[Keys], tf.Tensor | None]:
        """Run one step without dropout; the attention weights are the mean over the top layer's heads."""
        x, weights, after = self._side.begin_step(embedded, tf.shape(state[0].keys)[2]), None, []
        for number, layer in enumerate(self._layers):
            with tf.device(self._devices.layer(number)):
                x, kept = layer.self_attention.step(x, state[number])
                after.append(kept)
                if layer.source_attention is not None:
                    x, weights = layer.source_attention.step(x, sources.keys[number], sources.mask)
                x = layer.feed_forward.step(x)
        return self._side.end(x), tuple(after), weights
