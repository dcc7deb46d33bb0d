"""The scores of a text of translations: those of `metrics`, and sacreBLEU's BLEU and chrF beside them.

sacreBLEU (Post 2018, arXiv:1804.08771) gives a signature with each figure, the settings that make it comparable with
others. Its BLEU differs from `nmt.scoring.metrics.bleu` where a precision is 0, which it smooths, and for blank
lines: there a line of no tokens counts as one empty token, here as none. chrF (Popović 2015, "chrF: character n-gram
F-score for automatic MT evaluation") compares characters, and so depends on no tokenisation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nmt.core.errors import InputError
from nmt.scoring.metrics import METRICS, check_metrics
from nmt.text.lines import TextFile
from nmt.text.tokens import reference_text


class Signed(NamedTuple):
    """A figure of sacreBLEU, 0 to 100, and the settings that it was computed with."""

    score: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """The scores of translations, all 0 to 100.

    Attributes:
      metrics: by name, as in `nmt.scoring.metrics.METRICS`, in the order asked for.
      sacre_bleu: see `sacre_bleu`.
      chrf: see `chrf`.
    """

    metrics: Mapping[str, float]
    sacre_bleu: Signed
    chrf: Signed

    def lines(self, text_name: str = "") -> list[str]:
        """What is printed: `  bleu dev: 27.1`, a line for each figure; without the name, `  bleu: 27.1`."""
        of = f" {text_name}" if text_name else ""
        signed = {"sacrebleu": self.sacre_bleu, "chrf": self.chrf}
        return [f"  {name}{of}: {value:.1f}" for name, value in self.metrics.items()] + [
            f"  {name}{of}: {figure.score:.2f} ({figure.signature})" for name, figure in signed.items()
        ]


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Signed:
    """SacreBLEU's corpus BLEU of text that is tokenised already.

    Raises:
      ValueError: other numbers of hypotheses than of references.
    """
    # Imported here because it takes longer to load than most callers run.
    from sacrebleu.metrics import BLEU

    # force: do not warn that the text looks tokenised
    return _signed(BLEU(tokenize="none", force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Signed:
    """SacreBLEU's chrF: the mean of precision and recall of n-grams of 1 to 6 characters, recall weighing double.

    Raises:
      ValueError: other numbers of hypotheses than of references.
    """
    from sacrebleu.metrics import CHRF

    return _signed(CHRF(), hypotheses, references)


def score(hypotheses: Sequence[str], references: Sequence[str], metrics: Sequence[str] = ("bleu",)) -> Scores:
    """All scores of translations, whose subwords are joined, as those of the references are.

    Raises:
      InputError: an unknown metric.
      ValueError: other numbers of hypotheses than of references.
    """
    figures = {name: METRICS[name](hypotheses, references) for name in check_metrics(metrics)}
    return Scores(figures, sacre_bleu(hypotheses, references), chrf(hypotheses, references))


def check_reference(input_path: str, reference_path: str) -> None:
    """Check that a text to be translated can be scored by a reference.

    Raises:
      InputError: a file cannot be used, or they have different numbers of lines.
    """
    text, reference = TextFile(input_path), TextFile(reference_path)
    if len(text) != len(reference):
        raise InputError(
            f"{text.path} has {len(text)} lines and its reference {reference.path} has {len(reference)}; score "
            "translations with the reference of the text they translate"
        )


def score_files(
    hypothesis_path: str | os.PathLike[str],
    reference_path: str | os.PathLike[str],
    subword_option: str,
    metrics: Sequence[str] = ("bleu",),
    *,
    translations_per_input: int = 1,
    picked: Sequence[int] | None = None,
) -> Scores:
    """Score a file of translations, whose subwords are joined already, by a reference file, whose may not be.

    Args:
      hypothesis_path: the translations.
      reference_path: a reference for each sentence of the text that was translated.
      subword_option: the notation of the references' subwords: "", "bpe" or "spm".
      metrics: names, see `nmt.scoring.metrics.METRICS`.
      translations_per_input: lines of each sentence among the translations; the first of them counts.
      picked: the numbers, from 0, of the sentences that were translated; None for all.

    Raises:
      InputError: an unknown metric, a file cannot be used, or they have different numbers of sentences.
    """
    check_metrics(metrics)  # before any work
    hypotheses, references = TextFile(hypothesis_path), TextFile(reference_path)
    numbers = range(len(references)) if picked is None else picked
    if max(numbers, default=0) >= len(references) or len(hypotheses) != translations_per_input * len(numbers):
        each = f" ({translations_per_input} for each sentence)" if translations_per_input > 1 else ""
        of = "" if picked is None else f", of which {len(numbers)} are asked for (the last is {max(picked, default=0)})"
        raise InputError(
            f"{hypotheses.path} has {len(hypotheses)} lines{each} and its reference {references.path} has "
            f"{len(references)}{of}; score translations with the reference of the text they translate"
        )
    return score(
        [hypotheses.line(i).strip() for i in range(0, len(hypotheses), translations_per_input)],
        [reference_text(references.line(i), subword_option) for i in numbers],
        metrics,
    )


def _signed(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Signed:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    value = metric.corpus_score(hypotheses, [references]).score
    return Signed(value, str(metric.get_signature()))  # which is known only now
