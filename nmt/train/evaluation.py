"""Evaluation during training: writes a checkpoint, and computes perplexity and BLEU with it.

The kind of object is chosen at the start. If rank 0 evaluates alone, it has an `Evaluator`. The other ranks have an
`Evaluation`, which does nothing, and wait for rank 0 in their next collective call. If the evaluation is shared, all
ranks have an `Evaluator`: each evaluates a share of the sentences, and all get the same figures. Ranks that do not
write have a store and outputs that do nothing.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nmt.checkpoints import checkpoint
from nmt.checkpoints.run_directory import AVERAGE, BestScore, Storing, best_name
from nmt.core.ranks import Ranks
from nmt.model.inference_model import TrainedWeights
from nmt.reporting.heatmap import heatmap
from nmt.reporting.outputs import RunOutputs, Stats
from nmt.scoring.finishing import Finishing
from nmt.scoring.perplexity import LikelihoodModel
from nmt.scoring.score import score
from nmt.search.translation_model import TranslationModel, translate_shared
from nmt.text.corpus import ParallelCorpus

PERPLEXITY = "ppl"  # name of the perplexity among the metrics


class Evaluation:
    """Evaluation of the model in the training session. This class does nothing: a rank that does not evaluate has it.

    Attributes:
        best: the best scores on the development text so far, as text: `bleu 31.20`.
    """

    best = ""

    def best_step(self) -> int:
        """Return the step of the best model by the first metric."""
        return 0

    def newest(self, metric: str) -> float:
        """Return the newest value of a metric or `PERPLEXITY` on the development text; NaN if there is none."""
        return math.nan

    def milestone(self, session: Any, step: int, *, perplexities: bool, scores: bool) -> None:
        """Write a checkpoint and print a sample translation; evaluate perplexities and scores, and keep best models."""

    def save(self, session: Any, step: int) -> None:
        """Write a checkpoint only."""

    def end(self, session: Any, stats: Stats) -> None:
        """Write a checkpoint; evaluate it and the best models with all metrics."""


class Evaluator(Evaluation):
    """Evaluates each checkpoint on the held-out texts, and keeps the models with the best scores.

    Args:
        texts: held-out texts by name; the scores on "dev" decide which model is best.
        weights: the weights that `likelihood` and `translation` share.
        likelihood: model that computes perplexities.
        translation: model that translates.
        metrics: names of the metrics that score translations.
        store: writer of checkpoints and translations.
        finishing: what makes text of translations.
        seed: random seed that chooses the sample sentences.
        everybody: all ranks, if they wait while this rank evaluates; else `OneProcess`.
        sharing: the ranks that evaluate together; `OneProcess` if rank 0 evaluates alone.
        outputs: receiver of the log lines and figures.
    """

    def __init__(
        self,
        texts: Mapping[str, ParallelCorpus],
        weights: TrainedWeights,
        likelihood: LikelihoodModel,
        translation: TranslationModel,
        *,
        metrics: Sequence[str],
        store: Storing,
        finishing: Finishing,
        seed: int,
        everybody: Ranks,
        sharing: Ranks,
        outputs: RunOutputs,
    ) -> None:
        self._texts, self._weights = texts, weights
        self._likelihood, self._translation = likelihood, translation
        self._metrics, self._store, self._seed = metrics, store, seed
        self._everybody, self._sharing, self._outputs = everybody, sharing, outputs
        self._newest: dict[str, float] = {}
        self._finishing = finishing
        self._references = {name: list(map(finishing.reference, text.tgt)) for name, text in texts.items()}

    @property
    def best(self) -> str:  # type: ignore[override]
        """The best scores so far."""
        return ", ".join(f"{metric} {self._best(metric).score:.2f}" for metric in self._metrics)

    def best_step(self) -> int:
        """Return the step of the best model by the first metric."""
        return self._best(self._metrics[0]).step

    def newest(self, metric: str) -> float:
        """Return the newest value of a metric or `PERPLEXITY` on the development text; NaN if there is none."""
        return self._newest.get(f"dev_{metric}", math.nan)

    def milestone(self, session: Any, step: int, *, perplexities: bool, scores: bool) -> None:
        """Write a checkpoint and print a sample translation; evaluate perplexities and scores, and keep best models."""
        with self._everybody.alone("evaluation"):
            path = self._store.save(session, step)
            self._restore(path)
            self._sample(step)
            if perplexities:
                self._newest |= self._perplexities(step)
            if scores:
                self._newest |= (figures := self._scores(step))
                self._offer(path, figures)
                self._evaluate_average(step)

    def save(self, session: Any, step: int) -> None:
        """Write a checkpoint only."""
        self._store.save(session, step)

    def end(self, session: Any, stats: Stats) -> None:
        """Write a checkpoint; evaluate it and the best models with all metrics."""
        with self._everybody.alone("evaluation"):
            path = self._store.save(session, stats.step)
            figures = self._full(path, stats.step)
            self._offer(path, figures)
            averaged = self._evaluate_average(stats.step)
            self._outputs.say(stats.line("# Final, ", self._summary(figures, averaged)))
            self._sharing.barrier()  # the writing rank must have written the best models
            known = {stats.step: figures}
            for metric in self._metrics:
                self._evaluate_best(self._best(metric), f"# Best {metric}", known, stats)
            known_averages: dict[int, dict[str, float]] = {}
            for metric in self._metrics if averaged else ():
                best = self._store.best[best_name(metric, AVERAGE)]
                self._evaluate_best(best, f"# Averaged Best {metric}", known_averages, stats, AVERAGE)

    def _evaluate_best(
        self, model: BestScore, said: str, known: dict[int, dict[str, float]], stats: Stats, prefix: str = ""
    ) -> None:
        """Log the scores of a best model; `known` caches figures by step and gets the figures of this model."""
        path = self._sharing.broadcast(model.checkpoint)
        if path is None:
            self._outputs.say(f"{said}: no model has scored more than 0 yet")
            return
        step = checkpoint.step_of(path)
        if step not in known:
            known[step] = self._full(path, step, prefix)
        summary = self._summary(known[step], {}, prefix)
        self._outputs.say(dataclasses.replace(stats, step=step).line(f"{said}, ", summary))

    def _best(self, metric: str) -> BestScore:
        return self._store.best[best_name(metric)]

    def _offer(self, path: str, scores: Mapping[str, float], prefix: str = "") -> None:
        for metric in self._metrics:
            self._store.best[best_name(metric, prefix)].offer(path, scores[f"{prefix}dev_{metric}"])

    def _evaluate_average(self, step: int) -> dict[str, float]:
        """Return the scores of the mean of the newest checkpoints; {} without averages or with too few checkpoints."""
        if best_name(self._metrics[0], AVERAGE) not in self._store.best:
            return {}
        path = self._sharing.broadcast(self._store.average(step))
        if path is None:
            self._outputs.say("# No average of checkpoints: there are fewer than --num_keep_ckpts yet")
            return {}
        self._restore(path)
        scores = self._scores(step, AVERAGE)
        self._offer(path, scores, AVERAGE)
        return scores

    def _restore(self, path: str) -> None:
        self._sharing.barrier()  # the writing rank must have written the checkpoint
        checkpoint.restore(self._weights.session, self._weights.saver, path)

    def _full(self, path: str, step: int, prefix: str = "") -> dict[str, float]:
        self._restore(path)
        self._sample(step)
        return self._perplexities(step, prefix) | self._scores(step, prefix)

    def _summary(self, figures: Mapping[str, float], averaged: Mapping[str, float], prefix: str = "") -> str:
        """Return the figures as text: `dev ppl 3.21, dev bleu 20.1, avg_dev bleu 20.3, test ppl ...`."""
        parts = []
        for name in (prefix + text for text in self._texts):
            parts.append(f"{name} ppl {figures[f'{name}_{PERPLEXITY}']:.2f}")
            parts += [f"{name} {metric} {figures[f'{name}_{metric}']:.1f}" for metric in self._metrics]
            parts += [f"{name} sacrebleu {figures[one]:.2f}" for one in (f"{name}_sacrebleu",) if one in figures]
            average = AVERAGE + name
            parts += [f"{average} {m} {averaged[f'{average}_{m}']:.1f}" for m in self._metrics if averaged]
        return ", ".join(parts)

    def _sample(self, step: int) -> None:
        """Log a sentence of the development text, chosen by seed and step, and its translation."""
        text = self._texts["dev"]
        number = int(np.random.Generator(np.random.PCG64([self._seed, step])).integers(len(text)))
        source = text.src.line(number)
        translation = self._finishing.text(self._translation.translate([source])[0][0])
        self._outputs.say(f"  # {number}")
        for label, line in (("src", source), ("ref", text.tgt.line(number)), ("nmt", translation)):
            self._outputs.say(f"    {label}: {line}")
        self._outputs.picture(step, "attention_images", lambda: self._attention(source))

    def _attention(self, source: str) -> bytes | None:
        alignment = self._translation.align(source)
        return heatmap(*alignment) if alignment else None

    def _perplexities(self, step: int, prefix: str = "") -> dict[str, float]:
        figures = {}
        for text_name, text in self._texts.items():
            name = prefix + text_name
            started = time.perf_counter()
            figures[f"{name}_{PERPLEXITY}"] = value = self._likelihood.perplexity(text, self._sharing)
            seconds = time.perf_counter() - started
            self._outputs.say(f"  eval {name}: perplexity {value:.2f}, time {seconds:.0f}s, {time.ctime()}.")
        self._outputs.scores(step, figures)
        return figures

    def _scores(self, step: int, prefix: str = "") -> dict[str, float]:
        figures: dict[str, float] = {}
        for text_name, text in self._texts.items():
            name = prefix + text_name
            started = time.perf_counter()
            lines = list(text.src)
            hypotheses = [best for best, *_ in translate_shared(self._translation, lines, self._sharing)]
            texts = list(map(self._finishing.text, hypotheses))
            self._store.translations(name, texts)
            words, wanted = list(map(self._finishing.words, hypotheses)), self._references[text_name]
            compared = self._finishing.compared(text_name, texts)
            found = score(words, wanted, self._metrics, compared, self._finishing.language)
            figures |= {f"{name}_{metric}": value for metric, value in found.metrics.items()}
            figures |= {f"{name}_sacrebleu": found.sacre_bleu.score} if found.of_text else {}
            for line in found.lines(name):
                self._outputs.say(line)
            self._outputs.say(f"  {name} translated in {time.perf_counter() - started:.0f}s")
        self._outputs.scores(step, figures)
        return figures
