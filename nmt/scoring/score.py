"""The scores of a text of translations: the metrics of `nmt.scoring.metrics`, and the BLEU and chrF of sacreBLEU.

Where the translations and their references are known as text, sacreBLEU's figures are those of the text. sacreBLEU
tokenises it, so that they can be compared with published figures. The other metrics are of words that the model's own
tokenisation makes, and are named tokenised. In languages without spaces between words (`nmt.scoring.tokenisation`), the
BLEU that chooses the best model is sacreBLEU's, and all words are those of its tokenisation.

sacreBLEU (Post 2018, arXiv:1804.08771) adds a signature to each figure: the settings that make figures comparable. Its
BLEU differs from `nmt.scoring.metrics.bleu` in two points. It smooths a precision of 0. A blank line has no token;
`nmt.scoring.metrics.bleu` counts it as one empty token. chrF (Popović 2015, "chrF: character n-gram F-score for
automatic MT evaluation") compares characters, so it does not depend on the tokenisation.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nmt.core.errors import InputError
from nmt.scoring.metrics import METRICS
from nmt.scoring.tokenisation import is_without_spaces, tokenisation, tokenised
from nmt.text.lines import TextFile


class Signed(NamedTuple):
    """A score of sacreBLEU, 0 to 100, with its signature, the settings of the computation."""

    score: float
    signature: str


@dataclass(frozen=True)
class Scores:
    """The scores of translations, all 0 to 100.

    Attributes:
      metrics: values of the requested metrics, by their names in `nmt.scoring.metrics.METRICS`.
      sacre_bleu: result of the function `sacre_bleu`.
      chrf: result of the function `chrf`.
      of_text: whether the figures of sacreBLEU are of text, and not of words that are separated by spaces.
      of_own_words: whether the words of `metrics` are those of the model's tokenisation.
    """

    metrics: Mapping[str, float]
    sacre_bleu: Signed
    chrf: Signed
    of_text: bool = False
    of_own_words: bool = True

    def lines(self, text_name: str = "") -> list[str]:
        """Return a line for the log for each score: `  bleu dev: 27.1`, or without a name `  bleu: 27.1`."""
        of = f" {text_name}" if text_name else ""
        kind = "tokenised " * (self.of_text and self.of_own_words)
        signed = {"sacrebleu": self.sacre_bleu, "chrf": self.chrf}
        return [f"  {kind}{name}{of}: {value:.1f}" for name, value in self.metrics.items()] + [
            f"  {name}{of}: {figure.score:.2f} ({figure.signature})" for name, figure in signed.items()
        ]


def sacre_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str | None = None) -> Signed:
    """Return sacreBLEU's corpus BLEU.

    Args:
      hypotheses: translations.
      references: one reference for each translation.
      language: code of the language of text that sacreBLEU tokenises; None for words that are separated by spaces.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    # Imported here because the import takes longer than most callers run.
    from sacrebleu.metrics import BLEU

    # `force` suppresses the warning that the text looks tokenised.
    kind = "none" if language is None else tokenisation(language)
    return _signed(BLEU(tokenize=kind, force=True), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Signed:
    """Return sacreBLEU's chrF: F-score of n-grams of 1 to 6 characters, in which recall has double weight.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    from sacrebleu.metrics import CHRF

    return _signed(CHRF(), hypotheses, references)


class Texts(NamedTuple):
    """Translations and their references as text."""

    hypotheses: Sequence[str]
    references: Sequence[str]


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu",),
    texts: Texts | None = None,
    language: str = "",
) -> Scores:
    """Return all scores of translations.

    Args:
      hypotheses: translations, as words that are separated by spaces.
      references: one reference for each translation, as words.
      metrics: names of metrics in `nmt.scoring.metrics.METRICS`.
      texts: translations and references as text, for sacreBLEU; None if they are not known.
      language: code of the translations' language.

    Raises:
      ValueError: the numbers of hypotheses and references differ.
    """
    found, wanted = texts or (hypotheses, references)
    own = not is_without_spaces(language)
    signed = sacre_bleu(found, wanted, None if own and texts is None else language)
    words = (hypotheses, references) if own else (tokenised(found, language), tokenised(wanted, language))
    figures = {name: METRICS[name](*words) for name in metrics}
    if "bleu" in figures and not own:
        figures["bleu"] = signed.score
    return Scores(figures, signed, chrf(found, wanted), texts is not None, own)


def score_files(
    hypothesis_path: str | os.PathLike[str],
    reference_path: str,
    references: Sequence[str],
    metrics: Sequence[str] = ("bleu",),
    *,
    translations_per_input: int = 1,
    picked: Sequence[int] | None = None,
    words: Callable[[str], str] | None = None,
    language: str = "",
) -> Scores:
    """Score a file of translations by references.

    Args:
      hypothesis_path: path of the translations.
      reference_path: path of the references, for messages.
      references: one for each sentence of the source text.
      words: function that makes words of a line of text; None if translations and references are words already.
      language: code of the translations' language.
      metrics: names of metrics in `nmt.scoring.metrics.METRICS`.
      translations_per_input: number of lines of translations for each sentence; the first line is scored.
      picked: numbers, from 0, of the sentences that were translated; None for all.

    Raises:
      InputError: a file cannot be used, or the numbers of sentences differ.
    """
    hypotheses = TextFile(hypothesis_path)
    numbers = range(len(references)) if picked is None else picked
    if max(numbers, default=0) >= len(references) or len(hypotheses) != translations_per_input * len(numbers):
        each = f" ({translations_per_input} for each sentence)" if translations_per_input > 1 else ""
        of = "" if picked is None else f", of which {len(numbers)} are asked for (the last is {max(picked, default=0)})"
        raise InputError(
            f"{hypotheses.path} has {len(hypotheses)} lines{each} and its reference {reference_path} has "
            f"{len(references)}{of}; score translations with the reference of the text they translate"
        )
    found = [hypotheses.line(i).strip() for i in range(0, len(hypotheses), translations_per_input)]
    wanted = [references[i] for i in numbers]
    if words is None:
        return score(found, wanted, metrics, language=language)
    return score([*map(words, found)], [*map(words, wanted)], metrics, Texts(found, wanted), language)


def _signed(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Signed:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    value = metric.corpus_score(hypotheses, [references]).score
    return Signed(value, str(metric.get_signature()))  # sacreBLEU makes the signature when it computes the score


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
