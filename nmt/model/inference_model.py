"""Inference models: perplexity and translation, made of a checkpoint's weights in one session for both."""

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


class TrainedWeights:
    """The weights of a model in a graph and a session of their own, apart from those that are being trained.

    Args:
        architecture: the model.
        session_config: a ConfigProto; None for TensorFlow's defaults.
        num_gpus: over how many GPUs the layers are spread; 0 for the CPU.

    Attributes:
        translator: a `Translator` without dropout, or what is asked as one is.
        session: where the weights are.
        saver: a `tf.compat.v1.train.Saver` that brings them there from a checkpoint.
    """

    def __init__(self, architecture: Architecture, session_config: Any = None, num_gpus: int = 0) -> None:
        with tf.Graph().as_default() as graph:
            self.translator = self._translator(architecture, num_gpus)
            self.saver: Any = tf.compat.v1.train.Saver()
        self.session: Any = tf.compat.v1.Session(graph=graph, config=session_config)

    def _translator(self, architecture: Architecture, num_gpus: int) -> Any:
        return make_translator(architecture, Initializer(), num_gpus=num_gpus)


class TrainedModel(ABC, Generic[Settings]):
    """Answers by the weights in a session; what it computes is its subclass's.

    Args:
        weights: of any number of such models.
        src_vocab: words of the source.
        tgt_vocab: words of the target.
        settings: of the subclass.

    Attributes:
        session: where the weights are.
    """

    def __init__(
        self, weights: TrainedWeights, src_vocab: SourceVocabulary, tgt_vocab: Vocabulary, settings: Settings
    ) -> None:
        self._src_vocab, self._tgt_vocab, self._settings = src_vocab, tgt_vocab, settings
        self.session = weights.session
        with self.session.graph.as_default():
            self._build(weights.translator)

    @abstractmethod
    def _build(self, translator: Translator) -> None:
        """Adds inputs and results to the graph."""
