"""What the options of one run may not say, alone and together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from nmt.core.errors import InputError
from nmt.options.config import FIELDS, Config
from nmt.scoring.metrics import METRICS


def check_each(config: Config) -> None:
    """Check each option's value by itself.

    Raises:
        InputError: a value is not allowed.
    """
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
    unknown = [name for name in config.metric_names if name not in METRICS]
    if unknown or not config.metric_names:
        raise InputError(f"--metrics={config.metrics} is not allowed: name some of {', '.join(METRICS)}")


def check_given(given: Mapping[str, Any], config: Config) -> None:
    """Check that what was asked for, and is not the default, has an effect.

    Args:
        given: on the command line or by a file of options.
        config: what came of it.

    Raises:
        InputError: naming the options and the remedy.
    """
    beam = config.search_mode == "beam_search", "beam search: give --beam_width, too, or --infer_mode=beam_search"
    sampled = config.search_mode == "sample", "--infer_mode=sample"
    has_bias = config.unit_type in ("lstm", "layer_norm_lstm"), "--unit_type=lstm or layer_norm_lstm"
    standard = config.attention_architecture == "standard", "--attention_architecture=standard"
    for name, (holds, needs) in {
        "length_penalty_weight": beam,
        "coverage_penalty_weight": beam,
        "sampling_temperature": sampled,
        "forget_bias": has_bias,
        "init_weight": (config.init_op == "uniform", "--init_op=uniform"),
        "output_attention": standard,
    }.items():
        if name in given and given[name] != FIELDS[name].default and not holds:
            raise InputError(f"--{name}={given[name]} would have no effect: it needs {needs}")


def check_together(config: Config) -> None:
    """Check that options do not contradict each other, and that what is needed is there.

    Raises:
        InputError: naming the options and the remedy.
    """
    _check_files(config)
    _check_model(config)
    _check_search(config)


def _check_files(config: Config) -> None:
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
    if config.src == config.tgt and not config.language_model:
        raise InputError(f"--src={config.src} and --tgt={config.tgt} name the same files: give two suffixes")
    if config.ckpt and not config.is_inference:
        raise InputError("--ckpt is for inference: give --inference_input_file, or continue a run by its --out_dir")
    for name in ("inference_list", "inference_ref_file"):
        if getattr(config, name) and not config.is_inference:
            raise InputError(f"--{name} needs --inference_input_file, the text to translate")


def _check_model(config: Config) -> None:
    encoder = config.num_encoder_layers or 0
    if config.encoder_type == "bi" and encoder % 2:
        raise InputError(f"--encoder_type=bi needs an even --num_encoder_layers, not {encoder}")
    if config.encoder_type == "gnmt" and encoder < 2:
        raise InputError(f"--encoder_type=gnmt needs 2 or more --num_encoder_layers, not {encoder}")
    if config.attention_architecture != "standard" and not config.attention:
        raise InputError(f"--attention_architecture={config.attention_architecture} needs --attention: give one")
    if config.attention_architecture == "gnmt" and encoder < 2:
        raise InputError(f"--attention_architecture=gnmt needs 2 or more --num_encoder_layers, not {encoder}")
    if not (config.attention or config.pass_hidden_state or config.language_model):
        raise InputError(
            "without --pass_hidden_state (or with unequal --num_encoder_layers and --num_decoder_layers) the "
            "decoder sees the source through --attention only: give one"
        )
    if config.init_op == "uniform" and config.init_weight <= 0:
        raise InputError(f"--init_op=uniform needs --init_weight more than 0, not {config.init_weight}")
    if config.embed_prefix and config.num_embeddings_partitions > 1:
        raise InputError("--embed_prefix needs --num_embeddings_partitions of 0 or 1: leave one of them out")
    if config.use_char_encode and (config.share_vocab or config.embed_prefix):
        raise InputError("--use_char_encode has no source vocabulary: leave --share_vocab and --embed_prefix out")


def _check_search(config: Config) -> None:
    mode = config.search_mode
    if mode == "beam_search" and not config.beam_width:
        raise InputError("--infer_mode=beam_search needs --beam_width more than 0")
    if mode == "sample" and not config.sampling_temperature:
        raise InputError("--infer_mode=sample needs --sampling_temperature more than 0")
    if mode == "greedy" and config.num_translations_per_input > 1:
        raise InputError("--num_translations_per_input needs --infer_mode=beam_search or sample: greedy has one")
    if config.coverage_penalty_weight and not config.attention:
        raise InputError("--coverage_penalty_weight needs --attention, whose weights it adds up")
    if config.num_workers != 1:
        raise InputError(
            f"--num_workers={config.num_workers}: start the program as mpirun -n {config.num_workers} instead; the "
            "ranks share the text, and no --jobid is needed"
        )


def _same_file(first: str | None, second: str | None) -> bool:
    return first is not None and second is not None and os.path.realpath(first) == os.path.realpath(second)
