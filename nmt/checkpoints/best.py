"""Best checkpoints: the models of the best scores, each in a directory of its own with its `hparams`."""

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
    """The best score on the development text so far, and the step of its model.

    Args:
        directory: of the model; need not exist.
        metric: what is scored.

    Attributes:
        score: 0 as long as there is none.
        step: of the model; 0 likewise.

    Raises:
        InputError: the record `best.json` is damaged.
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
                f"{self._record} is damaged ({error}): delete it, and the best model is found anew"
            ) from None

    @property
    def checkpoint(self) -> str | None:
        """None: who writes it knows."""
        return None

    def offer(self, path: str, score: float) -> None:
        """Keep the model at this path if it is strictly better."""
        if score > self.score:
            self.score, self.step = score, checkpoint.step_of(path)
            self.keep(path)

    def keep(self, path: str) -> None:
        """Nothing: another rank writes."""


class BestModel(BestScore):
    """The same on the rank that writes.

    Args:
        directory: made if missing.
        metric: what is scored.
        hparams: the text of the file `hparams`.
    """

    def __init__(self, directory: Path, metric: str, hparams: str) -> None:
        super().__init__(make_directory(directory), metric)
        self._hparams = hparams

    @property
    def checkpoint(self) -> str | None:
        """The model's path; None as long as there is none."""
        return checkpoint.latest(self.directory)

    def keep(self, path: str) -> None:
        """Copies the checkpoint here in place of the one before, and records its score last."""
        copy = Checkpoints(self.directory, keep=1, hparams=self._hparams).adopt(path)
        with replace_atomically(self._record) as file:
            json.dump({self._metric: self.score, "checkpoint": os.path.basename(copy)}, file, indent=4, sort_keys=True)
            file.write("\n")
