"""Searches over the NumPy model, one sentence at a time, with plain Python lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.nmt.model.oracle_model import OracleDecoding, OracleModel, log_softmax


def greedy(model: OracleModel, source: Sequence[int], limit: int, sos: int, eos: int) -> list[int]:
    """Return the best word of each step, up to and including eos."""
    decoding, words = model.start(source), [sos]
    while len(words) <= limit and (len(words) == 1 or words[-1] != eos):
        logits, decoding = decoding.step(words[-1])
        words.append(int(np.argmax(logits)))
    return words[1:]


def sample(
    model: OracleModel, source: Sequence[int], draws: Sequence[float], sos: int, eos: int, temperature: float
) -> list[int]:
    """Return a word for each draw: the first word with a cumulative probability above the draw."""
    decoding, words = model.start(source), [sos]
    for draw in draws:
        logits, decoding = decoding.step(words[-1])
        cumulative = np.cumsum(np.exp(log_softmax(logits / temperature)))
        words.append(int(np.flatnonzero(cumulative > draw)[0]))
        if words[-1] == eos:
            break
    return words[1:]


def attention(model: OracleModel, source: Sequence[int], target: Sequence[int], sos: int) -> list[np.ndarray]:
    """Return the attention weights of each target word."""
    decoding, found = model.start(source), []
    for word in [sos, *target][:-1]:
        _, decoding = decoding.step(word)
        assert decoding.weights is not None, word
        found.append(decoding.weights)
    return found


def log_probabilities(model: OracleModel, source: Sequence[int], target: Sequence[int], sos: int) -> list[float]:
    """Return the logarithm of each target word's probability."""
    decoding, found = model.start(source), []
    for word, wanted in zip([sos, *target], target, strict=False):
        logits, decoding = decoding.step(word)
        found.append(float(log_softmax(logits)[wanted]))
    return found


@dataclass
class Beam:
    """A partial translation; `length` counts the eos, `attended` is the sum of attention weights."""

    words: list[int]
    log_prob: float
    decoding: OracleDecoding
    length: int = 0
    finished: bool = False
    score: float = 0.0
    attended: np.ndarray | float = 0.0


def beam(
    model: OracleModel,
    source: Sequence[int],
    limit: int,
    sos: int,
    eos: int,
    width: int,
    weight: float,
    coverage: float = 0.0,
    min_length: int = 0,
    unk: int | None = None,
) -> list[Beam]:
    """Return the best allowed beams, best first, each with its words up to and including eos."""
    beams = [Beam([sos], 0.0, model.start(source))]
    for _ in range(limit):
        if all(b.finished for b in beams):
            break
        candidates = []
        for b in beams:
            if b.finished:
                score = b.log_prob / ((5 + b.length) / 6) ** weight
                if coverage:
                    score += coverage * sum(np.log(min(a, 1.0)) for a in np.asarray(b.attended) if a > 0)
                candidates.append(Beam(b.words, b.log_prob, b.decoding, b.length, True, score, b.attended))
                continue
            logits, after = b.decoding.step(b.words[-1])
            attended = b.attended + (0.0 if after.weights is None else after.weights)
            for word, log_prob in enumerate(b.log_prob + log_softmax(logits)):
                ends = word == eos
                if word == unk or (ends and b.length < min_length):
                    continue
                score = log_prob / ((5 + b.length + (not ends)) / 6) ** weight
                candidates.append(Beam([*b.words, word], log_prob, after, b.length + 1, ends, score, attended))
        beams = sorted(candidates, key=lambda c: -c.score)[:width]
    for b in beams:
        b.words = b.words[1:]
    return beams
