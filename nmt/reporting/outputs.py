"""Logging of a run: lines on the screen and in a file, TensorBoard summaries, the history, the progress.

The rank that writes has an object of class `Outputs`, the other ranks have one of its base class.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from nmt.core.errors import InputError, reason_of
from nmt.core.files import append, make_directory, replace_atomically
from nmt.reporting.curve import History, draw
from nmt.reporting.heatmap import image_summary
from nmt.reporting.progress import progress


@dataclass(frozen=True)
class Stats:
    """Statistics of all ranks over the steps since the last statistics.

    Attributes:
        step: number of steps done.
        learning_rate: learning rate of the last step.
        step_seconds: mean time of a step in seconds, without evaluation.
        words_per_second: source words plus target words with end marks per second.
        perplexity: exp(loss per target word).
        grad_norm: mean global norm of the gradients before clipping.
        clipped_norm: mean global norm of the gradients after clipping.
        loss: mean loss of a sentence.
    """

    step: int
    learning_rate: float = 0.0
    step_seconds: float = 0.0
    words_per_second: float = 0.0
    perplexity: float = 0.0
    grad_norm: float = 0.0
    clipped_norm: float = 0.0
    loss: float = 0.0

    def line(self, prefix: str, scores: str) -> str:
        """Return the log line of the statistics, in a format that parsers of logs may rely on.

        The format is `<prefix>step N lr X step-time A.AAs wps B.BBK ppl C.CC gN D.DD <scores>, <time>`. If the run has
        done no step yet, the scores follow N directly.
        """
        if not self.step_seconds:
            return f"{prefix}step {self.step} {scores}, {time.ctime()}"
        return (
            f"{prefix}step {self.step} lr {self.learning_rate:g} step-time {self.step_seconds:.2f}s "
            f"wps {self.words_per_second / 1000:.2f}K ppl {self.perplexity:.2f} "
            f"gN {self.grad_norm:.2f} {scores}, {time.ctime()}"
        )


class RunOutputs:
    """Receiver of a run's log lines and figures. This class reports nothing: a rank that does not write has it."""

    def say(self, text: str) -> None:
        """Print a line and write it to the log."""

    def started(self, step: int, ranks: int, batch: str) -> None:
        """Note a start after this step, with the number of ranks and the global batch."""

    def stood_still(self, step: int, seconds: float) -> None:
        """Report that training has stood still for these seconds."""

    def stepped(self, step: int) -> None:
        """Show that a step is done."""

    def stats(self, stats: Stats, best: str) -> None:
        """Report statistics; `best` is the best score so far, as text."""

    def scores(self, step: int, figures: dict[str, float]) -> None:
        """Report the figures of an evaluation, by names such as dev_ppl and test_bleu."""

    def picture(self, step: int, tag: str, drawing: Callable[[], bytes | None]) -> None:
        """Add a picture to the TensorBoard summaries; `drawing` returns a PNG, or None if it cannot draw."""

    def close(self) -> None:
        """End the report of the run: draw the learning curve and close the files."""


class Outputs(RunOutputs):
    """Prints, and writes `log_<unix seconds>`, `train_log/`, `history.jsonl` and `learning_curve.png` in `out_dir`.

    Args:
        out_dir: output directory; made if missing.
        first_step: number of steps already done.
        last_step: number of steps of the whole training.
        metrics: names of the scores in the learning curve.

    Raises:
        InputError: `out_dir` is not writable. All methods raise it if the disk is full.
    """

    def __init__(
        self,
        out_dir: str,
        first_step: int,
        last_step: int,
        metrics: Sequence[str] = ("bleu",),
    ) -> None:
        self._directory = make_directory(out_dir)
        self._metrics, self._step = metrics, first_step
        self._train_log = make_directory(self._directory / "train_log")  # may raise: before the history is cut
        self._history = History(self._directory / "history.jsonl", first_step)
        self._log = self._directory / f"log_{int(time.time())}"
        with tf.Graph().as_default():  # a FileWriter cannot be created in eager mode
            self._summaries = tf.compat.v1.summary.FileWriter(os.fspath(self._train_log))
        self._progress = progress(first_step, last_step)

    def say(self, text: str) -> None:
        """Print a line and write it to the log."""
        self._progress.say(text)
        append(self._log, text + "\n")

    def started(self, step: int, ranks: int, batch: str) -> None:
        """Note the start in the history."""
        self._history.record(step, {"started": time.time(), "ranks": ranks, "batch": batch})

    def stood_still(self, step: int, seconds: float) -> None:
        """Log the seconds, and note them in the history."""
        self.say(f"  training stood still for {seconds:.1f}s")
        self._history.record(step, {"stood_still": round(seconds, 3), "time": time.time()})

    def stepped(self, step: int) -> None:
        """Advance the progress."""
        self._step = step
        self._progress.advance(step, {})

    def stats(self, stats: Stats, best: str) -> None:
        """Log the line of statistics, write the summaries, and show the figures next to the progress."""
        self.say(stats.line("  ", best))
        self._summarise(
            stats.step,
            {
                "lr": stats.learning_rate,
                "train_loss": stats.loss,
                "grad_norm": stats.grad_norm,
                "clipped_gradient": stats.clipped_norm,
                "train_ppl": stats.perplexity,
                "speed": stats.words_per_second / 1000,
                "avg_step_time": stats.step_seconds,
            },
        )
        figures = {
            "train_ppl": stats.perplexity,
            "learning_rate": stats.learning_rate,
            "grad_norm": stats.grad_norm,
            "words_per_second": stats.words_per_second,
        }
        self._history.record(stats.step, figures | {"time": time.time()})
        self._progress.advance(
            stats.step,
            {
                "wps": f"{stats.words_per_second / 1000:.2f}K",
                "ppl": f"{stats.perplexity:.2f}",
                "lr": f"{stats.learning_rate:g}",
            },
        )

    def scores(self, step: int, figures: dict[str, float]) -> None:
        """Write an evaluation's figures to the summaries and the history."""
        self._summarise(step, figures)
        self._history.record(step, figures)

    def picture(self, step: int, tag: str, drawing: Callable[[], bytes | None]) -> None:
        """Draw a picture and add it to the summaries."""
        png = drawing()
        if png is not None:
            self._add(step, [tf.compat.v1.Summary.Value(tag=tag, image=image_summary(png))])

    def close(self) -> None:
        """Draw the learning curve and close the files."""
        self._progress.close()
        path: Path = self._directory / "learning_curve.png"
        picture = draw(self._history, self._metrics)
        if picture is None:
            self.say("# No learning curve: matplotlib is not installed (pip install matplotlib)")
        else:
            with replace_atomically(path, "wb") as file:
                file.write(picture)
            self.picture(self._step, "learning_curve", lambda: picture)
            self.say(f"# Learning curve: {path}")
        self._summaries.close()

    def _summarise(self, step: int, figures: dict[str, float]) -> None:
        value = tf.compat.v1.Summary.Value
        self._add(step, [value(tag=tag, simple_value=number) for tag, number in figures.items()])

    def _add(self, step: int, values: list[Any]) -> None:
        summary = tf.compat.v1.Summary(value=values)
        try:
            self._summaries.add_summary(summary, step)
            self._summaries.flush()
        except (RuntimeError, tf.errors.OpError) as error:  # TensorFlow raises these if the disk is full
            raise InputError(
                f"{self._train_log}: cannot be written ({reason_of(error)}); free or choose another disk"
            ) from error
