"""Inference models: perplexity and translation with a checkpoint's weights, which one session holds for both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.interface import Translator
from nmt.model.parts.initializers import Initializer
from nmt.model.registry import make_translator
from nmt.model.session import gpus, session_config
from nmt.options.config import Config
from nmt.text.vocabulary import SourceVocabulary, Vocabulary

_DEFAULTS = Config()


class TrainedWeights:
    """The weights of a model in their own graph and session, separate from the training graph.

    Args:
        architecture: the model's architecture.
        config: options of the run, of which threads and devices count.

    Attributes:
        translator: a `Translator` without dropout, or an object with its methods (an ensemble).
        session: session that holds the weights.
        saver: a `tf.compat.v1.train.Saver` that restores the weights from a checkpoint.
    """

    def __init__(self, architecture: Architecture, config: Config = _DEFAULTS) -> None:
        with tf.Graph().as_default() as graph:
            self.translator = self._translator(architecture, gpus(config))
            self.saver: Any = tf.compat.v1.train.Saver()
        self.session: Any = tf.compat.v1.Session(graph=graph, config=session_config(config))

    def _translator(self, architecture: Architecture, num_gpus: int) -> Any:
        return make_translator(architecture, Initializer(), num_gpus=num_gpus)


class TrainedModel(ABC):
    """Base class of models that compute with trained weights: perplexity or translation.

    Args:
        weights: the weights, which several such models may share.
        src_vocab: source vocabulary.
        tgt_vocab: target vocabulary.
        config: options of the run.

    Attributes:
        session: session that holds the weights.
    """

    def __init__(
        self, weights: TrainedWeights, src_vocab: SourceVocabulary, tgt_vocab: Vocabulary, config: Config
    ) -> None:
        self._src_vocab, self._tgt_vocab, self._config = src_vocab, tgt_vocab, config
        self.session = weights.session
        with self.session.graph.as_default():
            self._build(weights.translator)

    @abstractmethod
    def _build(self, translator: Translator) -> None:
        """Add the inputs and results to the graph."""
