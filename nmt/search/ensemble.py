"""Ensembles: several models of one architecture translate together, with the mean of their probabilities.

The next word's probability is the arithmetic mean of the models' probabilities, as in fairseq and Sockeye. Sutskever et
al. 2014 (arXiv:1409.3215, section 3.6) report scores of ensembles. For search, the ensemble is one model; its attention
weights are the mean of the models' weights, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.inference_model import TrainedWeights
from nmt.model.interface import Memory, StepDecoder, Translator
from nmt.model.parts.initializers import Initializer
from nmt.model.registry import make_translator


class EnsembleWeights(TrainedWeights):
    """The weights of several models in one graph and session.

    The variables of model i have their usual names, below the scope `scopes[i]`.

    Args:
        models: number of models.
        arguments: arguments of `TrainedWeights`.

    Attributes:
        scopes: variable scope of each model.
    """

    def __init__(self, models: int, *arguments: Any) -> None:
        self.scopes = [f"model_{number}" for number in range(models)]
        super().__init__(*arguments)

    def _translator(self, architecture: Architecture, num_gpus: int) -> Any:
        members = []
        for scope in self.scopes:
            with tf.compat.v1.variable_scope(scope):
                members.append(make_translator(architecture, Initializer(), num_gpus=num_gpus))
        return Ensemble(members)


class Ensemble:
    """Several translators behind those methods of `Translator` that search calls.

    Args:
        members: translators of one architecture.

    Attributes:
        architecture: the members' architecture.
    """

    def __init__(self, members: Sequence[Translator]) -> None:
        self.architecture = members[0].architecture
        self._members = members

    def encode(self, source: tf.Tensor, source_lengths: tf.Tensor) -> list[Memory]:
        """Return the members' memories; arguments as for `Translator.encode`."""
        return [member.encode(source, source_lengths) for member in self._members]

    def decoder(self, memory: Sequence[Memory], *words: tf.Tensor) -> EnsembleDecoder:
        """Return a decoder over the members' memories; arguments as for `Translator.decoder`."""
        return EnsembleDecoder([member.decoder(own, *words) for member, own in zip(self._members, memory, strict=True)])


class EnsembleDecoder(StepDecoder):
    """Several decoders that read the same words; states and sources are lists with an element for each decoder."""

    def __init__(self, members: Sequence[StepDecoder]) -> None:
        self._members = members
        self.initial_state = [member.initial_state for member in members]
        self.sources = [member.sources for member in members]

    def step(self, state: Any, token_ids: tf.Tensor, sources: Any = None) -> tuple[tf.Tensor, Any, tf.Tensor | None]:
        """Do a step of all members, as `StepDecoder.step`; logits are the logarithm of the summed probabilities."""
        sources = self.sources if sources is None else sources
        found = [
            member.step(own, token_ids, read) for member, own, read in zip(self._members, state, sources, strict=True)
        ]
        logits = tf.reduce_logsumexp(tf.stack([tf.nn.log_softmax(one) for one, _, _ in found]), 0)
        weights = [one for _, _, one in found if one is not None]
        return logits, [after for _, after, _ in found], tf.add_n(weights) / len(weights) if weights else None
