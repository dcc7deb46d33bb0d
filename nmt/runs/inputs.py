"""A configuration as arguments: which option means what to the model, the training and the search."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from nmt.core.errors import InputError
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.session import session_config
from nmt.options.config import FIELDS, Config
from nmt.text.character_vocabulary import CharacterVocabulary
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.vector_file import read_embeddings
from nmt.text.vocabulary import SourceVocabulary, Vocabulary, complete_vocabulary, read_vocabulary
from nmt.train.feed import Feed, FeedSettings
from nmt.train.loop import Cadence
from nmt.train.schedule import Schedule
from nmt.train.step import Optimization
from nmt.translate.translation_model import SearchSettings

Vocabularies = tuple[SourceVocabulary, Vocabulary]
Untouched = Callable[[], contextlib.AbstractContextManager[Any]]  # in which a graph is built as it is


def read_vocabularies(config: Config, saved: Mapping[str, Any], writes: bool = False) -> Vocabularies:
    """Both vocabularies, checked to be those of the run that is continued or translated with.

    Args:
        config: of the run.
        saved: the contents of the `hparams` file.
        writes: whether a vocabulary that lacks the special words is completed in out_dir, or in memory alone.

    Raises:
        InputError: a file cannot be used, or has changed since that run began.
    """
    tgt = _read_vocabulary(config, str(config.src if config.share_vocab else config.tgt), writes)
    src: SourceVocabulary = tgt
    if config.use_char_encode:
        src = CharacterVocabulary()
    elif not config.share_vocab:
        src = _read_vocabulary(config, str(config.src), writes)
    for name, value in vocabulary_record((src, tgt)).items():
        if name in saved and saved[name] != value:
            path = src.path if name.startswith("src") else tgt.path
            raise InputError(
                f"{path} is not the vocabulary that the model was trained with ({name} was {saved[name]}, is "
                f"{value}): restore it, or choose another out_dir"
            )
    return src, tgt


def _read_vocabulary(config: Config, suffix: str, writes: bool) -> Vocabulary:
    path = f"{config.vocab_prefix}.{suffix}"
    if not config.check_special_token:
        return read_vocabulary(path, config.sos, config.eos, specials_first=False)
    return complete_vocabulary(path, config.out_dir if writes else None, config.sos, config.eos)


class Vectors(NamedTuple):
    """Pretrained vectors of the words, float32 [words, size]; None where they are trained from the start."""

    source: np.ndarray | None = None
    target: np.ndarray | None = None

    @property
    def record(self) -> dict[str, int | None]:
        """What `hparams` keeps: sizes of the vectors."""
        return {
            f"{side}_embedding_size": None if one is None else int(one.shape[1])
            for side, one in (("src", self.source), ("tgt", self.target))
        }


def read_vectors(config: Config, vocabularies: Vocabularies) -> Vectors:
    """The pretrained vectors that --embed_prefix names; one of the two files may be missing.

    Raises:
        InputError: a file cannot be used, or both are missing.
    """
    if config.embed_prefix is None:
        return Vectors()
    found = []
    for suffix, vocabulary in zip((config.src, config.tgt), vocabularies, strict=True):
        path = f"{config.embed_prefix}.{suffix}"
        there = os.path.exists(path) and isinstance(vocabulary, Vocabulary)
        found.append(read_embeddings(path, vocabulary) if there else None)  # type: ignore[arg-type]
    if config.share_vocab:
        found = [found[0], found[0]]
    if all(one is None for one in found):
        raise InputError(
            f"--embed_prefix={config.embed_prefix}: neither {config.embed_prefix}.{config.src} nor "
            f"{config.embed_prefix}.{config.tgt} is there: correct the prefix, or leave it out"
        )
    return Vectors(*found)


def vocabulary_record(vocabularies: Vocabularies) -> dict[str, Any]:
    """What `hparams` keeps of the vocabularies: sizes, and checksums of the words in order."""
    record: dict[str, Any] = {}
    for side, vocabulary in zip(("src", "tgt"), vocabularies, strict=True):
        record[f"{side}_vocab_size"] = vocabulary.size
        record[f"{side}_vocab_sha256"] = _digest(vocabulary)
    return record


def checksum(vocabularies: Vocabularies) -> int:
    """A number that tells whether two ranks hold the same vocabularies."""
    return int("".join(_digest(vocabulary)[:7] for vocabulary in vocabularies), 16)  # below 2**56


def _digest(vocabulary: SourceVocabulary) -> str:
    """SHA-256 of the words in order, in hexadecimal."""
    return hashlib.sha256("\n".join(vocabulary.words).encode("utf-8")).hexdigest()


def open_text(config: Config, prefix: str | None) -> ParallelCorpus:
    """The parallel text `<prefix>.<src>`, `<prefix>.<tgt>`."""
    return open_parallel(f"{prefix}.{config.src}", f"{prefix}.{config.tgt}")


def architecture(config: Config, vocabularies: Vocabularies, record: Mapping[str, Any]) -> LSTMArchitecture:
    """The model's shape; `record` has that of `Vectors`, and may have more.

    Raises:
        InputError: options contradict each other in a way that only shows with the vocabularies.
    """
    src_vocab, tgt_vocab = vocabularies
    src_size, tgt_size = record.get("src_embedding_size"), record.get("tgt_embedding_size")
    encoder_residual, decoder_residual = config.residual_layers
    shape: dict[str, Any] = dict(
        src_embedding_size=src_size,
        tgt_embedding_size=tgt_size,
        src_pretrained=src_size is not None,
        tgt_pretrained=tgt_size is not None,
        share_embedding=config.share_vocab,
        num_embeddings_partitions=config.num_embeddings_partitions,
        character_source=config.use_char_encode,
        language_model=config.language_model,
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
    if config.num_sampled_softmax > tgt_vocab.size:
        raise InputError(
            f"--num_sampled_softmax={config.num_sampled_softmax} is more than the {tgt_vocab.size} words of "
            f"{tgt_vocab.path}: give less, or 0 for all"
        )
    try:
        return LSTMArchitecture(**shape)
    except ValueError as error:
        raise InputError(str(error)) from None


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
        infer_mode=config.search_mode,
        beam_width=config.beam_width,
        length_penalty_weight=config.length_penalty_weight,
        coverage_penalty_weight=config.coverage_penalty_weight,
        sampling_temperature=config.sampling_temperature,
        translations_per_input=config.num_translations_per_input,
        seed=int(config.random_seed or 0),
        batch_size=config.infer_batch_size,
        src_max_len=config.src_max_len_infer,
        tgt_max_len=config.tgt_max_len_infer,
        subword_option=config.subword_option,
    )


def session_settings(config: Config) -> Any:
    """How a session computes: a ConfigProto."""
    settings = session_config(
        config.precision, config.num_inter_threads, config.num_intra_threads, config.log_device_placement
    )
    if not gpus(config):
        settings.device_count["GPU"] = 0  # what no device is chosen for would go to one
    return settings


def gpus(config: Config) -> int:
    """Over how many GPUs the layers are spread; 0 where this process sees none."""
    return config.num_gpus if tf.config.list_physical_devices("GPU") else 0


def cadence(config: Config) -> Cadence:
    """When things are due."""
    return Cadence(
        config.num_train_steps,
        config.steps_per_stats,
        config.external_eval_interval,
        config.evaluate_epochs,
        config.early_stopping_patience,
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
    return Optimization(
        config.optimizer,
        schedule,
        config.max_gradient_norm,
        config.dropout,
        config.num_sampled_softmax,
        config.colocate_gradients_with_ops,
    )


def opening_lines(config: Config, feed: Feed, first_step: int, size: int) -> list[str]:
    """What the log begins with."""
    schedule = optimization(config, size).schedule
    rate = f"learning rate {schedule.learning_rate:g} (scaling: {config.learning_rate_scaling})"
    steps = schedule.warmup_steps
    warmup = f"{schedule.warmup_scheme} warm-up over {steps} steps" if steps else "no warm-up"
    no_gpu = config.num_gpus > 0 and not gpus(config)
    begin = f"continuing after step {first_step}" if first_step else "starting"
    return [
        "# hparams:",
        *(f"  {name}={getattr(config, name)}" for name in sorted(FIELDS)),
        f"# ranks {size} x batch {config.batch_size} = global batch {feed.global_batch_size} sentences",
        f"# {feed.pairs} sentence pairs, {feed.steps_per_epoch} steps an epoch, seed {config.random_seed}",
        f"# {config.optimizer}, {rate}, {warmup}",
        *([f"# --num_gpus={config.num_gpus}, but there is no GPU here: the CPU does the work"] if no_gpu else []),
        f"# {begin}, {config.num_train_steps} steps in all",
    ]
