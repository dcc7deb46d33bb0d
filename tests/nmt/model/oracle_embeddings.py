"""From words to vectors, in NumPy and float64; shares no code with `nmt.model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nmt.model.architecture import Architecture

Array = np.ndarray
Weights = Mapping[str, Array]


def table(weights: Weights, name: str) -> Array:
    """Return all rows of an embedding: the pretrained rows come after the trained ones."""
    parts = [weights[key] for key in (name, f"{name}_pretrained") if key in weights]
    return np.concatenate(parts).astype(np.float64)


def source_vectors(architecture: Architecture, weights: Weights, source: Sequence[Any]) -> list[Array]:
    """Return a vector for each word of a sentence."""
    if architecture.character_source:
        return [character_vector(weights, word) for word in source]
    share = architecture.share_embedding
    return list(
        table(weights, "embeddings/embedding_share" if share else "embeddings/encoder/embedding_encoder")[source]
    )


def target_vector(architecture: Architecture, weights: Weights, word: int) -> Array:
    """Return the vector of a target word."""
    share = architecture.share_embedding
    return table(weights, "embeddings/embedding_share" if share else "embeddings/decoder/embedding_decoder")[word]


def character_vector(weights: Weights, word: Sequence[int]) -> Array:
    """Return the vector of a word of 50 characters: all windows of 5 that begin before the padding (261)."""
    scope = "embeddings/encoder"
    characters = weights[f"{scope}/embedding_encoder"][np.asarray(word)].astype(np.float64)
    kernel = weights[f"{scope}/convolution/kernel"].astype(np.float64)
    length = list(word).index(261) if 261 in word else 50
    responses = [
        sum(characters[begin + place] @ kernel[place] for place in range(5)) for begin in range(min(length, 46))
    ]
    return np.tanh(np.max(responses, axis=0) + weights[f"{scope}/convolution/bias"])
