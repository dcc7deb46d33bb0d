"""Files of options, in JSON: the `hparams` of a run, and the files of --hparams_path."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nmt.core.errors import InputError
from nmt.options.config import FIELDS, TYPES

HPARAMS = "hparams"  # file in the directory of a run's checkpoints


def read_saved(path: str) -> dict[str, Any]:
    """Return the contents of an `hparams` file, which may have keys that are no options.

    Raises:
        InputError: the file cannot be read, is not a JSON object, or an option in it has a value of a wrong type.
    """
    remedy = "restore the file, or choose another out_dir"
    try:
        return _read_json(Path(path).read_text("utf-8"), path, remedy)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None


def read_file(path: str) -> dict[str, Any]:
    """Return the options in a file for --hparams_path, such as those in `nmt/standard_hparams`.

    Raises:
        InputError: the file cannot be read or is not a JSON object, or it has an unknown option or a value of a wrong
            type.
    """
    remedy = "correct the file, or choose another --hparams_path"
    packaged = Path(__file__).parents[2] / path  # nmt/standard_hparams/..., from any working directory
    try:
        with open(path if os.path.exists(path) or not packaged.exists() else packaged, encoding="utf-8") as file:
            values = _read_json(file.read(), path, remedy)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--hparams_path={path} cannot be read ({error}): {remedy}") from None
    unknown = [name for name in values if name not in FIELDS or not FIELDS[name].metadata["saved"]]
    if unknown:
        raise InputError(f"{path}: {unknown[0]} is not an option that a file may have: {remedy}")
    return values


def _read_json(text: str, path: str, remedy: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): {remedy}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} is damaged (not a JSON object): {remedy}")
    if isinstance(values.get("metrics"), list):  # the TensorFlow NMT tutorial writes a list
        values["metrics"] = ",".join(map(str, values["metrics"]))
    for name, value in values.items():
        if name in FIELDS and not _is_of_type(name, value):
            raise InputError(f"{path}: {name} is {value!r}, which is not of type {TYPES[name].__name__}: {remedy}")
    return values


def _is_of_type(name: str, value: Any) -> bool:
    """Return True if a value from JSON fits an option: null fits if the default is unset, an int fits a float."""
    wanted = TYPES[name]
    if value is None:
        return FIELDS[name].default is None
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float)) if wanted is float else isinstance(value, wanted)
