"""The configuration of a run, from its command line, the files of options, and the record of its text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.checkpoints.checkpoint import check_model
from nmt.checkpoints.run_directory import is_part_of_run
from nmt.core.errors import InputError
from nmt.options.config import FIELDS, Config
from nmt.options.flags import parse
from nmt.options.hparams_file import read_file, read_saved
from nmt.options.inference_options import NO_HPARAMS
from nmt.options.resolve import resolve, saved_path
from nmt.text.preparation import PREPARATION, RECORD, VOCABULARY
from nmt.text.preparation import recorded as preparation_of


def configure(arguments: Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """Return the configuration of a command line of `nmt.nmt`; see `configured`."""
    return configured(parse(Config, arguments))


def configured(explicit: Mapping[str, Any], of_model: bool = False) -> tuple[Config, dict[str, Any]]:
    """Return the configuration, and the contents of the run's `hparams` file (see `saved_path`).

    Options of the file --hparams_path override given ones. A line is printed for each option that they change.

    Args:
        explicit: the given options, by name.
        of_model: True for a program that uses a model, and trains none and translates no file.

    Raises:
        InputError: a mistake in the options, in `hparams` or in the file --hparams_path.
    """
    path = saved_path(explicit.get("ckpt", ""), explicit.get("out_dir", ""))
    saved = read_saved(path) if os.path.isfile(path) else {}
    first = read_file(explicit["hparams_path"]) if explicit.get("hparams_path") else {}
    for name in sorted(explicit.keys() & first.keys()):
        if explicit[name] != first[name]:
            print(f"# --{name}={explicit[name]} is overridden by {explicit['hparams_path']}: {first[name]}", flush=True)
    if explicit.get("override_loaded_hparams"):
        saved = {name: value for name, value in saved.items() if name not in FIELDS}
    try:
        given = {**explicit, **first}
        if of_model or given.get("inference_input_file"):
            given = _copied(os.path.dirname(path)) | given
        return resolve(given, saved, path, recorded({**saved, **given}), of_model), saved
    except InputError as error:
        if NO_HPARAMS in str(error):  # the checkpoint may be missing, too: then that is the error to report
            check_model(explicit.get("ckpt") or "", explicit.get("out_dir") or "")
        if explicit.get("override_loaded_hparams"):
            told = f"{error} (--override_loaded_hparams ignores the options in {path}: leave it out to use them)"
            raise InputError(told) from None
        raise


def _copied(directory: str) -> dict[str, str]:
    """Return the prefix of the vocabularies that a run has copied; its own prefix may be relative to another place."""
    copied = recorded_directory(directory)
    return {} if copied is None else {"vocab_prefix": os.fspath(copied / VOCABULARY)}


def recorded_directory(directory: str) -> Path | None:
    """Return the directory with the record of how the text of a run was prepared; None if there is none.

    A directory of a best model has the record of its run, which is the directory above it.
    """
    places = [Path(directory), *([Path(directory).resolve().parent] if is_part_of_run(directory) else [])]
    paths = (place / PREPARATION for place in places)
    return next((path for path in paths if (path / RECORD).is_file()), None)


def recorded(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the record of a prepared text decides: languages and subwords; {} without a record.

    Args:
        given: options by name, among them vocab_prefix.

    Raises:
        InputError: the record cannot be used.
    """
    preparation = preparation_of(given.get("vocab_prefix"))
    if preparation is None:
        return {}
    recipe = preparation.recipe
    languages = {} if given.get("src") or given.get("tgt") else {"src": recipe.src, "tgt": recipe.tgt}
    return languages | {"subword_option": recipe.subwords} | ({"share_vocab": True} if recipe.share_vocab else {})
