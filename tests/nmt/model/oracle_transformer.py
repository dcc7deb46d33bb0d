"""The Transformer in NumPy and float64: one sentence at a time, without batches, padding or a cache.

Written from Vaswani et al. 2017 (sections 3.1 to 3.5) and Xiong et al. 2020 (figure 1); shares no code with
`nmt.model`. Each step computes the whole target again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nmt.model.transformer.architecture import TransformerArchitecture
from tests.nmt.model.oracle_embeddings import source_vectors, target_vector
from tests.nmt.model.oracle_model import log_softmax
from tests.nmt.model.oracle_prefix import PrefixOracle

Array = np.ndarray


class OracleTransformer(PrefixOracle):
    """A model with given weights, by full name."""

    architecture: TransformerArchitecture

    def dense(self, scope: str, x: Array) -> Array:
        return x @ self.weight(f"{scope}/kernel") + self.weight(f"{scope}/bias")

    def norm(self, scope: str, x: Array) -> Array:
        apart = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-6)
        return apart * self.weight(f"{scope}/gain") + self.weight(f"{scope}/bias")

    def around(self, scope: str, x: Array, part: Callable[[Array], Array]) -> Array:
        if self.architecture.norm == "pre":
            return x + part(self.norm(f"{scope}/norm", x))
        return self.norm(f"{scope}/norm", x + part(x))

    def attend(self, scope: str, x: Array, read: Array, causal: bool = False) -> tuple[Array, Array]:
        """Return the result [words, width] and the attention weights [heads, words, words read]."""
        size = self.architecture.num_units // self.architecture.num_heads
        queries = self.dense(f"{scope}/query", x)
        keys, values = np.split(self.dense(f"{scope}/key_value", read), 2, axis=1)
        heads, weights = [], []
        for head in range(self.architecture.num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = queries[:, part] @ keys[:, part].T / np.sqrt(size)
            if causal:
                scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
            weights.append(np.array([np.exp(log_softmax(row)) for row in scores]))
            heads.append(weights[-1] @ values[:, part])
        return self.dense(f"{scope}/output", np.concatenate(heads, 1)), np.array(weights)

    def placed(self, side: str, words: Array) -> Array:
        width = self.architecture.num_units
        if self.architecture.positions == "learned":
            places = self.weight(f"{side}/positions")[: len(words)]
        else:
            angles = np.arange(len(words))[:, None] / 10000 ** (np.arange(width) // 2 * 2 / width)
            places = np.where(np.arange(width) % 2, np.cos(angles), np.sin(angles))
        return words * np.sqrt(width) + places

    def feed_forward(self, scope: str, x: Array) -> Array:
        scope = f"{scope}/feed_forward"
        return self.around(
            scope, x, lambda x: self.dense(f"{scope}/outer", np.maximum(0, self.dense(f"{scope}/inner", x)))
        )

    def self_attention(self, scope: str, x: Array, causal: bool = False) -> Array:
        scope = f"{scope}/self_attention"
        return self.around(scope, x, lambda x: self.attend(scope, x, x, causal)[0])

    def end(self, side: str, x: Array) -> Array:
        return self.norm(f"{side}/norm", x) if self.architecture.norm == "pre" else x

    def encode(self, source: Sequence[int]) -> Array:
        x = self.placed("encoder", np.array(source_vectors(self.architecture, self.weights, source)))
        for number in range(self.architecture.num_encoder_layers):
            scope = f"encoder/layer_{number}"
            x = self.feed_forward(scope, self.self_attention(scope, x))
        return self.end("encoder", x)

    def decode(self, memory: Array | None, words: Sequence[int]) -> tuple[Array, Array | None]:
        """Return outputs [words, width], and the last word's attention in the top layer, averaged over the heads."""
        embedded = [target_vector(self.architecture, self.weights, word) for word in words]
        x, looked = self.placed("decoder", np.array(embedded)), None
        for number in range(self.architecture.num_decoder_layers):
            scope = f"decoder/layer_{number}"
            other = f"{scope}/source_attention"
            x = self.self_attention(scope, x, causal=True)
            if memory is not None:
                found: list[Array] = []

                def look(x: Array, other: str = other, found: list[Array] = found) -> Array:
                    result, weights = self.attend(other, x, memory)
                    found.append(weights[:, -1].mean(0))
                    return result

                x = self.around(other, x, look)
                (looked,) = found
            x = self.feed_forward(scope, x)
        return self.end("decoder", x), looked
