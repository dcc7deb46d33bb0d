"""What happens at a milestone of training: a checkpoint is written, then the graphs for evaluation read it
and are asked.

One object is chosen at the start: `Evaluator` on the rank that writes, `NoEvaluation` on the others, which
wait for it in their next collective call.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from nmt.errors import InputError
from nmt.files import replace_atomically
from nmt.text.corpus import ParallelCorpus
from nmt.text.tokens import reference_text
from nmt.train import checkpoint
from nmt.train.checkpoint import Checkpoints
from nmt.train.likelihood import LikelihoodModel
from nmt.train.outputs import RunOutputs, Stats
from nmt.train.ranks import Ranks
from nmt.translate.decode import TranslationModel
from nmt.translate.score import bleu, sacre_bleu

BEST = "best_bleu"  # the best model's directory in out_dir


class Evaluation(Protocol):
    """The milestones; each takes the training session and the number of steps done."""

    @property
    def best(self) -> float:
        """The best BLEU on the development text so far."""

    def milestone(self, session: Any, step: int, *, perplexities: bool, scores: bool) -> None:
        """Checkpoint and sample translation; perplexities; scores of translated texts, and the best model."""

    def end(self, session: Any, stats: Stats) -> None:
        """Checkpoint, full evaluation, and that of the best model."""


class NoEvaluation:
    """Does nothing."""

    best = 0.0

    def milestone(self, session: Any, step: int, *, perplexities: bool, scores: bool) -> None:
        """Nothing."""

    def end(self, session: Any, stats: Stats) -> None:
        """Nothing."""


class Evaluator:
    """Evaluates each milestone's checkpoint on the texts, and keeps the model of the best BLEU.

    Args:
        out_dir: holds the checkpoints, and gets the translations `output_<text>`.
        texts: held-out text by name; "dev" is the one that decides which model is best.
        likelihood: the graph for perplexity.
        translation: the graph for translations.
        saver: a `tf.compat.v1.train.Saver` of the training graph.
        keep: checkpoints kept.
        best: the best model so far.
        subword_option: how tokens are joined into words.
        seed: of the choice of sample sentences.
        ranks: where this rank's work alone is announced.
        outputs: where figures go.

    Raises:
        InputError: out_dir cannot be made.
    """

    def __init__(
        self,
        out_dir: str,
        texts: Mapping[str, ParallelCorpus],
        likelihood: LikelihoodModel,
        translation: TranslationModel,
        *,
        saver: Any,
        keep: int,
        best: BestModel,
        subword_option: str,
        seed: int,
        ranks: Ranks,
        outputs: RunOutputs,
    ) -> None:
        self._out_dir, self._texts, self._likelihood, self._translation = (
            Path(out_dir),
            texts,
            likelihood,
            translation,
        )
        self._saver, self._subword_option, self._seed = saver, subword_option, seed
        self._ranks, self._outputs = ranks, outputs
        self._checkpoints = Checkpoints(out_dir, keep)
        self._best = best
        self._saved: str | None = None
        self._references = {name: _references(text, subword_option) for name, text in texts.items()}

    @property
    def best(self) -> float:
        """The best BLEU on the development text so far."""
        return self._best.score

    def milestone(self, session: Any, step: int, *, perplexities: bool, scores: bool) -> None:
        """Checkpoint and sample translation; perplexities; scores of translated texts, and the best model."""
        with self._ranks.alone("evaluation"):
            path = self._save(session, step)
            self._restore(path)
            self._sample(step)
            if perplexities:
                self._perplexities(step)
            if scores:
                self._keep_if_best(path, self._scores(step))

    def end(self, session: Any, stats: Stats) -> None:
        """Checkpoint, full evaluation, and that of the best model."""
        with self._ranks.alone("evaluation"):
            path = self._save(session, stats.step)
            scores = self._full(path, stats.step)
            self._keep_if_best(path, scores)
            self._outputs.say(stats.line("# Final, ", _summary(scores)))
            best = checkpoint.latest(self._best.directory)
            if best is None:
                self._outputs.say("# Best bleu: no model has scored more than 0 yet")
                return
            step = checkpoint.step_of(best)
            scores = scores if step == stats.step else self._full(best, step)
            self._outputs.say(dataclasses.replace(stats, step=step).line("# Best bleu, ", _summary(scores)))

    def _save(self, session: Any, step: int) -> str:
        """The checkpoint of this step, written unless it has been."""
        if self._saved is None or checkpoint.step_of(self._saved) != step:
            self._saved = self._checkpoints.save(session, self._saver, step)
        return self._saved

    def _restore(self, path: str) -> None:
        checkpoint.restore(self._likelihood.session, self._likelihood.saver, path)
        checkpoint.restore(self._translation.session, self._translation.saver, path)

    def _full(self, path: str, step: int) -> dict[str, float]:
        self._restore(path)
        self._sample(step)
        scores = self._perplexities(step) | self._scores(step)
        return {f"{name}_{figure}": scores[f"{name}_{figure}"] for name in self._texts for figure in ("ppl", "bleu")}

    def _sample(self, step: int) -> None:
        """Prints a sentence of the development text and its translation; seed and step choose which."""
        text = self._texts["dev"]
        number = int(np.random.Generator(np.random.PCG64([self._seed, step])).integers(len(text)))
        source = text.src.line(number)
        translation = self._translation.translate([source])[0]
        self._outputs.say(f"  # {number}")
        for label, line in (("src", source), ("ref", text.tgt.line(number)), ("nmt", translation)):
            self._outputs.say(f"    {label}: {line}")

    def _perplexities(self, step: int) -> dict[str, float]:
        figures = {}
        for name, text in self._texts.items():
            started = time.perf_counter()
            figures[f"{name}_ppl"] = value = self._likelihood.perplexity(text)
            seconds = time.perf_counter() - started
            self._outputs.say(f"  eval {name}: perplexity {value:.2f}, time {seconds:.0f}s, {time.ctime()}.")
        self._outputs.scores(step, figures)
        return figures

    def _scores(self, step: int) -> dict[str, float]:
        figures = {}
        for name, text in self._texts.items():
            started = time.perf_counter()
            hypotheses = self._translation.translate([text.src.line(i) for i in range(len(text))])
            with replace_atomically(self._out_dir / f"output_{name}") as file:
                file.writelines(line + "\n" for line in hypotheses)
            figures[f"{name}_bleu"] = value = bleu(hypotheses, self._references[name])
            self._outputs.say(f"  bleu {name}: {value:.1f}")
            score, signature = sacre_bleu(hypotheses, self._references[name])
            seconds = time.perf_counter() - started
            self._outputs.say(f"  sacrebleu {name}: {score:.2f} ({signature}), time {seconds:.0f}s")
        self._outputs.scores(step, figures)
        return figures

    def _keep_if_best(self, path: str, scores: Mapping[str, float]) -> None:
        if scores["dev_bleu"] > self._best.score:
            self._best.keep(path, scores["dev_bleu"])


class BestModel:
    """The checkpoint of the best score, in a directory of its own with its `hparams`, so that it can be
    translated with.

    Attributes:
        directory: where it is.
        score: 0 as long as there is none.

    Raises:
        InputError: the record `best.json` is damaged.
    """

    def __init__(self, directory: Path, hparams: str) -> None:
        self.directory = directory
        self._hparams = hparams
        self._record = directory / "best.json"
        self.score = 0.0
        if self._record.exists():
            try:
                self.score = float(json.loads(self._record.read_text(encoding="utf-8"))["bleu"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self._record} is damaged ({error}): delete it, and the best model is found anew"
                ) from None

    def keep(self, path: str, score: float) -> None:
        """Copies a checkpoint here in place of the one before, and records its score last."""
        with replace_atomically(self.directory / "hparams") as file:
            file.write(self._hparams)
        copy = Checkpoints(self.directory, keep=1).adopt(path)
        with replace_atomically(self._record) as file:
            json.dump({"bleu": score, "checkpoint": os.path.basename(copy)}, file, indent=4, sort_keys=True)
            file.write("\n")
        self.score = score


def _references(text: ParallelCorpus, subword_option: str) -> list[str]:
    return [reference_text(text.tgt.line(i), subword_option) for i in range(len(text))]


def _summary(scores: Mapping[str, float]) -> str:
    """`dev ppl 3.21, dev bleu 20.1, ...`"""
    form = {"ppl": "{:.2f}", "bleu": "{:.1f}"}
    return ", ".join(
        f"{name.replace('_', ' ')} {form[name.rsplit('_')[-1]].format(value)}" for name, value in scores.items()
    )
