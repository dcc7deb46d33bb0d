"""The directory of a run: writes an evaluation's files, which are checkpoints, their mean, translations, best models.

The rank that writes has an object of class `Store`. The other ranks have one of its base class, `Storing`, which has
the same paths.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.checkpoints import checkpoint
from nmt.checkpoints.checkpoint import NAME, Checkpoints, reading
from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically


def mean_values(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the mean of each variable over checkpoints, summed in float64; for integers (the step) the last value.

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
    """Write a checkpoint of these variables, in the format of `tf.compat.v1.train.Saver`."""
    names = sorted(values)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        places = [tf.compat.v1.placeholder(values[name].dtype, values[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(
            prefix=os.fspath(path), tensor_names=names, shape_and_slices=[""] * len(names), tensors=places
        )
        session.run(save, dict(zip(places, (values[name] for name in names), strict=True)))


AVERAGE = "avg_"  # prefix of the names of averaged models
_AVERAGES = "avg_checkpoints"


def is_part_of_run(directory: str | os.PathLike[str]) -> bool:
    """Return True if a directory has the name of one with a best model, or with a mean, inside a run's directory."""
    return Path(directory).resolve().name.startswith((best_name(""), best_name("", AVERAGE), _AVERAGES))


def best_name(metric: str, prefix: str = "") -> str:
    """Return the directory of the best model by a metric: `best_bleu`, or `avg_best_bleu` for averaged models."""
    return f"{prefix}best_{metric}"


def set_aside(out_dir: str, metrics: Sequence[str], rewound: bool) -> list[str]:
    """Rename best models that are not of the training that goes on in a directory, and return a log line for each.

    If checkpoints were deleted, the best model may be of a later step than the last that is left. Its score would win.
    A training that has gone back (``rewound``) deletes checkpoints itself, and keeps its best models.
    """
    latest, told = checkpoint.latest(out_dir), []
    begin = checkpoint.step_of(latest) if latest else 0
    for name in (best_name(metric, prefix) for prefix in ("", AVERAGE) for metric in metrics):
        best = BestScore(Path(out_dir) / name, name.rpartition("best_")[2])
        there = any(best.directory.glob(f"{NAME}-*.index"))
        later = best.step > begin and not (latest and rewound)
        if best.score and (later or not there):
            numbered = (Path(out_dir) / f"{name}.{number}" for number in itertools.count(1))
            new = best.directory.rename(next(path for path in numbered if not path.exists()))
            what = f"of step {best.step}, and training begins after step {begin}" if there else "gone"
            told.append(f"{best.directory}: its model is {what}: renamed to {new.name}")
    return told


class Storing:
    """Writer of an evaluation's files. This class writes nothing, and returns the paths that another rank writes.

    Args:
        out_dir: the directory where another rank writes.
        metrics: names of the metrics whose best models are kept.
        keep: number of checkpoints that are kept, and averaged.
        averages: whether models are averaged.

    Attributes:
        best: the best models by the names of their directories.
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
        """Write the checkpoint of this step, if it is not written yet; return its path."""
        return os.fspath(self.directory / f"{NAME}-{step}")

    def average(self, step: int) -> str | None:
        """Write the mean of the newest checkpoints; return its path, or None if too few or if another rank writes."""
        return None

    def translations(self, name: str, lines: Sequence[str]) -> None:
        """Write the translations of a text to `output_<name>`."""


class Store(Storing):
    """Store that writes to `out_dir`.

    Args:
        out_dir: output directory; made if missing.
        metrics: names of the metrics whose best models are kept.
        keep: number of checkpoints that are kept, and averaged.
        averages: whether models are averaged.
        hparams: contents of the file `hparams` in the directories of the best models and of the mean of checkpoints.
        saver: a `tf.compat.v1.train.Saver` of the training graph.

    Raises:
        InputError: a directory cannot be made, or a file `best.json` is damaged. All methods raise it if the disk is
            full.
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
        """Write the checkpoint of this step, if it is not written yet; return its path."""
        if self._saved is None or checkpoint.step_of(self._saved) != step:
            self._saved = self._checkpoints.save(session, self._saver, step)
        return self._saved

    def average(self, step: int) -> str | None:
        """Write the mean to `avg_checkpoints`, replacing the last one; None if there are too few checkpoints."""
        trained = [name for name in checkpoint.listed(self.directory) if checkpoint.step_of(name)]  # without step 0
        if len(trained) < self.keep:
            return None
        means = mean_values([os.fspath(self.directory / name) for name in trained[-self.keep :]])
        checkpoints = Checkpoints(self.directory / _AVERAGES, keep=1, hparams=self._hparams)
        return checkpoints.write(step, lambda target: write_values(target, means))

    def translations(self, name: str, lines: Sequence[str]) -> None:
        """Write the translations of a text to `output_<name>`, one per line; the file is replaced atomically."""
        with replace_atomically(self.directory / f"output_{name}") as file:
            file.writelines(line + "\n" for line in lines)


_RECORD = "best.json"


class BestScore:
    """The best score on the development text so far, and the step of its model, for ranks that do not write.

    Args:
        directory: directory of the model; need not exist.
        metric: name of the metric.

    Attributes:
        score: the best score; 0 if there is none.
        step: step of the model; 0 if there is none.

    Raises:
        InputError: the file `best.json` is damaged.
    """

    def __init__(self, directory: Path, metric: str) -> None:
        self.directory, self._metric = directory, metric
        self._record = directory / _RECORD
        self.score, self.step = 0.0, 0
        try:
            record = json.loads(self._record.read_text(encoding="utf-8"))
            self.score, self.step = float(record[metric]), checkpoint.step_of(str(record["checkpoint"]))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._record} is damaged ({error}): delete it, and the search for the best model starts again"
            ) from None

    @property
    def checkpoint(self) -> str | None:
        """None; only the rank that writes has the path."""
        return None

    def offer(self, path: str, score: float) -> None:
        """Keep the checkpoint at this path if its score is strictly better."""
        if score > self.score:
            self.score, self.step = score, checkpoint.step_of(path)
            self.keep(path)

    def keep(self, path: str) -> None:
        """Do nothing: another rank writes."""


class BestModel(BestScore):
    """The best score and its model on the rank that writes.

    Args:
        directory: directory of the model; made if missing.
        metric: name of the metric.
        hparams: contents of the file `hparams`.
    """

    def __init__(self, directory: Path, metric: str, hparams: str) -> None:
        super().__init__(make_directory(directory), metric)
        self._hparams = hparams

    @property
    def checkpoint(self) -> str | None:
        """Path of the model's checkpoint; None if there is none."""
        return checkpoint.latest(self.directory)

    def keep(self, path: str) -> None:
        """Replace the model by a copy of this checkpoint; the score is recorded last."""
        copy = Checkpoints(self.directory, keep=1, hparams=self._hparams).adopt(path)
        with replace_atomically(self._record) as file:
            json.dump({self._metric: self.score, "checkpoint": os.path.basename(copy)}, file, indent=4, sort_keys=True)
            file.write("\n")
