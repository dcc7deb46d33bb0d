"""A training run, from the start or from its last checkpoint: builds its parts on each rank, and trains."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from nmt.checkpoints import checkpoint
from nmt.checkpoints.checkpoint import Checkpoints
from nmt.checkpoints.run_directory import Store, Storing, set_aside
from nmt.checkpoints.transfer import Words, begin_with
from nmt.core.errors import InputError
from nmt.core.files import replace_atomically
from nmt.core.lock import hold_for_all
from nmt.core.ranks import OneProcess, Ranks, call_on_root, check_equal, together
from nmt.model.architecture import Architecture
from nmt.model.inference_model import TrainedWeights
from nmt.model.parts.embedding_tables import given_vectors
from nmt.model.parts.initializers import Initializer
from nmt.model.registry import architecture
from nmt.model.session import gpus, session_config
from nmt.options.config import FIELDS, Config
from nmt.options.hparams_file import HPARAMS, read_saved
from nmt.options.model_options import ModelOptions
from nmt.options.presets import preset_lines
from nmt.options.training_options import PLATEAU
from nmt.reporting.outputs import Outputs, RunOutputs
from nmt.runs import inputs
from nmt.runs.trained_model import find
from nmt.scoring.perplexity import LikelihoodModel
from nmt.scoring.tokenisation import remarks
from nmt.search.translation_model import TranslationModel
from nmt.text.corpus import ParallelCorpus
from nmt.text.preparation import PREPARATION, copy_preparation
from nmt.train import plateau
from nmt.train.divergence import Guard, LossGuard, RateTooHighError
from nmt.train.evaluation import Evaluation, Evaluator
from nmt.train.feed import Feed
from nmt.train.loop import train
from nmt.train.prefetch import Prefetcher
from nmt.train.schedule import Schedule
from nmt.train.step import TrainStep
from nmt.train.stopping import StopBySignal

# Entries of the `hparams` file.
_DATA = "data"  # description of the batch plan (`Feed.record`)
_HELD_OUT = "held_out"  # checksums of the held-out texts
_REWINDS = "rewinds"  # number of halvings of the learning rate after divergences
_TRIAL = "rate_trial"  # last step of the trial of a halved rate
_MOST_REWINDS = 10
_LOCK = "run.lock"  # lock file in out_dir during a training


def train_model(config: Config, saved: Mapping[str, Any], ranks: Ranks, job: str = "") -> None:
    """Train from the latest checkpoint in out_dir, or from the start; a lock keeps other runs out of out_dir.

    Collective: every rank calls.

    Args:
        config: options of the run.
        saved: contents of the `hparams` file.
        ranks: the ranks that train.
        job: name of the job, if it may be restarted on other hosts; else empty.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
        InputError: on the rank that writes, for an error during training, such as a full disk.
    """
    out_dir = str(config.out_dir)
    with hold_for_all(ranks, os.path.join(out_dir, _LOCK), out_dir, "choose another out_dir", job) as taken_over:
        call_on_root(ranks, lambda: check_options_kept(config, saved))
        notices = [taken_over, *call_on_root(ranks, lambda: set_aside(out_dir, config.metric_names, _REWINDS in saved))]
        while True:
            try:
                _train(config, saved, ranks, notices)
                return
            except RateTooHighError as error:
                if config.divergence != "rewind":
                    raise
                saved, told = call_on_root(ranks, functools.partial(_rewound, config, error))
                notices = [told]


def _rewound(config: Config, error: RateTooHighError) -> tuple[dict[str, Any], str]:
    """Delete the checkpoints after a divergence or a trial, so that training restarts from an earlier one.

    Returns:
        The contents of the `hparams` file with the new number of halvings of the learning rate; and a log line.

    Raises:
        InputError: there is no earlier checkpoint, or the rate has been halved too often.
    """
    saved, checkpoints = read_saved(os.path.join(str(config.out_dir), HPARAMS)), Checkpoints(str(config.out_dir))
    rewinds = saved.get(_REWINDS, 0) + error.halvings
    if rewinds > _MOST_REWINDS:
        raise InputError(f"{error}. The learning rate was halved {_MOST_REWINDS} times without success")
    found = (checkpoints.forget_after(step) for step in error.back_to)
    step = next((step for step in found if step is not None), None)
    if step is None:
        raise InputError(
            f"{error}. No checkpoint from step {error.back_to[-1]} or before is left to go back to: keep more "
            "(--num_keep_ckpts)"
        )
    told = f"{error}. Going back to step {step} with 1/{2**rewinds} of the learning rate"
    return saved | {_REWINDS: rewinds, _TRIAL: error.trial}, told


def check_options_kept(config: Config, saved: Mapping[str, Any]) -> None:
    """Check that a run with checkpoints has its file `hparams`, which holds seed, order and all options.

    Raises:
        InputError: there are checkpoints, but no `hparams`.
    """
    path = checkpoint.latest(str(config.out_dir))
    if path is None or saved or config.override_loaded_hparams:
        return
    hparams = os.path.join(str(config.out_dir), HPARAMS)
    raise InputError(
        f"{hparams} is missing, but {path} exists: the run would continue with a different seed, order and options. "
        "Restore the file (for example from a directory best_*), choose another out_dir, or give "
        "--override_loaded_hparams to continue with flags and defaults only"
    )


def _train(config: Config, saved: Mapping[str, Any], ranks: Ranks, notices: list[str]) -> None:
    """Train until the end or until `RateTooHighError`; `notices` are the first lines of the log."""
    ranks.multiply_in(config.precision)
    with together(ranks):
        vocabularies = inputs.read_vocabularies(config, saved, writes=ranks.rank == 0)
        vectors = inputs.read_vectors(config, vocabularies)
        shape = architecture(config, vocabularies, vectors.record)
        corpus = inputs.open_text(config, config.train_prefix)
        shared = config.eval_mode == "shared"
        held_out = inputs.open_held_out(config) if shared or not ranks.rank else {}
        joints = inputs.merges_of(config, corpus, vocabularies)
        feed = Feed(corpus, *vocabularies, config, ranks.rank, ranks.size, joints)
    inputs.check_same_text(ranks, [corpus, *(held_out.values() if shared else ())])
    texts = {"train": corpus, **held_out}
    notices += call_on_root(ranks, lambda: inputs.unknown_words(config, texts, vocabularies))
    inputs.check_same_vocabularies(ranks, config, vocabularies)
    if shared:
        inputs.check_same_shortlist(ranks, config)
    check_equal(ranks, joints.checksum if joints else 0, f"{config.bpe_codes} is not the same on all ranks")
    with together(ranks), tf.Graph().as_default() as graph:
        initial = initial_weights(config, shape, vectors)
        step = TrainStep(shape, initial, config, Schedule.of(config, ranks.size, saved.get(_REWINDS, 0)))
        initialise = tf.compat.v1.global_variables_initializer()
        saver = tf.compat.v1.train.Saver(max_to_keep=None)
    with (
        tf.compat.v1.Session(graph=graph, config=session_config(config)) as session,
        contextlib.closing(StopBySignal(ranks)) as stop,
    ):
        session.run(initialise)
        first_step = call_on_root(ranks, lambda: restore_latest(session, saver, str(config.out_dir)))
        if config.init_from and not first_step:
            notices += call_on_root(ranks, lambda: _begin_with(config, session, shape, vocabularies))
        if first_step:
            notices.append(feed.continue_after(first_step, saved.get(_DATA, {})))
            notices += [
                f"{path} has changed since this run was last started: earlier and later scores are not comparable"
                for path in inputs.changed_texts(held_out, saved.get(_HELD_OUT, {}))
            ]
        record = {
            **inputs.vocabulary_record(vocabularies),
            **vectors.record,
            _DATA: feed.record(),
            _REWINDS: saved.get(_REWINDS, 0),
            _TRIAL: saved.get(_TRIAL),
            _HELD_OUT: inputs.text_record(held_out),
        }
        with together(ranks), ranks.untouched():
            feed.check_tokens(first_step)
            outputs, evaluation = evaluators(config, held_out, record, vocabularies, shape, saver, first_step, ranks)
        for line in (*(f"# {notice}" for notice in notices if notice), *remarks(str(config.tgt))):
            outputs.say(line)
        outputs.started(first_step, ranks.size, feed.sizes()[1])
        for line in opening_lines(config, feed, first_step, ranks.size, saved.get(_REWINDS, 0)):
            outputs.say(line)
        try:
            with contextlib.closing(Prefetcher(feed, config.num_train_steps)) as batches:
                train(
                    step,
                    session,
                    batches,
                    config,
                    first_step=first_step,
                    ranks=ranks,
                    evaluation=evaluation,
                    outputs=outputs,
                    stop=stop.asked,
                    guard=_guard(config, saved, ranks, first_step, outputs),
                )
        except RateTooHighError:
            outputs.close()  # `train_model` trains again with new outputs
            raise


def _begin_with(config: Config, session: Any, shape: Architecture, vocabularies: inputs.Vocabularies) -> list[str]:
    """Give the model the weights of the run that --init_from names, and return log lines.

    Raises:
        InputError: there is no such run, or its model has another architecture.
    """
    trained, saved = find(str(config.init_from), {}, "init_from")
    for name in ModelOptions.shaping():
        new, old = getattr(config, name), getattr(trained, name)
        # An unset width is another option's, and shows in the shapes of variables.
        if None not in (new, old) and new != old and not any((*config.missing(name), *trained.missing(name))):
            raise InputError(
                f"--init_from={config.init_from}: --{name} is {new!r}, but that model was trained with {old!r}: give "
                f"--{name}={old}, or another run"
            )
    inputs.check_vocabularies_exist(trained, f"--init_from={config.init_from}")
    before = inputs.read_vocabularies(trained, saved)
    source, target = (Words(old.words, new.words) for old, new in zip(before, vocabularies, strict=True))
    with session.graph.as_default():
        given = [v for v in tf.compat.v1.global_variables() if v.op.name in shape.pretrained_names]
        weights = [*tf.compat.v1.trainable_variables(), *given]
    return begin_with(session, weights, trained.ckpt, shape, source, target)


def _guard(config: Config, saved: Mapping[str, Any], ranks: Ranks, first_step: int, outputs: RunOutputs) -> Guard:
    if config.divergence in (None, "off"):
        return Guard()
    say = outputs.say if config.divergence == "warn" else None
    return LossGuard(ranks, first_step, say, saved.get(_TRIAL) if config.divergence == "rewind" else None)


def initial_weights(config: Config, shape: Architecture, vectors: inputs.Vectors) -> Initializer:
    """Return the initializer of the model's weights, with the pretrained vectors."""
    return Initializer(config.init_op, config.init_weight, config.random_seed, given_vectors(shape, *vectors))


