"""Settings derived from the options when a run starts; some also depend on its texts (vocabularies, vectors)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from nmt.core.errors import InputError
from nmt.model.architecture import Architecture
from nmt.model.registry import FAMILIES
from nmt.model.session import session_config
from nmt.options.config import Config
from nmt.options.option import make
from nmt.scoring.perplexity import LikelihoodSettings
from nmt.search.translation_model import SearchSettings
from nmt.text.vocabulary import SourceVocabulary, Vocabulary
from nmt.train.evaluation import PERPLEXITY
from nmt.train.feed import FeedSettings
from nmt.train.loop import EvaluationIntervals
from nmt.train.plateau import PlateauSettings
from nmt.train.schedule import PLATEAU, Schedule
from nmt.train.step import Optimization


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All settings of a run.

    Attributes:
        config: all options, including the paths of the files.
        cadence: intervals of statistics, evaluations and checkpoints.
        feed: settings of the training batches.
        likelihood: settings of perplexity on held-out texts.
        search: settings of translation.
        session: ConfigProto of TensorFlow sessions.
        gpus: number of GPUs that the layers are spread over; 0 if this process sees none.
        seed: seed of all random numbers.
    """

    config: Config
    cadence: EvaluationIntervals
    feed: FeedSettings
    likelihood: LikelihoodSettings
    search: SearchSettings
    session: Any
    gpus: int
    seed: int

    @classmethod
    def of(cls, config: Config) -> RunSettings:
        """Return the settings that the options ask for."""
        return cls(
            config=config,
            cadence=cadence(config),
            feed=make(FeedSettings, config),
            likelihood=make(LikelihoodSettings, config),
            search=make(SearchSettings, config),
            session=session_settings(config),
            gpus=gpus(config),
            seed=int(config.random_seed or 0),
        )


def architecture(
    config: Config, vocabularies: tuple[SourceVocabulary, Vocabulary], record: Mapping[str, Any]
) -> Architecture:
    """Return the model's architecture.

    Args:
        config: all options.
        vocabularies: source and target vocabulary.
        record: mapping with the widths of pretrained vectors, if any (`src_embedding_size`, `tgt_embedding_size`).

    Raises:
        InputError: options contradict each other, or the sizes of the vocabularies or vectors.
    """
    src_vocab, tgt_vocab = vocabularies
    src_size, tgt_size = record.get("src_embedding_size"), record.get("tgt_embedding_size")
    encoder_residual, decoder_residual = config.residual_layers
    if config.num_sampled_softmax > tgt_vocab.size:
        raise InputError(
            f"--num_sampled_softmax={config.num_sampled_softmax} is more than the {tgt_vocab.size} words of "
            f"{tgt_vocab.path}: give a smaller number, or 0 for all words"
        )
    kind = FAMILIES[config.model_family].architecture
    derived = dict(
        src_vocab_size=src_vocab.size,
        tgt_vocab_size=tgt_vocab.size,
        src_embedding_size=src_size or config.embedding_size,
        tgt_embedding_size=tgt_size or config.embedding_size,
        src_pretrained=src_size is not None,
        tgt_pretrained=tgt_size is not None,
        num_encoder_residual_layers=encoder_residual,
        num_decoder_residual_layers=decoder_residual,
    )
    known = {field.name for field in dataclasses.fields(kind)}  # a family need not have residual layers
    try:
        return make(kind, config, **{name: value for name, value in derived.items() if name in known})
    except ValueError as error:
        raise InputError(str(error)) from None


def optimization(config: Config, size: int, rewinds: int = 0) -> Optimization:
    """Return the optimizer's settings for `size` ranks; scaling counts each rank once per accumulated batch.

    The learning rate is halved once for each of the run's `rewinds` (divergence guard).

    A scaled rate rises linearly from the rate of one rank (Goyal et al. 2017, section 2.2). If scaling changes nothing,
    the rate rises from 0, as in the linear warm-up of an unscaled rate: a requested warm-up always takes place.
    """
    rate, scaled = config.learning_rate * 0.5**rewinds, config.learning_rate_scaling != "none"
    size *= config.accumulate_steps or 1
    factor = {"none": 1.0, "linear": size, "sqrt": math.sqrt(size)}[config.learning_rate_scaling]
    schedule = make(
        Schedule,
        config,
        learning_rate=rate * factor,
        warmup_scheme="linear" if scaled else config.warmup_scheme,
        warmup_start=rate if factor > 1 else 0.0,
        num_units=config.num_units,
    )
    figure = PERPLEXITY if config.plateau_metric == "perplexity" else config.metric_names[0]
    plateau = make(PlateauSettings, config, metric=figure) if config.decay_scheme == PLATEAU else None
    return make(Optimization, config, schedule=schedule, plateau=plateau)


def cadence(config: Config) -> EvaluationIntervals:
    """Return the intervals of statistics, evaluations and checkpoints."""
    return make(EvaluationIntervals, config, steps_per_external_eval=config.external_eval_interval)


def session_settings(config: Config) -> Any:
    """Return the ConfigProto of TensorFlow sessions."""
    settings = make(session_config, config)
    if not gpus(config):
        settings.device_count["GPU"] = 0  # TensorFlow places operations without a device on a GPU otherwise
    return settings


def gpus(config: Config) -> int:
    """Return the number of GPUs that the layers are spread over; 0 if this process sees none."""
    return config.num_gpus if tf.config.list_physical_devices("GPU") else 0
