"""From the command line and a saved configuration to a checked one.

An option's value comes, first match wins, from the file --hparams_path, from the command line, from the `hparams` file
of the run that is continued or translated with, from the preset, and from the default. Options that shape the weights,
or say what they mean, cannot change in between (`fixed`).
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from nmt.checkpoints.checkpoint import check_model
from nmt.core.errors import InputError
from nmt.options.config import FIELDS, Config
from nmt.options.flags import parse
from nmt.options.hparams_file import HPARAMS, read_file, read_saved
from nmt.options.inference_options import NO_HPARAMS
from nmt.options.option import check_each
from nmt.options.presets import blamed, preset, suited


def configure(arguments: Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """The configuration, and the contents of the `hparams` file (beside the first --ckpt, or in out_dir) behind it.

    A file --hparams_path comes before the flags, and says so where they differ.

    Raises:
        InputError: for any mistake in the flags or in that file.
    """
    explicit = parse(Config, arguments)
    path = saved_path(explicit.get("ckpt", ""), explicit.get("out_dir", ""))
    saved = read_saved(path) if os.path.isfile(path) else {}
    first = read_file(explicit["hparams_path"]) if explicit.get("hparams_path") else {}
    for name in sorted(explicit.keys() & first.keys()):
        if explicit[name] != first[name]:
            print(f"# --{name}={explicit[name]} is overridden by {explicit['hparams_path']}: {first[name]}", flush=True)
    if explicit.get("override_loaded_hparams"):
        saved = {name: value for name, value in saved.items() if name not in FIELDS}
    try:
        return resolve({**explicit, **first}, saved, path), saved
    except InputError as error:
        if NO_HPARAMS in str(error):  # the checkpoint may be that which is missing
            check_model(explicit.get("ckpt") or "", explicit.get("out_dir") or "")
        if explicit.get("override_loaded_hparams"):
            told = f"{error} (--override_loaded_hparams leaves out what {path} says: without it, that counts)"
            raise InputError(told) from None
        raise


def saved_path(ckpt: str, out_dir: str) -> str:
    """Where the `hparams` file of a run is, if it is there: beside its first checkpoint, or in its out_dir."""
    directories = [os.path.dirname(ckpt.split(",")[0]) or "."] if ckpt else []
    directories += [out_dir] if out_dir else []
    paths = [os.path.join(directory, HPARAMS) for directory in directories]
    return next(filter(os.path.isfile, paths), paths[-1] if paths else HPARAMS)


def resolve(explicit: Mapping[str, Any], saved: Mapping[str, Any] | None = None, saved_path: str = "hparams") -> Config:
    """The configuration of a run: `explicit` flags over `saved` ones over a preset over defaults; checked, complete.

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
    name = given.get("preset", kept.get("preset", ""))
    fresh = suited(preset(name), kept | given)
    config = Config(**(fresh | kept | given))
    config = dataclasses.replace(
        config,
        num_encoder_layers=config.num_encoder_layers or config.num_layers,
        num_decoder_layers=config.num_decoder_layers or config.num_layers,
        sos=config.sos or "<s>",
        eos=config.eos or "</s>",
        random_seed=secrets.randbelow(2**31) if config.random_seed is None else config.random_seed,
    )
    check_each(config)
    # What a preset says gives way.
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
    for option, value in kept.items():  # with what the flags come to, as the run before has kept it
        if FIELDS[option].metadata["fixed"] and getattr(config, option) != value:
            raise InputError(
                f"--{option}={getattr(config, option)} contradicts {saved_path}, where it is {value!r}: "
                "leave the flag out or choose another out_dir"
            )
    try:
        config.check_together()
        config.check_given(given)
        if not config.inference_input_file:
            config.check_training(kept)
    except InputError as error:
        raise InputError(blamed(str(error), name, fresh, given)) from None
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
