"""A run that trains: what it is made of, on the rank that writes and on the others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from nmt.core.files import replace_atomically
from nmt.core.ranks import OneProcess, Ranks, check_equal, from_root, together
from nmt.keeping import checkpoint
from nmt.keeping.store import NoStore, Store
from nmt.model.architecture import Architecture
from nmt.model.parts.embedding_tables import given_vectors
from nmt.model.parts.initializers import Initializer
from nmt.options.config import Config
from nmt.reporting.outputs import NoOutputs, Outputs, RunOutputs
from nmt.runs import inputs as wiring
from nmt.scoring.perplexity import LikelihoodModel, LikelihoodSettings
from nmt.train.evaluation import Evaluation, Evaluator, NoEvaluation
from nmt.train.feed import Feed
from nmt.train.loop import train
from nmt.train.step import TrainStep
from nmt.train.stopping import StopBySignal
from nmt.translate.translation_model import TranslationModel

HPARAMS = "hparams"
_DATA = "data"  # its entry that tells where in the training text a run is


def train_model(config: Config, saved: Mapping[str, Any], ranks: Ranks, untouched: wiring.Untouched) -> None:
    """Trains, from the latest checkpoint in out_dir if there is one.

    Collective: every rank calls.

    Args:
        config: of the run.
        saved: the contents of the `hparams` file.
        ranks: who trains.
        untouched: in such a block, graphs are built as they are, without broadcasts of initial values.

    Raises:
        AgreedError: on every rank, for a user's mistake.
        InputError: on the rank that writes, for one that shows during training, such as a full disk.
    """
    with together(ranks):
        vocabularies = wiring.read_vocabularies(config, saved, writes=ranks.rank == 0)
        vectors = wiring.read_vectors(config, vocabularies)
        shape = wiring.architecture(config, vocabularies, vectors.record)
        corpus = wiring.open_text(config, config.train_prefix)
        feed = Feed(corpus, *vocabularies, wiring.feed_settings(config), ranks.rank, ranks.size)
    check_equal(ranks, feed.checksum, f"the training text {config.train_prefix}.* is not the same on all ranks")
    check_equal(
        ranks,
        wiring.checksum(vocabularies),
        f"the vocabularies {config.vocab_prefix}.* are not the same on all ranks",
    )
    with tf.Graph().as_default() as graph:
        initial = initial_weights(config, shape, vectors)
        step = TrainStep(shape, initial, wiring.optimization(config, ranks.size), wiring.gpus(config))
        initialise = tf.compat.v1.global_variables_initializer()
        saver = tf.compat.v1.train.Saver(max_to_keep=None)
    with (
        tf.compat.v1.Session(graph=graph, config=wiring.session_settings(config)) as session,
        contextlib.closing(StopBySignal(ranks)) as stop,
    ):
        session.run(initialise)
        first_step = from_root(ranks, lambda: restore_latest(session, saver, str(config.out_dir)))
        change = feed.continue_after(first_step, saved.get(_DATA, {})) if first_step else ""
        record = {**wiring.vocabulary_record(vocabularies), **vectors.record, _DATA: feed.record()}
        with together(ranks), untouched():
            outputs, evaluation = evaluators(config, record, vocabularies, shape, saver, first_step, ranks)
        if change:
            outputs.say(f"# {change}")
        for line in wiring.opening_lines(config, feed, first_step, ranks.size):
            outputs.say(line)
        train(
            step,
            session,
            feed,
            wiring.cadence(config),
            first_step=first_step,
            seed=int(config.random_seed or 0),
            ranks=ranks,
            evaluation=evaluation,
            outputs=outputs,
            stop=stop,
        )


def initial_weights(config: Config, shape: Architecture, vectors: wiring.Vectors) -> Initializer:
    """How the weights of a model of this shape start."""
    return Initializer(config.init_op, config.init_weight, config.random_seed, given_vectors(shape, *vectors))


def evaluators(
    config: Config,
    record: Mapping[str, Any],
    vocabularies: wiring.Vocabularies,
    shape: Architecture,
    saver: Any,
    first_step: int,
    ranks: Ranks,
) -> tuple[RunOutputs, Evaluation]:
    """What tells and what evaluates: on rank 0 the objects that do it, elsewhere those that do nothing, or their share.

    Raises:
        InputError: a held-out text cannot be used, or out_dir cannot be written to.
    """
    shared = config.eval_mode == "shared"
    if ranks.rank and not shared:
        return NoOutputs(), NoEvaluation()
    out_dir = str(config.out_dir)
    prefixes = {"dev": config.dev_prefix, "test": config.test_prefix}
    texts = {name: wiring.open_text(config, prefix) for name, prefix in prefixes.items() if prefix}
    keeping = out_dir, config.metric_names, config.num_keep_ckpts, config.avg_ckpts
    outputs: RunOutputs = NoOutputs()
    store = NoStore(*keeping)
    hparams = config.to_json(**record)
    if not ranks.rank:
        store = Store(*keeping, hparams, saver)  # may refuse: before the logs
        outputs = Outputs(out_dir, first_step, config.num_train_steps, config.metric_names)
    limits = LikelihoodSettings(config.src_max_len_infer, config.tgt_max_len_infer, config.batch_size)
    running = wiring.session_settings(config), wiring.gpus(config)
    evaluator = Evaluator(
        texts,
        LikelihoodModel(shape, *vocabularies, limits, *running),
        TranslationModel(shape, *vocabularies, wiring.search_settings(config), *running),
        metrics=config.metric_names,
        store=store,
        subword_option=config.subword_option,
        seed=int(config.random_seed or 0),
        everybody=OneProcess() if shared else ranks,
        sharing=ranks if shared else OneProcess(),
        outputs=outputs,
    )
    if not ranks.rank:
        with replace_atomically(os.path.join(out_dir, HPARAMS)) as file:
            file.write(hparams)  # last: whatever is wrong has shown by now
    return outputs, evaluator


def restore_latest(session: Any, saver: Any, out_dir: str) -> int:
    """Restores the latest checkpoint, if there is one, and returns the number of steps done."""
    path = checkpoint.latest(out_dir)
    if path is None:
        return 0
    checkpoint.restore(session, saver, path)
    return checkpoint.step_of(path)
