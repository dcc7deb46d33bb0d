"""The directory of a run: which files an evaluation leaves in it: checkpoints, their mean, translations, the best.

One object is chosen at the start: `Store` on the rank that writes, `NoStore` on the others, which knows the same names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from nmt.checkpoints import checkpoint
from nmt.checkpoints.best import BestModel, BestScore
from nmt.checkpoints.checkpoint import NAME, Checkpoints, reading
from nmt.core.files import replace_atomically


def mean_values(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """The mean of each variable over checkpoints, in float64; of integers, such as the step, the last value.

    Raises:
        InputError: a checkpoint is damaged.
    """
    readers = {}
    for path in paths:
        with reading(path):
            readers[path] = tf.train.load_checkpoint(path)
    means = {}
    for name in readers[paths[-1]].get_variable_to_shape_map():
        with reading(paths[-1]):
            last = np.asarray(readers[paths[-1]].get_tensor(name))
        if last.dtype.kind != "f":
            means[name] = last
            continue
        total = np.zeros(last.shape, np.float64)
        for path, reader in readers.items():
            with reading(path):
                total += reader.get_tensor(name)
        means[name] = (total / len(readers)).astype(last.dtype)
    return means


def write_values(path: Path, values: dict[str, np.ndarray]) -> None:
    """A checkpoint of these variables, as `tf.compat.v1.train.Saver` writes it."""
    names = sorted(values)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        places = [tf.compat.v1.placeholder(values[name].dtype, values[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(
            prefix=os.fspath(path), tensor_names=names, shape_and_slices=[""] * len(names), tensors=places
        )
        session.run(save, dict(zip(places, (values[name] for name in names), strict=True)))


AVERAGE = "avg_"  # what names of an averaged model begin with
_AVERAGES = "avg_checkpoints"


def best_name(metric: str, prefix: str = "") -> str:
    """The directory of the best model by a metric: `best_bleu`, or `avg_best_bleu` for an averaged one."""
    return f"{prefix}best_{metric}"


class Storing(Protocol):
    """Where an evaluation's products go.

    Attributes:
        best: the best models by the names of their directories.
    """

    best: dict[str, BestScore]

    def save(self, session: Any, step: int) -> str:
        """The path of the checkpoint of this step, written unless it has been."""

    def average(self, step: int) -> str | None:
        """The path of the mean of the newest checkpoints; None as long as there are too few, or another writes."""

    def translations(self, name: str, lines: Sequence[str]) -> None:
        """The translation `output_<name>` of a text."""


class NoStore:
    """Writes nothing.

    Args:
        out_dir: where the other rank writes.
        metrics: what best models are kept by.
        keep: checkpoints kept, as many as an average is of.
        averages: whether models are averaged.
    """

    def __init__(self, out_dir: str, metrics: Sequence[str], keep: int, averages: bool) -> None:
        self.directory, self.keep = Path(out_dir), keep
        self.best = {
            best_name(metric, prefix): self._best(best_name(metric, prefix), metric)
            for prefix in ("", AVERAGE)[: 1 + averages]
            for metric in metrics
        }

    def _best(self, name: str, metric: str) -> BestScore:
        return BestScore(self.directory / name, metric)

    def save(self, session: Any, step: int) -> str:
        """The path."""
        return os.fspath(self.directory / f"{NAME}-{step}")

    def average(self, step: int) -> str | None:
        """None: who writes it knows."""
        return None

    def translations(self, name: str, lines: Sequence[str]) -> None:
        """Nothing."""


class Store(NoStore):
    """Writes to `out_dir`.

    Args:
        out_dir: made if missing.
        metrics: what best models are kept by.
        keep: checkpoints kept, as many as an average is of.
        averages: whether models are averaged.
        hparams: the text of the file `hparams` beside the best models and the mean of checkpoints.
        saver: a `tf.compat.v1.train.Saver` of the training graph.

    Raises:
        InputError: a directory cannot be made, or a record is damaged; later, and from any method: the disk is full.
    """

    def __init__(
        self, out_dir: str, metrics: Sequence[str], keep: int, averages: bool, hparams: str, saver: Any
    ) -> None:
        self._hparams, self._saver = hparams, saver
        super().__init__(out_dir, metrics, keep, averages)
        self._checkpoints = Checkpoints(out_dir, keep)
        self._saved: str | None = None

    def _best(self, name: str, metric: str) -> BestScore:
        return BestModel(self.directory / name, metric, self._hparams)

    def save(self, session: Any, step: int) -> str:
        """The path of the checkpoint of this step, written unless it has been."""
        if self._saved is None or checkpoint.step_of(self._saved) != step:
            self._saved = self._checkpoints.save(session, self._saver, step)
        return self._saved

    def average(self, step: int) -> str | None:
        """Written to `avg_checkpoints`, in place of the one before."""
        trained = [name for name in checkpoint.listed(self.directory) if checkpoint.step_of(name)]  # not the initial
        if len(trained) < self.keep:
            return None
        means = mean_values([os.fspath(self.directory / name) for name in trained[-self.keep :]])
        checkpoints = Checkpoints(self.directory / _AVERAGES, keep=1, hparams=self._hparams)
        return checkpoints.write(step, lambda target: write_values(target, means))

    def translations(self, name: str, lines: Sequence[str]) -> None:
        """One line each, the file complete or as before."""
        with replace_atomically(self.directory / f"output_{name}") as file:
            file.writelines(line + "\n" for line in lines)
