"""From the command line and a saved configuration to a checked one.

An option's value comes, first match wins, from the command line, from the `hparams` file of the run that is
continued or translated with, and from the default. Options that shape the weights, or say what they mean,
cannot change in between (`fixed`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from nmt.config import FIELDS, TYPES, Config
from nmt.errors import InputError

# Flags of the original program that this one does not have; to ignore one would train something else than was
# asked for.
NOT_SUPPORTED = frozenset(
    ["avg_ckpts", "check_special_token", "colocate_gradients_with_ops", "coverage_penalty_weight",
     "embed_prefix", "hparams_path", "inference_list", "inference_ref_file", "jobid", "language_model",
     "log_device_placement", "max_train", "num_embeddings_partitions", "num_gpus", "num_inter_threads",
     "num_intra_threads", "num_sampled_softmax", "num_translations_per_input", "num_workers",
     "override_loaded_hparams", "sampling_temperature", "scope", "share_vocab", "time_major",
     "use_char_encode"]
)  # fmt: skip


_DEFINE: dict[type, Any] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    bool: flags.DEFINE_boolean,
}


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """The options given on the command line, `--name=value` each, by name.

    Raises:
        InputError: an unknown flag (with the nearest name), one that is not supported, a value of a wrong
            type, or a stray word.
    """
    values = flags.FlagValues()
    for name, field in FIELDS.items():
        _DEFINE[TYPES[name]](name, field.default, field.metadata["help"], flag_values=values)
    try:
        words = values(["nmt", *arguments])[1:]
    except flags.UnrecognizedFlagError as error:
        name = error.flagname.removeprefix("no")
        if not {name, error.flagname} & NOT_SUPPORTED:
            raise InputError(f"{error}; --help lists the flags") from None
        raise InputError(f"--{error.flagname} is not supported yet: leave it out") from None
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
    remedy = "restore the file, or choose another out_dir"
    try:
        saved = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): {remedy}") from None
    if not isinstance(saved, dict):
        raise InputError(f"{path} is damaged (not a JSON object): {remedy}")
    for name, value in saved.items():
        if name in FIELDS and not _is_of_type(name, value):
            raise InputError(f"{path}: {name} is {value!r}, which is not of type {TYPES[name].__name__}: {remedy}")
    return saved


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
    for name, value in given.items():
        if FIELDS[name].metadata["fixed"] and name in kept and value != kept[name]:
            raise InputError(
                f"--{name}={value} contradicts {saved_path}, where it is {kept[name]!r}: "
                "leave the flag out or choose another out_dir"
            )
    config = Config(**(kept | given))
    config = dataclasses.replace(
        config,
        num_encoder_layers=config.num_encoder_layers or config.num_layers,
        num_decoder_layers=config.num_decoder_layers or config.num_layers,
        sos=config.sos or "<s>",
        eos=config.eos or "</s>",
        random_seed=secrets.randbelow(2**31) if config.random_seed is None else config.random_seed,
    )
    _check_each(config)
    if config.num_encoder_layers != config.num_decoder_layers:
        if given.get("pass_hidden_state"):
            raise InputError(
                "--pass_hidden_state needs --num_encoder_layers equal to --num_decoder_layers: leave it out"
            )
        config = dataclasses.replace(config, pass_hidden_state=False)
    _check_together(config)
    if given.get("warmup_scheme") == "t2t" and config.learning_rate_scaling != "none":
        raise InputError(
            f"--warmup_scheme=t2t contradicts --learning_rate_scaling={config.learning_rate_scaling}, whose warm-up "
            "is linear: leave one of them out"
        )
    return config


def _same_file(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and os.path.realpath(first) == os.path.realpath(second)


def _is_of_type(name: str, value: Any) -> bool:
    """Whether a value from JSON fits an option: null if the default is unset, an int for a float, too."""
    wanted = TYPES[name]
    if value is None:
        return FIELDS[name].default is None
    if isinstance(value, bool) or wanted is bool:
        return isinstance(value, bool) and wanted is bool
    return isinstance(value, (int, float)) if wanted is float else isinstance(value, wanted)


def _check_each(config: Config) -> None:
    for name, field in FIELDS.items():
        value, allowed, within = getattr(config, name), field.metadata["allowed"], field.metadata["within"]
        if value is None:
            continue
        if allowed and value not in allowed:
            raise InputError(
                f"--{name}={value} is not allowed: choose one of {', '.join(repr(one) for one in allowed)}"
            )
        if within and not within.holds(value):
            raise InputError(f"--{name}={value} is not allowed: it must be {within.text}")


def _check_together(config: Config) -> None:
    needed = ["src", "tgt", "vocab_prefix"]
    needed += ["inference_output_file"] if config.is_inference else ["train_prefix", "dev_prefix", "out_dir"]
    missing = [f"--{name}" for name in needed if not getattr(config, name)]
    if missing:
        raise InputError(f"{', '.join(missing)} must be given")
    if config.is_inference and not (config.ckpt or config.out_dir):
        raise InputError("--inference_input_file needs --ckpt or --out_dir, where the checkpoint is")
    if config.is_inference and _same_file(config.inference_input_file, config.inference_output_file):
        raise InputError(
            f"--inference_output_file={config.inference_output_file} is the input file, which would be lost: "
            "choose another"
        )
    if config.inference_output_file and not config.is_inference:
        raise InputError("--inference_output_file needs --inference_input_file, the text to translate")
    if config.src == config.tgt:
        raise InputError(f"--src={config.src} and --tgt={config.tgt} name the same files: give two suffixes")
    if config.encoder_type == "bi" and (config.num_encoder_layers or 0) % 2:
        raise InputError(f"--encoder_type=bi needs an even --num_encoder_layers, not {config.num_encoder_layers}")
    if not (config.attention or config.pass_hidden_state):
        raise InputError(
            "without --pass_hidden_state (or with unequal --num_encoder_layers and --num_decoder_layers) the "
            "decoder sees the source through --attention only: give one"
        )
    if config.infer_mode == "beam_search" and not config.beam_width:
        raise InputError("--infer_mode=beam_search needs --beam_width more than 0")
    if config.init_op == "uniform" and config.init_weight <= 0:
        raise InputError(f"--init_op=uniform needs --init_weight more than 0, not {config.init_weight}")
    if config.ckpt and not config.is_inference:
        raise InputError("--ckpt is for inference: give --inference_input_file, or continue a run by its --out_dir")
