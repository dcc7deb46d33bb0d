"""ConvS2S (Gehring et al. 2017, "Convolutional Sequence to Sequence Learning").

    encoder   words and positions; gated convolutions over words around each word, each with a residual connection
    decoder   gated convolutions over each word and the words before it, each followed by attention to the source

All kernels but the output layer's have weight normalisation (`nmt.model.parts.dense`). Initial values are the paper's
(section 3.5). The gradient of the encoder is divided by the number of attentions, because each of them adds to it
(section 3.4). Training computes all target positions at once. Search computes one position at a time and keeps the
convolutions' inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.convs2s.architecture import ConvS2SArchitecture
from nmt.model.convs2s.layers import ROOT_HALF, Attention, GatedConvolution
from nmt.model.interface import Decoding, Memory, Translator
from nmt.model.parts.dense import NormalizedDense
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.initializers import InitialDistribution
from nmt.model.parts.masks import inside, outside
from nmt.model.parts.placement import Placement
from nmt.model.parts.positions import Learned

_scope = tf.compat.v1.variable_scope
_WORDS = InitialDistribution("normal", 0.1)


class _Sources(NamedTuple):
    """Tensors of the source that steps read; the arguments of `Attention`."""

    keys: tf.Tensor
    values: tf.Tensor
    mask: tf.Tensor
    root: tf.Tensor


class _Begin:
    """Adds positions to embedded words and projects them to the inputs of the lowest layer."""

    def __init__(self, architecture: ConvS2SArchitecture, size: int, dropout: Dropout) -> None:
        self._positions = Learned("positions", architecture.max_positions, size, _WORDS)
        self._input = NormalizedDense("input", size, architecture.num_units, math.sqrt(dropout.keep / size))
        self._dropout = dropout

    def __call__(self, embedded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return words [time, batch, size] with positions added, and the lowest layer's inputs [time, batch, units]."""
        placed = self._dropout(embedded + self._positions.first(tf.shape(embedded)[0])[:, None])
        return placed, self._input(placed)

    def step(self, embedded: tf.Tensor, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the same for words [rows, size] at one position, without dropout."""
        placed = embedded + self._positions.at(place)
        return placed, self._input(placed)


class _Encoder:
    def __init__(self, architecture: ConvS2SArchitecture, dropout: Dropout, placement: Placement) -> None:
        units, size, width = architecture.num_units, architecture.source_size, architecture.kernel_width
        self._dropout, self._before, self._placement = dropout, (width - 1) // 2, placement
        self._begin = _Begin(architecture, size, dropout)
        self._layers = []
        for number in range(architecture.num_encoder_layers):
            with tf.device(placement.layer(number)):
                self._layers.append(GatedConvolution(f"layer_{number}", units, width, dropout.keep))
        self._output = NormalizedDense("output", units, size, math.sqrt(1 / units))
        self._share = 1 / architecture.num_decoder_layers

    def __call__(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        words = inside(lengths, tf.shape(embedded)[0], embedded.dtype)
        placed, x = self._begin(embedded)
        for number, layer in enumerate(self._layers):
            with tf.device(self._placement.layer(number)):
                # Words past a sentence's end are zero, as those before its start.
                x = (layer(self._dropout(x) * words, self._before) + x) * ROOT_HALF
        outputs = _scaled_gradient(self._output(x), self._share) * words
        return Memory(outputs, lengths, tf.transpose((outputs + placed) * ROOT_HALF, [1, 0, 2]))


class _Decoder:
    def __init__(self, architecture: ConvS2SArchitecture, dropout: Dropout, placement: Placement) -> None:
        units, size = architecture.num_units, architecture.target_size
        self.width, self.units, self.dropout, self.placement = architecture.kernel_width, units, dropout, placement
        self.begin = _Begin(architecture, size, dropout)
        self.layers: list[tuple[GatedConvolution, Attention | None]] = []
        for number in range(architecture.num_decoder_layers):
            with _scope(f"layer_{number}"), tf.device(placement.layer(number)):
                convolution = GatedConvolution("convolution", units, self.width, dropout.keep)
                attention = None if architecture.language_model else Attention(units, size)
                self.layers.append((convolution, attention))
        self.output = NormalizedDense("output", units, units, math.sqrt(1 / units))


class ConvS2STranslator(Translator):
    """A convolutional model in the current default graph; arguments as for `Translator`."""

    architecture: ConvS2SArchitecture

    def _embeddings_start(self, architecture: ConvS2SArchitecture) -> InitialDistribution:
        return _WORDS

    def _output_start(self, architecture: ConvS2SArchitecture) -> InitialDistribution:
        return InitialDistribution("normal", math.sqrt(self._keep / architecture.num_units))

    def _build(self, architecture: ConvS2SArchitecture, dropout: Dropout, placement: Placement) -> None:
        self._keep = dropout.keep
        with tf.device(placement.layer(0)):
            if not architecture.language_model:
                with _scope("encoder"):
                    self._encoder = _Encoder(architecture, dropout, placement)
            with _scope("decoder"):
                self._decoder = _Decoder(architecture, dropout, placement)

    def _read(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        return self._encoder(embedded, lengths)

    def _over(self, memory: Memory) -> Decoding:
        return _Decoding(self._decoder, memory, self.architecture.language_model)


class _Decoding(Decoding):
    """A convolutional decoder for one memory."""

    def __init__(self, decoder: _Decoder, memory: Memory, language_model: bool) -> None:
        self._decoder = decoder
        dtype, batch = memory.outputs.dtype, tf.shape(memory.lengths)[0]
        before = tf.zeros(tf.stack([batch, decoder.width - 1, decoder.units]), dtype)
        before.set_shape([None, decoder.width - 1, decoder.units])
        # The earlier inputs that each layer's convolution reads, and the number of words so far.
        self.initial_state = (tuple(before for _ in decoder.layers), tf.zeros(tf.stack([batch]), tf.int32))
        if not language_model:
            keys = tf.transpose(memory.outputs, [1, 0, 2])
            mask = outside(memory.lengths, tf.shape(keys)[1], dtype)
            self.sources = _Sources(keys, memory.state, mask, tf.sqrt(tf.cast(memory.lengths, dtype)))

    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """Return the outputs for given target words, with dropout."""
        decoder = self._decoder
        placed, x = decoder.begin(embedded)
        words = tf.transpose(placed, [1, 0, 2])
        for number, (convolution, attention) in enumerate(decoder.layers):
            with tf.device(decoder.placement.layer(number)):
                h = convolution(decoder.dropout(x), decoder.width - 1)
                if attention is not None:
                    found, _ = attention(tf.transpose(h, [1, 0, 2]), words, *self.sources)
                    h = tf.transpose(found, [1, 0, 2])
                x = (h + x) * ROOT_HALF
        return decoder.dropout(decoder.output(x))

    def step(self, embedded: tf.Tensor, state: Any, sources: Any) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Run one step without dropout; the attention weights are the mean over the layers."""
        decoder, (kept, places) = self._decoder, state
        placed, x = decoder.begin.step(embedded, tf.reduce_max(places))  # all rows are at the same position
        looked: list[tf.Tensor] = []
        after: list[tf.Tensor] = []
        for number, (convolution, attention) in enumerate(decoder.layers):
            with tf.device(decoder.placement.layer(number)):
                h, before = convolution.step(x, kept[number])
                after.append(before)
                if attention is not None:
                    h, weights = self._of_sentences(attention, h, placed, sources)
                    looked.append(weights)
                x = (h + x) * ROOT_HALF
        weights = tf.add_n(looked) / len(looked) if looked else None
        return decoder.output(x), (tuple(after), places + 1), weights

    def _of_sentences(
        self, attention: Attention, h: tf.Tensor, placed: tf.Tensor, sources: _Sources
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run attention for rows [rows, ...]; each sentence has equally many consecutive rows."""
        sentences = tf.shape(sources.keys)[0]

        def grouped(rows: tf.Tensor) -> tf.Tensor:
            return tf.reshape(rows, tf.stack([sentences, -1, rows.shape[1]]))

        found, weights = attention(grouped(h), grouped(placed), *sources)
        return tf.reshape(found, [-1, h.shape[1]]), tf.reshape(weights, tf.stack([-1, tf.shape(sources.keys)[1]]))


def _scaled_gradient(values: tf.Tensor, share: float) -> tf.Tensor:
    """Return the same values; their gradient is multiplied by `share`."""

    @tf.custom_gradient
    def same(values: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return tf.identity(values), lambda upstream: upstream * share

    return same(values)
