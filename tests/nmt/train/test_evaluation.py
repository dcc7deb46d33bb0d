"""Milestones: files and lines that they write, and the choice of the best model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from nmt.checkpoints.run_directory import Store
from nmt.core.ranks import OneProcess
from nmt.reporting.outputs import RunOutputs, Stats
from nmt.scoring.finishing import Finishing
from nmt.train.evaluation import Evaluator

v1 = tf.compat.v1


class Scalar:
    """A model of one variable with perplexity 2 and the translations of ``answers``."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph:
            v1.get_variable("weight", [], initializer=v1.zeros_initializer())
            initialise = v1.global_variables_initializer()
            self.saver = v1.train.Saver(max_to_keep=None)
        self.session = v1.Session(graph=graph)
        self.session.run(initialise)
        self.answers: dict[str, str] = {}

    def perplexity(self, corpus: Any, ranks: Any) -> float:
        return 2.0

    def translate(self, lines: Sequence[str], numbers: Sequence[int] | None = None) -> list[list[str]]:
        return [[self.answers.get(line, "nothing"), "second best"] for line in lines]

    def align(self, line: str) -> None:
        return None


class Lines(RunOutputs):
    """Outputs that keep all lines and figures, without times."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.figures: list[tuple[int, dict[str, float]]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def scores(self, step: int, figures: dict[str, float]) -> None:
        self.figures.append((step, figures))


def evaluator(toy: Any, model: Scalar, outputs: Lines, averages: bool = False) -> Evaluator:
    either: Any = model
    return Evaluator(
        {"dev": toy.dev, "test": toy.dev},
        either,
        either,
        either,
        metrics=["bleu", "accuracy"],
        store=Store(str(toy.directory / "out"), ["bleu", "accuracy"], 2, averages, "{}\n", model.saver),
        finishing=Finishing("", ""),
        seed=1,
        everybody=OneProcess(),
        sharing=OneProcess(),
        outputs=outputs,
    )


def test_the_best_model_is_kept(toy: Any) -> None:
    model, outputs = Scalar(), Lines()
    evaluation = evaluator(toy, model, outputs)
    best = toy.directory / "out" / "best_bleu"
    evaluation.milestone(model.session, 1, perplexities=False, scores=True)
    assert evaluation.best == "bleu 0.00, accuracy 0.00"
    assert not list(best.iterdir())  # 0 is not better than no score
    model.answers = {toy.dev.src.line(i): toy.dev.tgt.line(i) for i in range(len(toy.dev))}
    evaluation.milestone(model.session, 2, perplexities=True, scores=True)
    assert evaluation.best == "bleu 100.00, accuracy 100.00" and evaluation.best_step() == 2
    evaluation.milestone(model.session, 3, perplexities=False, scores=True)  # an equal score is not better
    kept = {
        "hparams",
        "checkpoint",
        "best.json",
        "translate.ckpt-2.index",
        "translate.ckpt-2.data-00000-of-00001",
    }
    assert {path.name for path in best.iterdir()} == kept
    assert json.loads((best / "best.json").read_text()) == {
        "bleu": pytest.approx(100.0),
        "checkpoint": "translate.ckpt-2",
    }
    assert evaluator(toy, model, outputs).best_step() == 2  # a run that continues reads it
    assert (toy.directory / "out" / "output_dev").read_text() == (toy.directory / "dev.de").read_text()
    assert (2, {"dev_ppl": pytest.approx(2.0), "test_ppl": pytest.approx(2.0)}) in outputs.figures
    assert "  bleu dev: 100.0" in outputs.lines
    assert any(line.startswith("  sacrebleu test: 100.00 (nrefs:1") for line in outputs.lines)

    evaluation.end(model.session, Stats(5, 0.5, step_seconds=0.1))
    last, also = outputs.lines[-2:]
    assert also.startswith("# Best accuracy, step 2")
    final = next(line for line in outputs.lines if line.startswith("# Final, "))
    scores = "dev ppl 2.00, dev bleu 100.0, dev accuracy 100.0, test ppl 2.00, test bleu 100.0, test accuracy 100.0, "
    assert final.startswith("# Final, step 5 lr 0.5 step-time")
    assert scores in final
    assert last.startswith("# Best bleu, step 2 lr 0.5")
    assert scores in last


def test_the_end_without_a_best_model(toy: Any) -> None:
    model, outputs = Scalar(), Lines()
    evaluator(toy, model, outputs).end(model.session, Stats(1))
    assert outputs.lines[-2] == "# Best bleu: no model has scored more than 0 yet"


def test_averages_are_evaluated_once_there_are_enough(toy: Any) -> None:
    model, outputs = Scalar(), Lines()
    evaluation = evaluator(toy, model, outputs, averages=True)
    model.answers = {toy.dev.src.line(i): toy.dev.tgt.line(i) for i in range(len(toy.dev))}
    evaluation.milestone(model.session, 1, perplexities=False, scores=True)
    assert not any("avg_dev" in line for line in outputs.lines)
    assert "# No average of checkpoints: there are fewer than --num_keep_ckpts yet" in outputs.lines
    evaluation.milestone(model.session, 2, perplexities=False, scores=True)
    assert "  bleu avg_dev: 100.0" in outputs.lines and (toy.directory / "out/output_avg_dev").exists()
    assert (2, {f"avg_{t}_{m}": pytest.approx(100.0) for t in ("dev", "test") for m in ("bleu", "accuracy")}) in (
        outputs.figures
    )
    evaluation.end(model.session, Stats(2))
    final = next(line for line in outputs.lines if line.startswith("# Final, "))
    assert "dev bleu 100.0, dev accuracy 100.0, avg_dev bleu 100.0" in final
    assert outputs.lines[-1].startswith("# Averaged Best accuracy, step 2 ")


def test_a_sample_has_source_reference_and_translation(toy: Any) -> None:
    model, outputs = Scalar(), Lines()
    evaluator(toy, model, outputs).milestone(model.session, 1, perplexities=False, scores=False)
    number = int(outputs.lines[0].removeprefix("  # "))
    pair = [
        f"    src: {toy.dev.src.line(number)}",
        f"    ref: {toy.dev.tgt.line(number)}",
        "    nmt: nothing",
    ]
    assert outputs.lines[1:] == pair
