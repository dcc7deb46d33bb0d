"""Metrics (BLEU, ROUGE, accuracies): one number from 0 to 100 for translations and their references.

The texts are tokenised already: single spaces separate tokens, and an empty line counts as one empty token. The
metrics are those of the TensorFlow NMT tutorial:

- `bleu`: corpus BLEU of orders 1 to 4 without smoothing. See section 2.3 of Papineni, Roukos, Ward, Zhu 2002, "BLEU: a
  method for automatic evaluation of machine translation".
- `rouge`: the mean of the sentences' ROUGE-L (Lin 2004, "ROUGE: a package for automatic evaluation of summaries",
  section 3.1, equations 2 to 4).
- `accuracy`: the share of sentences that equal their reference.
- `word_accuracy`: the share of words that equal the reference's word at the same position.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

Metric = Callable[[Sequence[str], Sequence[str]], float]

_MAX_ORDER = 4
_EPSILON = 1e-12  # avoids divisions by 0, as in the tutorial


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the corpus BLEU, 0 to 100; it is 0 if no n-gram of some order matches.

        BLEU = min(1, exp(1 - r/c)) * (p_1 p_2 p_3 p_4)^(1/4)

    c and r are the numbers of tokens of hypotheses and references. p_n is the clipped share of the hypotheses' n-grams
    that occur in their reference.

    Args:
      hypotheses: translations, one string of tokens separated by single spaces for each sentence.
      references: one reference for each hypothesis.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    matches = [0] * _MAX_ORDER
    possible = [0] * _MAX_ORDER
    hypothesis_tokens = reference_tokens = 0
    for found, wanted in _tokens(hypotheses, references):
        hypothesis_tokens += len(found)
        reference_tokens += len(wanted)
        for order in range(1, _MAX_ORDER + 1):
            matches[order - 1] += (_ngrams(found, order) & _ngrams(wanted, order)).total()
            possible[order - 1] += max(0, len(found) - order + 1)
    if not all(matches):
        return 0.0
    log_precision = sum(math.log(m / p) for m, p in zip(matches, possible, strict=True)) / _MAX_ORDER
    log_brevity = min(0.0, 1 - reference_tokens / hypothesis_tokens)
    return 100 * math.exp(log_precision + log_brevity)


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean over sentences of the F-score of ROUGE-L, 0 to 100; 0 without sentences.

        F = (1 + b^2) R P / (R + b^2 P),   R = L / |reference|,   P = L / |hypothesis|,   b = P / R

    L is the length of the longest common subsequence of tokens.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    return _mean([_rouge_l(found, wanted) for found, wanted in _tokens(hypotheses, references)])


def accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the percentage of hypotheses that equal their reference, without surrounding blanks; 0 without sentences.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    _check_counts(hypotheses, references)
    return _mean([float(h.strip() == r.strip()) for h, r in zip(hypotheses, references, strict=True)])


def word_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Return the mean over sentences of the percentage of positions of the longer text where the tokens are equal.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    return _mean(
        [
            sum(h == r for h, r in zip(found, wanted, strict=False)) / max(len(found), len(wanted))
            for found, wanted in _tokens(hypotheses, references)
        ]
    )


METRICS: Mapping[str, Metric] = MappingProxyType(
    {"bleu": bleu, "rouge": rouge, "accuracy": accuracy, "word_accuracy": word_accuracy}
)


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    Neighbours in a row of the dynamic programming table differ by 0 or 1, so the bits of one integer hold a row. One
    addition makes the next row (Hyyrö 2004, "Bit-parallel LCS-length computation revisited", section 3).
    """
    places: dict[str, int] = defaultdict(int)
    for place, token in enumerate(first):
        places[token] |= 1 << place
    every = (1 << len(first)) - 1
    row = every  # a bit is 0 where the row of the table grows
    for token in second:
        matches = row & places.get(token, 0)
        row = ((row + matches) | (row - matches)) & every
    return len(first) - row.bit_count()


def _rouge_l(found: Sequence[str], wanted: Sequence[str]) -> float:
    common = common_subsequence(found, wanted)
    recall, precision = common / len(wanted), common / len(found)
    beta = precision / (recall + _EPSILON)
    return (1 + beta**2) * recall * precision / (recall + beta**2 * precision + _EPSILON)


def _ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(order)), strict=False))


def _tokens(hypotheses: Sequence[str], references: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    _check_counts(hypotheses, references)
    return [(h.split(" "), r.split(" ")) for h, r in zip(hypotheses, references, strict=True)]


def _check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")


def _mean(shares: Sequence[float]) -> float:
    return 100 * sum(shares) / len(shares) if shares else 0.0