def evaluators(
    config: Config,
    texts: Mapping[str, ParallelCorpus],
    record: Mapping[str, Any],
    vocabularies: inputs.Vocabularies,
    shape: Architecture,
    saver: Any,
    first_step: int,
    ranks: Ranks,
) -> tuple[RunOutputs, Evaluation]:
    """Make the outputs and the evaluation of this rank; on ranks above 0 they do nothing, but for a shared evaluation.

    Raises:
        InputError: out_dir cannot be written to.
    """
    shared = config.eval_mode == "shared"
    if ranks.rank and not shared:
        return RunOutputs(), Evaluation()
    out_dir = str(config.out_dir)
    kept = out_dir, config.metric_names, config.num_keep_ckpts, config.avg_ckpts
    outputs: RunOutputs = RunOutputs()
    store = Storing(*kept)
    hparams = config.to_json(**record)
    if not ranks.rank:
        store = Store(*kept, hparams, saver)  # may raise: before the logs are opened
        outputs = Outputs(out_dir, first_step, config.num_train_steps, config.metric_names)
    weights = TrainedWeights(shape, config)
    evaluator = Evaluator(
        texts,
        weights,
        LikelihoodModel(weights, *vocabularies, config),
        TranslationModel(weights, *vocabularies, config),
        metrics=config.metric_names,
        store=store,
        finishing=inputs.finishing(config, texts),
        seed=int(config.random_seed or 0),
        everybody=OneProcess() if shared else ranks,
        sharing=ranks if shared else OneProcess(),
        outputs=outputs,
    )
    if not ranks.rank:
        copy_preparation(config.vocab_prefix, os.path.join(out_dir, PREPARATION))
        with replace_atomically(os.path.join(out_dir, HPARAMS)) as file:
            file.write(hparams)  # last, after everything that may raise
    return outputs, evaluator


