"""Searches over the NumPy model, one sentence at a time, with plain Python lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.nmt.oracle_model import OracleDecoding, OracleModel, log_softmax


def greedy(model: OracleModel, source: Sequence[int], limit: int, sos: int, eos: int) -> list[int]:
    """The best word each time, up to and including eos."""
    decoding, words = model.start(source), [sos]
    while len(words) <= limit and (len(words) == 1 or words[-1] != eos):
        logits, decoding = decoding.step(words[-1])
        words.append(int(np.argmax(logits)))
    return words[1:]


@dataclass
class Beam:
    """One partial translation; `length` counts the eos."""

    words: list[int]
    log_prob: float
    decoding: OracleDecoding
    length: int = 0
    finished: bool = False
    score: float = 0.0


def beam(
    model: OracleModel, source: Sequence[int], limit: int, sos: int, eos: int, width: int, weight: float
) -> list[Beam]:
    """The best beams, best first, each with the words up to and including eos."""
    beams = [Beam([sos], 0.0, model.start(source))]
    for _ in range(limit):
        if all(b.finished for b in beams):
            break
        candidates = []
        for b in beams:
            if b.finished:
                score = b.log_prob / ((5 + b.length) / 6) ** weight
                candidates.append(Beam(b.words, b.log_prob, b.decoding, b.length, True, score))
                continue
            logits, after = b.decoding.step(b.words[-1])
            for word, log_prob in enumerate(b.log_prob + log_softmax(logits)):
                ends = word == eos
                score = log_prob / ((5 + b.length + (not ends)) / 6) ** weight
                candidates.append(Beam([*b.words, word], log_prob, after, b.length + 1, ends, score))
        beams = sorted(candidates, key=lambda c: -c.score)[:width]
    for b in beams:
        b.words = b.words[1:]
    return beams
