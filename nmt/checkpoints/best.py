"""Best checkpoints: the models with the best scores, each in a separate directory with its `hparams` file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nmt.checkpoints import checkpoint
from nmt.checkpoints.checkpoint import Checkpoints
from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically

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