def restore_latest(session: Any, saver: Any, out_dir: str) -> int:
    """Restore the latest checkpoint, if there is one, and return the number of steps done."""
    path = checkpoint.latest(out_dir)
    if path is None:
        return 0
    checkpoint.restore(session, saver, path)
    return checkpoint.step_of(path)


def opening_lines(config: Config, feed: Feed, first_step: int, size: int, rewinds: int) -> list[str]:
    """Return the first lines of the log: options, ranks, batches, learning rate and steps."""
    schedule = Schedule.of(config, size, rewinds)
    rate = f"learning rate {schedule.learning_rate:g} (scaling: {config.learning_rate_scaling})"
    courses = [str(schedule), *([plateau.told(config)] if config.decay_scheme == PLATEAU else [])]
    no_gpu = config.num_gpus > 0 and not gpus(config)
    parts = f" x {feed.parts} batches a step" if feed.parts > 1 else ""
    batch, total = feed.sizes()
    begin = f"continuing after step {first_step}" if first_step else "starting"
    return [
        "# hparams:",
        *(f"  {name}={getattr(config, name)}" for name in sorted(FIELDS)),
        *preset_lines(config),
        f"# ranks {size} x batch {batch}{parts} = global batch {total}",
        f"# {feed.pairs} sentence pairs, {feed.steps_per_epoch} steps an epoch, seed {config.random_seed}",
        *(f"# {line}" for line in feed.left_out()),
        f"# {config.optimizer}, {rate}, {', '.join(courses)}",
        *([f"# --num_gpus={config.num_gpus}, but there is no GPU here: using the CPU"] if no_gpu else []),
        f"# {begin}, {config.num_train_steps} steps in all",
    ]
