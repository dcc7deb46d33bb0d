"""The convolutional model in NumPy and float64: one sentence at a time, no batch, no state between steps.

Written from Gehring et al. 2017 (section 3) and Salimans, Kingma 2016 (equation 2), sharing no code with `nmt.model`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nmt.model.convs2s.architecture import ConvS2SArchitecture
from tests.nmt.model.oracle_embeddings import source_vectors, target_vector
from tests.nmt.model.oracle_model import log_softmax, sigmoid
from tests.nmt.model.oracle_prefix import PrefixOracle

Array = np.ndarray


class OracleConvS2S(PrefixOracle):
    """A model with given weights, by their full names."""

    architecture: ConvS2SArchitecture

    def kernel(self, scope: str) -> Array:
        direction = self.weight(f"{scope}/direction")
        return np.stack(
            [g * v / np.linalg.norm(v) for g, v in zip(self.weight(f"{scope}/length"), direction.T, strict=True)], 1
        )

    def dense(self, scope: str, x: Array) -> Array:
        return x @ self.kernel(scope) + self.weight(f"{scope}/bias")

    def convolution(self, scope: str, x: Array, before: int) -> Array:
        """Return the gated convolution; position t reads positions from t - before on."""
        width, units = self.architecture.kernel_width, self.architecture.num_units
        kernel, bias, rows = self.kernel(scope).reshape(width, units, 2 * units), self.weight(f"{scope}/bias"), []
        for t in range(len(x)):
            total = bias.copy()
            for place in range(width):
                other = t - before + place
                if 0 <= other < len(x):
                    total += x[other] @ kernel[place]
            rows.append(total[:units] * sigmoid(total[units:]))
        return np.array(rows)

    def encode(self, source: Sequence[int]) -> tuple[Array, Array]:
        """Return keys and values."""
        words = np.array(source_vectors(self.architecture, self.weights, source))
        embedded = words + self.weight("encoder/positions")[: len(words)]
        x = self.dense("encoder/input", embedded)
        for number in range(self.architecture.num_encoder_layers):
            gated = self.convolution(f"encoder/layer_{number}", x, self.architecture.kernel_width // 2)
            x = (gated + x) / np.sqrt(2)
        keys = self.dense("encoder/output", x)
        return keys, (keys + embedded) / np.sqrt(2)

    def decode(self, memory: tuple[Array, Array] | None, words: Sequence[int]) -> tuple[Array, Array | None]:
        """Return outputs [words, units] and the last word's attention, averaged over the layers."""
        vectors = np.array([target_vector(self.architecture, self.weights, word) for word in words])
        embedded = vectors + self.weight("decoder/positions")[: len(words)]
        x, looked = self.dense("decoder/input", embedded), []
        for number in range(self.architecture.num_decoder_layers):
            scope = f"decoder/layer_{number}"
            h = self.convolution(f"{scope}/convolution", x, self.architecture.kernel_width - 1)
            if memory is not None:
                keys, values = memory
                queries = (self.dense(f"{scope}/query", h) + embedded) / np.sqrt(2)
                weights = np.array([np.exp(log_softmax(keys @ query)) for query in queries])
                looked.append(weights[-1])
                context = weights @ values * len(keys) * np.sqrt(1 / len(keys))
                h = (self.dense(f"{scope}/context", context) + h) / np.sqrt(2)
            x = (h + x) / np.sqrt(2)
        return self.dense("decoder/output", x), np.mean(looked, 0) if looked else None
