"""Resolution of options: the checked configuration from the command line, files of options and a preset.

An option's value comes from the first of these that has one: the file --hparams_path, the command line, the run's
`hparams` file. After them come the record of the prepared text, the preset, and the default. The run is the one that is
continued, or whose model translates. Options that determine the weights' shape or meaning cannot change (`fixed`).
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping
from typing import Any

from nmt.core.errors import InputError
from nmt.options.config import FIELDS, Config
from nmt.options.hparams_file import HPARAMS
from nmt.options.option import check_each
from nmt.options.presets import blamed, preset, suited


def saved_path(ckpt: str, out_dir: str) -> str:
    """Return the path of a run's `hparams` file: next to the first checkpoint if it is there, else in out_dir."""
    directories = [os.path.dirname(ckpt.split(",")[0]) or "."] if ckpt else []
    directories += [out_dir] if out_dir else []
    paths = [os.path.join(directory, HPARAMS) for directory in directories]
    return next(filter(os.path.isfile, paths), paths[-1] if paths else HPARAMS)


def resolve(
    explicit: Mapping[str, Any],
    saved: Mapping[str, Any] | None = None,
    saved_path: str = "hparams",
    recorded: Mapping[str, Any] | None = None,
    of_model: bool = False,
) -> Config:
    """Return the checked, complete configuration.

    The first of these with a value for an option counts: `explicit` options, `saved` ones, `recorded` ones of the
    prepared text, a preset, the default.

    With `of_model` the options are those of a program that uses a model, and trains none and translates no file.

    Unset depths become num_layers, an unset seed is drawn at random, and unequal depths switch pass_hidden_state off.

    Raises:
        InputError: an option has a value that is not allowed, contradicts another option, or would change the
            weights' shape or meaning against `saved`.
    """
    given = dict(explicit)
    for side in ("num_encoder_layers", "num_decoder_layers"):
        given[side] = given.get(side) or given.get("num_layers")
        if given[side] is None:
            del given[side]
    kept = {name: value for name, value in (saved or {}).items() if name in FIELDS and FIELDS[name].metadata["saved"]}
    name = given.get("preset", kept.get("preset", ""))
    fresh = suited(preset(name), kept | given)
    config = Config(**(fresh | dict(recorded or {}) | kept | given))
    config = dataclasses.replace(
        config,
        num_encoder_layers=config.num_encoder_layers or config.num_layers,
        num_decoder_layers=config.num_decoder_layers or config.num_layers,
        sos=config.sos or "<s>",
        eos=config.eos or "</s>",
        random_seed=secrets.randbelow(2**31) if config.random_seed is None else config.random_seed,
    )
    check_each(config)
    # Options of the preset that have no effect with the given options return to their defaults.
    idle: dict[str, Any] = {option: FIELDS[option].default for option in fresh if any(config.missing(option))}
    config = dataclasses.replace(config, **idle)
    if config.language_model:
        config = _without_source(config)
    if config.num_encoder_layers != config.num_decoder_layers:
        if given.get("pass_hidden_state"):
            raise InputError(
                "--pass_hidden_state needs --num_encoder_layers equal to --num_decoder_layers: leave it out"
            )
        config = dataclasses.replace(config, pass_hidden_state=False)
    for option, value in kept.items():  # `hparams` has the resolved values, so compare with the resolved ones
        if FIELDS[option].metadata["fixed"] and getattr(config, option) != value:
            raise InputError(
                f"--{option}={getattr(config, option)} contradicts {saved_path}, where it is {value!r}: "
                "leave the flag out or choose another out_dir"
            )
    try:
        config.check_together(of_model)
        config.check_given(given)
        if not (of_model or config.inference_input_file):
            config.check_training(kept)
    except InputError as error:
        raise InputError(blamed(str(error), name, fresh, given)) from None
    return config


def _without_source(config: Config) -> Config:
    """Return the configuration with the options of a source set to what a language model needs."""
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
