"""Base of the NumPy models without recurrence: each step computes the whole target again, without state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.nmt.model.oracle_model import GivenWeights, log_softmax

Array = np.ndarray


@dataclass
class PrefixOracle(GivenWeights, ABC):
    """A model without recurrence, with given weights."""

    @abstractmethod
    def encode(self, source: Sequence[int]) -> Any:
        """Return the memory of a sentence."""

    @abstractmethod
    def decode(self, memory: Any, words: Sequence[int]) -> tuple[Array, Array | None]:
        """Return outputs [words, units] and the last word's attention; a language model has no memory."""

    def start(self, source: Sequence[int]) -> Prefix:
        """Return a decoder that has written nothing yet."""
        return Prefix(self, None if self.architecture.language_model else self.encode(source), [])

    def loss(self, source: Sequence[int], target_in: Sequence[int], target_out: Sequence[int]) -> float:
        """Return the cross-entropy of one sentence, in nats."""
        logits = self.decode(self.start(source).memory, target_in)[0] @ self.output_layer()
        return -float(sum(log_softmax(row)[wanted] for row, wanted in zip(logits, target_out, strict=True)))


@dataclass
class Prefix:
    """A decoder between two words; `step` returns a new one and does not change this one."""

    model: PrefixOracle
    memory: Any
    words: list[int]
    weights: Array | None = None

    def step(self, word: int) -> tuple[Array, Prefix]:
        """Return the logits of the word after ``word``, and the next decoder."""
        words = [*self.words, word]
        outputs, looked = self.model.decode(self.memory, words)
        return outputs[-1] @ self.model.output_layer(), Prefix(self.model, self.memory, words, looked)
