"""Small models in graphs of their own, with random weights large enough for differences to show."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import initializer
from tests.nmt.model.oracle_model import OracleModel

v1 = tf.compat.v1
SOS, EOS = 1, 2
DUMMY = LSTMArchitecture(11, 13, 6, 1, 1)


def architecture(**changes: Any) -> LSTMArchitecture:
    """A small one with these values."""
    return dataclasses.replace(DUMMY, **changes)


@contextmanager
def model(arch: LSTMArchitecture, weight: float = 0.8, **options: Any) -> Iterator[tuple[LSTMTranslator, Any]]:
    """A translator in a graph of its own, and its session."""
    with tf.Graph().as_default():
        translator = LSTMTranslator(arch, initializer("uniform", weight, seed=5), **options)
        variables = v1.global_variables()
        values = [v1.placeholder(v.dtype.base_dtype, v.shape) for v in variables]
        fill = [v1.assign(v, value) for v, value in zip(variables, values, strict=True)]
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            # The variables that start at constants would hide mistakes.
            rng = np.random.default_rng(8)
            starts = session.run(variables)
            session.run(
                fill,
                {
                    place: rng.uniform(-weight, weight, start.shape) if np.ptp(start) == 0 else start
                    for place, start in zip(values, starts, strict=True)
                },
            )
            yield translator, session


def oracle(arch: LSTMArchitecture, session: Any) -> OracleModel:
    """The NumPy model with the same weights."""
    weights: dict[str, np.ndarray] = {}
    variables = v1.global_variables()
    for variable, value in zip(variables, session.run(variables), strict=True):
        name = re.sub(r"/part_\d+$", "", variable.op.name)  # rows of a partitioned variable
        weights[name] = np.concatenate([weights[name], value]) if name in weights else value
    return OracleModel(arch, weights)


def sentences(lengths: list[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Random words, no special ones among them."""
    rng = np.random.default_rng(seed)
    return [rng.integers(3, vocabulary, n).tolist() for n in lengths]


def time_major(rows: list[list[int]], padding: int, extra: int = 0) -> np.ndarray:
    """int32 [time, batch], `extra` times longer than the longest."""
    time = max(map(len, rows)) + extra
    return np.array([row + [padding] * (time - len(row)) for row in rows], np.int32).T
