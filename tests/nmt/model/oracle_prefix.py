"""What the NumPy models without a recurrence share: each step computes the whole target again, and nothing is kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.nmt.model.oracle_model import log_softmax

Array = np.ndarray


@dataclass
class PrefixOracle(ABC):
    """A model with given weights, by their full names."""

    architecture: Any
    weights: Mapping[str, Array]

    @abstractmethod
    def encode(self, source: Sequence[int]) -> Any:
        """The memory of a sentence."""

    @abstractmethod
    def decode(self, memory: Any, words: Sequence[int]) -> tuple[Array, Array | None]:
        """Outputs [words, units], and where the last word looked; without a memory, of a language model."""

    def weight(self, name: str) -> Array:
        """The variable below `dynamic_seq2seq`."""
        return np.asarray(self.weights[f"dynamic_seq2seq/{name}"], np.float64)

    def output_layer(self) -> Array:
        """Its kernel [units, words]."""
        if self.architecture.tie_embeddings == "none":
            return self.weight("decoder/output_projection/kernel")
        table = self.weights[self.architecture.target_embedding].astype(np.float64).T
        narrowed = self.architecture.target_size != self.architecture.num_units
        return self.weight("decoder/output_projection/kernel") @ table if narrowed else table

    def start(self, source: Sequence[int]) -> Prefix:
        """A decoder that has written nothing yet."""
        return Prefix(self, None if self.architecture.language_model else self.encode(source), [])

    def loss(self, source: Sequence[int], target_in: Sequence[int], target_out: Sequence[int]) -> float:
        """Cross-entropy of one sentence, in nats."""
        logits = self.decode(self.start(source).memory, target_in)[0] @ self.output_layer()
        return -float(sum(log_softmax(row)[wanted] for row, wanted in zip(logits, target_out, strict=True)))


@dataclass
class Prefix:
    """A decoder between two words; `step` makes a new one and leaves this one as it is."""

    model: PrefixOracle
    memory: Any
    words: list[int]
    weights: Array | None = None

    def step(self, word: int) -> tuple[Array, Prefix]:
        """Logits of the next word after this one."""
        words = [*self.words, word]
        outputs, looked = self.model.decode(self.memory, words)
        return outputs[-1] @ self.model.output_layer(), Prefix(self.model, self.memory, words, looked)
