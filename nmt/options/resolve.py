"""From the command line and a saved configuration to a checked one.

An option's value comes, first match wins, from the file --hparams_path, from the command line, from the `hparams` file
of the run that is continued or translated with, and from the default. Options that shape the weights, or say what they
mean, cannot change in between (`fixed`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from nmt.core.errors import InputError
from nmt.options.checks import check_each, check_given, check_together
from nmt.options.config import FIELDS, TYPES, Config

_DEFINE: dict[type, Any] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    bool: flags.DEFINE_boolean,
}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """The options given on the command line, `--name=value` each, by name.

    Raises:
        InputError: an unknown flag (with the nearest name), a value of a wrong type, or a stray word.
    """
    values = flags.FlagValues()
    for name, field in FIELDS.items():
        _DEFINE[TYPES[name]](name, field.default, field.metadata["help"], flag_values=values)
    try:
        words = values(["nmt", *arguments])[1:]
    except flags.Error as error:
        raise InputError(f"{error}; --help lists the flags") from None
    if words:
        raise InputError(f"unexpected argument {words[0]!r}: options are written --name=value")
    return {name: values[name].value for name in FIELDS if values[name].present}


def help_text() -> str:
    """All flags with their defaults and allowed values, by group."""
    lines = ["python -m nmt.nmt --name=value ...", ""]
    group = ""
    for field in FIELDS.values():
        details = field.metadata
        if details["group"] != group:
            group = details["group"]
            lines += ["", f"{group}:"]
        allowed = f" ({', '.join(repr(value) for value in details['allowed'])})" if details["allowed"] else ""
        default = "unset" if field.default is None else repr(field.default)
        lines.append(f"  --{field.name}: {details['help']}{allowed} [{TYPES[field.name].__name__}, {default}]")
    return "\n".join(lines) + "\n"


def read_saved(text: str, path: str) -> dict[str, Any]:
    """The contents of an `hparams` file (more keys than options may be there).

    Raises:
        InputError: the text is not a JSON object, or an option in it has a value of a wrong type.
    """
    return _read_json(text, path, "restore the file, or choose another out_dir")


def read_file(path: str) -> dict[str, Any]:
    """The options in a file for --hparams_path, such as those in `nmt/standard_hparams`.

    Raises:
        InputError: the file cannot be read, is not a JSON object, or has a key that is no option, or a value of a
            wrong type.
    """
    remedy = "correct the file, or choose another --hparams_path"
    packaged = Path(__file__).parents[2] / path  # nmt/standard_hparams/..., wherever the program is started
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
    if isinstance(values.get("metrics"), list):  # as the original writes it
        values["metrics"] = ",".join(map(str, values["metrics"]))
    for name, value in values.items():
        if name in FIELDS and not _is_of_type(name, value):
            raise InputError(f"{path}: {name} is {value!r}, which is not of type {TYPES[name].__name__}: {remedy}")
    return values


def resolve(explicit: Mapping[str, Any], saved: Mapping[str, Any] | None = None, saved_path: str = "hparams") -> Config:
    """The configuration of a run: `explicit` flags over `saved` ones over defaults; checked, and complete.

    Depths are filled in from num_layers, an unset seed is drawn, and unequal depths switch pass_hidden_state
    off.

    Raises:
        InputError: an option has a value that is not allowed, contradicts another, or would change the
            weights' shape or meaning against `saved`.
    """
    given = dict(explicit)
    for side in ("num_encoder_layers", "num_decoder_layers"):
        given[side] = given.get(side) or given.get("num_layers")
        if given[side] is None:
            del given[side]
    kept = {name: value for name, value in (saved or {}).items() if name in FIELDS and FIELDS[name].metadata["saved"]}
    config = Config(**(kept | given))
    config = dataclasses.replace(
        config,
        num_encoder_layers=config.num_encoder_layers or config.num_layers,
        num_decoder_layers=config.num_decoder_layers or config.num_layers,
        sos=config.sos or "<s>",
        eos=config.eos or "</s>",
        random_seed=secrets.randbelow(2**31) if config.random_seed is None else config.random_seed,
    )
    check_each(config)
    if config.language_model:
        config = _without_source(config)
    if config.num_encoder_layers != config.num_decoder_layers:
        if given.get("pass_hidden_state"):
            raise InputError(
                "--pass_hidden_state needs --num_encoder_layers equal to --num_decoder_layers: leave it out"
            )
        config = dataclasses.replace(config, pass_hidden_state=False)
    for name, value in kept.items():  # with what the flags come to, as the run before has kept it
        if FIELDS[name].metadata["fixed"] and getattr(config, name) != value:
            raise InputError(
                f"--{name}={getattr(config, name)} contradicts {saved_path}, where it is {value!r}: "
                "leave the flag out or choose another out_dir"
            )
    check_together(config)
    check_given(given, config)
    if given.get("warmup_scheme") == "t2t" and config.learning_rate_scaling != "none":
        raise InputError(
            f"--warmup_scheme=t2t contradicts --learning_rate_scaling={config.learning_rate_scaling}, whose warm-up "
            "is linear: leave one of them out"
        )
    return config


def _without_source(config: Config) -> Config:
    """What a language model makes of options that speak of a source."""
    return dataclasses.replace(
        config,
        src=config.tgt,
        share_vocab=True,
        attention="",
        attention_architecture="standard",
        encoder_type="uni",
        pass_hidden_state=False,
        num_encoder_layers=config.num_decoder_layers,
    )


def _is_of_type(name: str, value: Any) -> bool:
    """Whether a value from JSON fits an option: null if the default is unset, an int for a float, too."""
    wanted = TYPES[name]
    if value is None:
        return FIELDS[name].default is None
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float)) if wanted is float else isinstance(value, wanted)
