"""Recurrent encoder-decoder with attention (Sutskever et al. 2014; Luong et al. 2015).

The variables have the names of the TensorFlow NMT tutorial's standard models.
"""

from __future__ import annotations

import tensorflow as tf

from nmt.model.interface import Decoding, Memory, Translator
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.decoder import Decoder
from nmt.model.lstm.encoder import Encoder
from nmt.model.lstm.gnmt_decoder import GNMTDecoder
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.placement import Placement


class LSTMTranslator(Translator):
    """A recurrent model in the current default graph; arguments as for `Translator`."""

    architecture: LSTMArchitecture

    def _build(self, architecture: LSTMArchitecture, dropout: Dropout, placement: Placement) -> None:
        self._encoder = None if architecture.language_model else Encoder(architecture, dropout, placement)
        standard = architecture.attention_architecture == "standard"
        make: type[Decoder] | type[GNMTDecoder] = Decoder if standard else GNMTDecoder
        self._decoder = make(architecture, dropout, placement)

    def _read(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        assert self._encoder is not None  # a language model does not call this
        return self._encoder(embedded, lengths)

    def _over(self, memory: Memory) -> Decoding:
        return self._decoder.over(memory)
