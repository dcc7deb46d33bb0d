"""A trained model that a program uses: found by the directory of its run, with what was done to its text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nmt.checkpoints import checkpoint
from nmt.checkpoints.run_directory import is_part_of_run
from nmt.core.errors import InputError
from nmt.options.config import Config
from nmt.options.hparams_file import HPARAMS
from nmt.runs.configure import configured
from nmt.text.preparation import PREPARATION, Preparation, recorded


def find(model: str, options: Mapping[str, Any], flag: str = "model") -> tuple[Config, dict[str, Any]]:
    """Return the options of a model's run, and the contents of its `hparams` file.

    Args:
        model: directory of a run, directory of a best model, or checkpoint; several, separated by commas, form an
            ensemble.
        options: options that replace those of the run; None keeps an option of the run.
        flag: name of the flag that names the model, for messages.

    Raises:
        InputError: there is no such model, or an option does not fit it.
    """
    paths = [_checkpoint(one.strip(), flag) for one in model.split(",")]
    directory = os.path.dirname(paths[0])
    if not os.path.isfile(os.path.join(directory, HPARAMS)):
        raise InputError(f"{directory} has no file {HPARAMS}, which a training writes: copy the whole directory")
    given = {name: value for name, value in options.items() if value is not None}
    return configured(given | {"ckpt": ",".join(paths)}, of_model=True)


def preparation_of(config: Config) -> Preparation:
    """Return how the text of a model's run was prepared.

    Raises:
        InputError: there is no record, or it cannot be used.
    """
    preparation = recorded(config.vocab_prefix)
    if preparation is None:
        directory = os.path.dirname(config.ckpt)
        copy = f"Copy the directory {PREPARATION} of its run into it, too. " if is_part_of_run(directory) else ""
        raise InputError(
            f"{directory} has no record of how its text was prepared, so raw text cannot be read. {copy}"
            "Give --format=tokens if the text is prepared already, or train with text of this version's nmt.prepare"
        )
    return preparation


def _checkpoint(model: str, flag: str) -> str:
    """Return the path of a model's checkpoint.

    Raises:
        InputError: there is none.
    """
    if os.path.isdir(model):
        path = checkpoint.latest(model)
        if path is None:
            raise InputError(f"--{flag}={model} has no checkpoint: give the out_dir of a training")
        return path
    if not os.path.dirname(model) and not os.path.exists(f"{model}.index"):
        raise InputError(f"--{flag}={model} does not exist: give the out_dir of a training, or a checkpoint")
    checkpoint.check_exists(model)
    return model
