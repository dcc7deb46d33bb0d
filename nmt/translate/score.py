"""BLEU, two ways.

`bleu` is the tutorial's: corpus BLEU of orders 1 to 4 (Papineni, Roukos, Ward, Zhu 2002, "BLEU: a method for automatic
evaluation of machine translation", section 2.3) on tokens as they stand in the files, without smoothing:

    BLEU = min(1, exp(1 - r/c)) * (p_1 p_2 p_3 p_4)^(1/4)

with c and r the tokens of hypotheses and references, and p_n the clipped share of the hypotheses' n-grams that occur
in their reference. `sacre_bleu` is sacreBLEU's (Post 2018, arXiv:1804.08771) with the signature that makes a figure
comparable. They differ where a precision is 0, which sacreBLEU smooths, and for blank lines: here a line of no tokens
counts as one empty token, there as none.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nmt.errors import InputError
from nmt.text.lines import TextFile
from nmt.text.tokens import reference_text

_MAX_ORDER = 4


@dataclass(frozen=True)
class Scores:
    """The scores of a file of translations.

    Attributes:
      bleu: 0 to 100, see `bleu`.
      sacre_bleu: 0 to 100, see `sacre_bleu`.
      signature: the settings of `sacre_bleu`.
    """

    bleu: float
    sacre_bleu: float
    signature: str


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """Corpus BLEU, 0 to 100; 0 where no n-gram of some order matches.

    Args:
      hypotheses: translations, one text of tokens with single spaces between them for each sentence.
      references: one reference for each of them.

    Raises:
      ValueError: other numbers of hypotheses than of references.
    """
    _check_counts(hypotheses, references)
    matches = [0] * _MAX_ORDER
    possible = [0] * _MAX_ORDER
    hypothesis_tokens = reference_tokens = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found, wanted = hypothesis.split(" "), reference.split(" ")
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


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """SacreBLEU's corpus BLEU of text that is tokenised already, 0 to 100, and its signature.

    Raises:
      ValueError: other numbers of hypotheses than of references.
    """
    # Imported here because it takes longer to load than most callers of `bleu` run.
    from sacrebleu.metrics import BLEU

    _check_counts(hypotheses, references)
    metric = BLEU(tokenize="none", force=True)  # force: do not warn that the text looks tokenised
    score = metric.corpus_score(hypotheses, [references])
    return score.score, str(metric.get_signature())


def score_files(
    hypothesis_path: str | os.PathLike[str], reference_path: str | os.PathLike[str], subword_option: str
) -> Scores:
    """Score a file of translations, whose subwords are joined already, by a reference file, whose may not be.

    Raises:
      InputError: a file cannot be used, or they have different numbers of lines.
    """
    hypotheses, references = TextFile(hypothesis_path), TextFile(reference_path)
    if len(hypotheses) != len(references):
        raise InputError(
            f"{hypotheses.path} has {len(hypotheses)} lines and its reference {references.path} has "
            f"{len(references)}; score translations with the reference of the text they translate"
        )
    found = [line.strip() for line in hypotheses]
    wanted = [reference_text(line, subword_option) for line in references]
    return Scores(bleu(found, wanted), *sacre_bleu(found, wanted))


def _ngrams(tokens: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(tokens[i:] for i in range(order)), strict=False))


def _check_counts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
