"""All metrics of a text of translations, with the intervals of sacreBLEU's bootstrap (Koehn 2004).

A thousand texts are drawn, with replacement, from the pairs of translation and reference. 95 % of their scores lie in
the interval. It shows which differences of two systems may come from the choice of sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nmt.scoring.metrics import METRICS
from nmt.scoring.score import score
from nmt.scoring.tokenisation import is_without_spaces, tokenisation

_SAMPLES = 1_000


@dataclass(frozen=True)
class Figure:
    """One metric of a text.

    Attributes:
      name: name of the metric.
      score: the score; from 0 to 100, but TER may be more, and less is better.
      interval: bounds of the interval that holds 95 % of the resampled scores; None for a metric without it.
      signature: settings of the computation, for comparisons; may be empty.
    """

    name: str
    score: float
    interval: tuple[float, float] | None = None
    signature: str = ""


def figures(hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "") -> list[Figure]:
    """Return all metrics of translations.

    Args:
      hypotheses: translations.
      references: texts with one reference for each translation; the metrics of tokens use the first.
      language: code of the translations' language.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    from sacrebleu.metrics import BLEU, CHRF, TER

    if any(len(text) != len(hypotheses) for text in references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {[len(text) for text in references]} references")
    found, divided = [], is_without_spaces(language)  # TER has an option that divides Chinese characters
    ter = TER(normalized=divided, asian_support=divided)
    for metric in (BLEU(tokenize=tokenisation(language), force=True), CHRF(), CHRF(word_order=2), ter):
        few = len(hypotheses) < 2  # nothing can be drawn from one sentence
        result = metric.corpus_score(hypotheses, references, n_bootstrap=1 if few else _SAMPLES)
        interval = None if few else (float(result._mean - result._ci), float(result._mean + result._ci))
        found.append(Figure(result.name, result.score, interval, str(metric.get_signature())))
    mine, wanted = ([" ".join(line.split()) for line in text] for text in (hypotheses, references[0]))
    scores = score(mine, wanted, list(METRICS), language=language).metrics
    return found + [Figure(f"tokenised {name}", value) for name, value in scores.items()]
