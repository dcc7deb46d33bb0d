"""Inference model: a checkpoint's weights in a session of their own; perplexity and translation are made of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.interface import Translator
from nmt.model.parts.initializers import Initializer
from nmt.model.registry import make_translator
from nmt.text.vocabulary import SourceVocabulary, Vocabulary

Settings = TypeVar("Settings")


class TrainedModel(ABC, Generic[Settings]):
    """Answers by the weights in its session; what it computes is its subclass's.

    Args:
        architecture: the model.
        src_vocab: words of the source.
        tgt_vocab: words of the target.
        settings: of the subclass.
        session_config: a ConfigProto; None for TensorFlow's defaults.
        num_gpus: over how many GPUs the layers are spread; 0 for the CPU.

    Attributes:
        session: where the weights are.
        saver: a `tf.compat.v1.train.Saver` that brings them there from a checkpoint.
    """

    def __init__(
        self,
        architecture: Architecture,
        src_vocab: SourceVocabulary,
        tgt_vocab: Vocabulary,
        settings: Settings,
        session_config: Any = None,
        num_gpus: int = 0,
    ) -> None:
        self._src_vocab, self._tgt_vocab, self._settings = src_vocab, tgt_vocab, settings
        with tf.Graph().as_default() as graph:
            self._build(self._translator(architecture, num_gpus))
            self.saver: Any = tf.compat.v1.train.Saver()
        self.session: Any = tf.compat.v1.Session(graph=graph, config=session_config)

    def _translator(self, architecture: Architecture, num_gpus: int) -> Any:
        """A `Translator`, or what is asked as one is."""
        return make_translator(architecture, Initializer(), num_gpus=num_gpus)

    @abstractmethod
    def _build(self, translator: Translator) -> None:
        """Adds inputs and results to the graph; the translator has no dropout."""
