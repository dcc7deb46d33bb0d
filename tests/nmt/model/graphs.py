"""Small models in separate graphs, with random weights large enough for differences to show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.convs2s.architecture import ConvS2SArchitecture
from nmt.model.interface import Translator
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.parts.initializers import initializer
from nmt.model.registry import make_translator
from nmt.model.transformer.architecture import TransformerArchitecture
from tests.nmt.model.oracle_convs2s import OracleConvS2S
from tests.nmt.model.oracle_model import OracleModel
from tests.nmt.model.oracle_transformer import OracleTransformer

v1 = tf.compat.v1
SOS, EOS = 1, 2
DUMMIES: dict[str, Any] = {
    "lstm": LSTMArchitecture(11, 13, 6, 1, 1),
    "convs2s": ConvS2SArchitecture(11, 13, 6, 1, 1),
    "transformer": TransformerArchitecture(11, 13, 6, 1, 1, num_heads=3, feed_forward_size=10),
}
ORACLES: dict[type, Any] = {
    LSTMArchitecture: OracleModel,
    ConvS2SArchitecture: OracleConvS2S,
    TransformerArchitecture: OracleTransformer,
}


def architecture(family: Any = "lstm", **changes: Any) -> Any:
    """Return a small architecture with these values."""
    return dataclasses.replace(DUMMIES[family], **changes)


@contextmanager
def model(arch: Architecture, weight: float = 0.8, **options: Any) -> Iterator[tuple[Translator, Any]]:
    """Yield a translator in its own graph, and a session."""
    with tf.Graph().as_default():
        translator = make_translator(arch, initializer("uniform", weight, seed=5), **options)
        variables = v1.global_variables()
        values = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
        fill = [v1.assign(v, value) for v, value in zip(variables, values, strict=True)]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            # Constant initial values would hide mistakes, and so would the small initial values of some families.
            rng, draws = np.random.default_rng(8), isinstance(arch, LSTMArchitecture)
            starts = session.run(variables)
            session.run(
                fill,
                {
                    place: rng.uniform(-weight, weight, start.shape) if np.ptp(start) == 0 or not draws else start
                    for place, start in zip(values, starts, strict=True)
                },
            )
            yield translator, session


def oracle(arch: Architecture, session: Any) -> Any:
    """Return the NumPy model with the same weights."""
    weights: dict[str, np.ndarray] = session.run({v.op.name: v for v in v1.global_variables()})
    return ORACLES[type(arch)](arch, weights)


def sentences(lengths: list[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Return sentences of random words without special ones."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, n).tolist() for n in lengths]


def time_major(rows: list[list[int]], padding: int, extra: int = 0) -> np.ndarray:
    """Return rows as int32 [time, batch], with `extra` steps more than the longest row."""
    time = max(map(len, rows)) + extra
    return np.array([row + [padding] * (time - len(row)) for row in rows], np.int32).T
