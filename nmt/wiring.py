"""A configuration as arguments: which option means what to the model, the training and the search."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from nmt.config import Config
from nmt.errors import InputError
from nmt.model.architecture import Architecture
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.vocabulary import Vocabulary, read_vocabulary
from nmt.train.feed import Feed, FeedSettings
from nmt.train.schedule import Schedule
from nmt.train.step import Optimization
from nmt.translate.decode import SearchSettings


def read_vocabularies(config: Config, saved: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    """Both vocabularies, checked to be those of the run that is continued or translated with.

    Raises:
        InputError: a file cannot be used, or has changed since that run began.
    """
    src, tgt = (
        read_vocabulary(f"{config.vocab_prefix}.{suffix}", config.sos, config.eos)
        for suffix in (config.src, config.tgt)
    )
    for name, value in vocabulary_record((src, tgt)).items():
        if name in saved and saved[name] != value:
            path = src.path if name.startswith("src") else tgt.path
            raise InputError(
                f"{path} is not the vocabulary that the model was trained with ({name} was {saved[name]}, is "
                f"{value}): restore it, or choose another out_dir"
            )
    return src, tgt


def vocabulary_record(vocabularies: tuple[Vocabulary, Vocabulary]) -> dict[str, Any]:
    """What `hparams` keeps of the vocabularies: sizes, and checksums of the words in order."""
    record: dict[str, Any] = {}
    for side, vocabulary in zip(("src", "tgt"), vocabularies, strict=True):
        record[f"{side}_vocab_size"] = vocabulary.size
        record[f"{side}_vocab_sha256"] = _digest(vocabulary)
    return record


def checksum(vocabularies: tuple[Vocabulary, Vocabulary]) -> int:
    """A number that tells whether two ranks hold the same vocabularies."""
    return int("".join(_digest(vocabulary)[:7] for vocabulary in vocabularies), 16)  # below 2**56


def _digest(vocabulary: Vocabulary) -> str:
    """SHA-256 of the words in order, in hexadecimal."""
    return hashlib.sha256("\n".join(vocabulary.words).encode("utf-8")).hexdigest()


def open_text(config: Config, prefix: str | None) -> ParallelCorpus:
    """The parallel text `<prefix>.<src>`, `<prefix>.<tgt>`."""
    return open_parallel(f"{prefix}.{config.src}", f"{prefix}.{config.tgt}")


def architecture(config: Config, src_vocab: Vocabulary, tgt_vocab: Vocabulary) -> Architecture:
    """The model's shape."""
    encoder_residual, decoder_residual = config.residual_layers
    return Architecture(
        src_vocab_size=src_vocab.size,
        tgt_vocab_size=tgt_vocab.size,
        num_units=config.num_units,
        num_encoder_layers=int(config.num_encoder_layers or config.num_layers),
        num_decoder_layers=int(config.num_decoder_layers or config.num_layers),
        num_encoder_residual_layers=encoder_residual,
        num_decoder_residual_layers=decoder_residual,
        encoder_type=config.encoder_type,
        attention=config.attention,
        attention_architecture=config.attention_architecture,
        output_attention=config.output_attention,
        pass_hidden_state=config.pass_hidden_state,
        unit_type=config.unit_type,
        forget_bias=config.forget_bias,
    )


def feed_settings(config: Config) -> FeedSettings:
    """How batches are cut."""
    return FeedSettings(
        config.batch_size,
        config.num_buckets,
        config.src_max_len,
        config.tgt_max_len,
        int(config.random_seed or 0),
    )


def search_settings(config: Config) -> SearchSettings:
    """How translations are searched for."""
    return SearchSettings(
        beam_width=config.search_width,
        length_penalty_weight=config.length_penalty_weight,
        batch_size=config.infer_batch_size,
        src_max_len=config.src_max_len_infer,
        tgt_max_len=config.tgt_max_len_infer,
        subword_option=config.subword_option,
    )


def optimization(config: Config, size: int) -> Optimization:
    """How weights are updated by `size` ranks.

    A scaled rate rises linearly from that of one rank (Goyal et al. 2017, section 2.2). Where scaling changes nothing,
    it rises from 0, as the linear warm-up of an unscaled rate does: a warm-up that was asked for never vanishes.
    """
    rate, scaled = config.learning_rate, config.learning_rate_scaling != "none"
    factor = {"none": 1.0, "linear": size, "sqrt": math.sqrt(size)}[config.learning_rate_scaling]
    schedule = Schedule(
        learning_rate=rate * factor,
        num_train_steps=config.num_train_steps,
        warmup_steps=config.warmup_steps,
        warmup_scheme="linear" if scaled else config.warmup_scheme,
        warmup_start=rate if factor > 1 else 0.0,
        decay_scheme=config.decay_scheme,
    )
    return Optimization(config.optimizer, schedule, config.max_gradient_norm, config.dropout)


def opening_lines(config: Config, feed: Feed, first_step: int, size: int) -> list[str]:
    """What the log begins with."""
    schedule = optimization(config, size).schedule
    rate = f"learning rate {schedule.learning_rate:g} (scaling: {config.learning_rate_scaling})"
    steps = schedule.warmup_steps
    warmup = f"{schedule.warmup_scheme} warm-up over {steps} steps" if steps else "no warm-up"
    begin = f"continuing after step {first_step}" if first_step else "starting"
    return [
        f"# ranks {size} x batch {config.batch_size} = global batch {feed.global_batch_size} sentences",
        f"# {feed.pairs} sentence pairs, {feed.steps_per_epoch} steps an epoch, seed {config.random_seed}",
        f"# {config.optimizer}, {rate}, {warmup}",
        f"# {begin}, {config.num_train_steps} steps in all",
    ]
