"""The program: `python -m nmt.nmt --name=value ...`, alone or as `mpirun -n N python -m nmt.nmt ...`.

Trains a translation model, or, with --inference_input_file, translates a file with one. This module parses,
checks, builds and wires; it alone knows `tfdist`, whose import makes the ranks start from equal weights and
average their gradients, and it chooses once which objects write (on rank 0) and which do nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

import tfdist
from nmt import wiring
from nmt.config import Config
from nmt.configure import help_text, parse, read_saved, resolve
from nmt.errors import InputError
from nmt.files import DISK_FULL, make_directory, replace_atomically, unwritable
from nmt.model.architecture import Architecture
from nmt.model.initializers import Initializer
from nmt.text.vocabulary import Vocabulary
from nmt.train import checkpoint
from nmt.train.evaluation import BEST, BestModel, Evaluation, Evaluator, NoEvaluation
from nmt.train.feed import Feed
from nmt.train.likelihood import LikelihoodModel, LikelihoodSettings
from nmt.train.loop import Cadence, train
from nmt.train.outputs import NoOutputs, Outputs, RunOutputs
from nmt.train.ranks import AgreedError, Ranks, check_equal, from_root, together
from nmt.train.step import TrainStep, session_config
from nmt.translate.decode import TranslationModel, translate_file

Value = TypeVar("Value")
_HPARAMS = "hparams"
_DATA = "data"  # its entry that tells where in the training text a run is


class Processes:
    """The ranks that tfdist has found; implements `nmt.train.ranks.Ranks`."""

    def __init__(self) -> None:
        self.rank: int = tfdist.rank()
        self.size: int = tfdist.size()

    def sum(self, value: np.ndarray) -> np.ndarray:
        """The sum over all ranks. Collective."""
        return tfdist.all_reduce(value, op="sum")

    def broadcast(self, value: Value) -> Value:
        """Rank 0's value. Collective."""
        return tfdist.broadcast(value)

    def alone(self, reason: str) -> contextlib.AbstractContextManager[Any]:
        """Marks work that the other ranks wait for."""
        return tfdist.alone(reason)

    def barrier(self) -> None:
        """Returns when all have called it. Collective."""
        tfdist.barrier()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program on this rank and returns its exit code; without arguments, by the command line's."""
    tf.compat.v1.disable_control_flow_v2()  # loops of small cells take less processor time in version 1
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)  # a line for each checkpoint that is read
    ranks = Processes()
    try:
        run(sys.argv[1:] if arguments is None else arguments, ranks)
    except AgreedError as error:
        if error.is_mine:
            print(f"nmt: {error}", file=sys.stderr, flush=True)
        ranks.barrier()  # a launcher may kill the others as soon as one exits with an error
        return 1
    except (InputError, OSError) as error:
        message = f"nmt: {error}"
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            message = f"nmt: {unwritable(error.filename or 'standard output or a file of --out_dir', error)}"
        # On this rank alone, as it writes: the others wait, and must be ended.
        if ranks.size > 1:
            tfdist.abort(message)
        print(message, file=sys.stderr, flush=True)
        return 1
    return 0


def run(arguments: Sequence[str], ranks: Ranks) -> None:
    """Does what the arguments ask for.

    Collective: every rank calls; the arguments of rank 0 count.

    Raises:
        AgreedError: on every rank, for a user's mistake.
        InputError: on the rank that writes, for one that shows during training, such as a full disk.
    """
    if {"--help", "-h"} & set(arguments):
        from_root(ranks, lambda: print(help_text(), end=""))
        return
    config, saved = from_root(ranks, lambda: configure(arguments))
    if config.is_inference:
        from_root(ranks, lambda: infer(config, saved, ranks))
    else:
        train_model(config, saved, ranks)


def configure(arguments: Sequence[str]) -> tuple[Config, dict[str, Any]]:
    """The configuration, and the contents of the `hparams` file (beside --ckpt, or in out_dir) behind it.

    Raises:
        InputError: for any mistake in the flags or in that file.
    """
    explicit = parse(arguments)
    saved: dict[str, Any] = {}
    path = ""
    ckpt = explicit.get("ckpt", "")
    for directory in ((os.path.dirname(ckpt) or ".") if ckpt else "", explicit.get("out_dir", "")):
        path = os.path.join(directory, _HPARAMS)
        if directory and os.path.isfile(path):
            try:
                with open(path, encoding="utf-8") as file:
                    saved = read_saved(file.read(), path)
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read ({error}): restore it or choose another out_dir") from None
            break
    return resolve(explicit, saved, path), saved


def infer(config: Config, saved: Mapping[str, Any], ranks: Ranks) -> None:
    """Translates the input file by the checkpoint asked for, or the latest in out_dir. On one rank."""
    with ranks.alone("translation"):
        path = config.ckpt or checkpoint.latest(str(config.out_dir))
        if path is None:
            raise InputError(f"--out_dir={config.out_dir} has no checkpoint: train first, or give --ckpt")
        checkpoint.check_exists(path)
        vocabularies = wiring.read_vocabularies(config, saved)
        with tfdist.disable_broadcast():
            model = TranslationModel(
                wiring.architecture(config, *vocabularies), *vocabularies, wiring.search_settings(config)
            )
        checkpoint.restore(model.session, model.saver, path)
        lines = translate_file(model, str(config.inference_input_file), str(config.inference_output_file))
        print(f"# {lines} lines translated by {path} into {config.inference_output_file}", flush=True)


def train_model(config: Config, saved: Mapping[str, Any], ranks: Ranks) -> None:
    """Trains, from the latest checkpoint in out_dir if there is one. Collective: every rank calls."""
    with together(ranks):
        vocabularies = wiring.read_vocabularies(config, saved)
        corpus = wiring.open_text(config, config.train_prefix)
        feed = Feed(corpus, *vocabularies, wiring.feed_settings(config), ranks.rank, ranks.size)
    check_equal(ranks, feed.checksum, f"the training text {config.train_prefix}.* is not the same on all ranks")
    check_equal(
        ranks,
        wiring.checksum(vocabularies),
        f"the vocabularies {config.vocab_prefix}.* are not the same on all ranks",
    )
    shape = wiring.architecture(config, *vocabularies)
    with tf.Graph().as_default() as graph:
        initial = Initializer(config.init_op, config.init_weight, config.random_seed)
        step = TrainStep(shape, initial, wiring.optimization(config, ranks.size))
        initialise = tf.compat.v1.global_variables_initializer()
        saver = tf.compat.v1.train.Saver(max_to_keep=None)
    with tf.compat.v1.Session(graph=graph, config=session_config(config.precision)) as session:
        session.run(initialise)
        first_step = from_root(ranks, lambda: restore_latest(session, saver, str(config.out_dir)))
        change = feed.continue_after(first_step, saved.get(_DATA, {})) if first_step else ""
        record = {**wiring.vocabulary_record(vocabularies), _DATA: feed.record()}
        with together(ranks), tfdist.disable_broadcast():
            outputs, evaluation = writers(config, record, vocabularies, shape, saver, first_step, ranks)
        if change:
            outputs.say(f"# {change}")
        for line in wiring.opening_lines(config, feed, first_step, ranks.size):
            outputs.say(line)
        train(
            step,
            session,
            feed,
            Cadence(config.num_train_steps, config.steps_per_stats, config.external_eval_interval),
            first_step=first_step,
            seed=int(config.random_seed or 0),
            ranks=ranks,
            evaluation=evaluation,
            outputs=outputs,
        )


def writers(
    config: Config,
    record: Mapping[str, Any],
    vocabularies: tuple[Vocabulary, Vocabulary],
    shape: Architecture,
    saver: Any,
    first_step: int,
    ranks: Ranks,
) -> tuple[RunOutputs, Evaluation]:
    """What tells and what evaluates: on rank 0 the objects that do it, elsewhere those that do nothing.

    Raises:
        InputError: a held-out text cannot be used, or out_dir cannot be written to.
    """
    if ranks.rank:
        return NoOutputs(), NoEvaluation()
    prefixes = {"dev": config.dev_prefix, "test": config.test_prefix}
    texts = {name: wiring.open_text(config, prefix) for name, prefix in prefixes.items() if prefix}
    hparams = config.to_json(**record)
    best = BestModel(make_directory(os.path.join(str(config.out_dir), BEST)), hparams)  # may refuse: before the logs
    outputs = Outputs(str(config.out_dir), first_step, config.num_train_steps, config.max_gradient_norm)
    limits = LikelihoodSettings(config.src_max_len_infer, config.tgt_max_len_infer, config.batch_size)
    evaluator = Evaluator(
        str(config.out_dir),
        texts,
        LikelihoodModel(shape, *vocabularies, limits),
        TranslationModel(shape, *vocabularies, wiring.search_settings(config)),
        saver=saver,
        keep=config.num_keep_ckpts,
        best=best,
        subword_option=config.subword_option,
        seed=int(config.random_seed or 0),
        ranks=ranks,
        outputs=outputs,
    )
    with replace_atomically(os.path.join(str(config.out_dir), _HPARAMS)) as file:
        file.write(hparams)  # last: whatever is wrong has shown by now
    return outputs, evaluator


def restore_latest(session: Any, saver: Any, out_dir: str) -> int:
    """Restores the latest checkpoint, if there is one, and returns the number of steps done."""
    path = checkpoint.latest(out_dir)
    if path is None:
        return 0
    checkpoint.restore(session, saver, path)
    return checkpoint.step_of(path)


if __name__ == "__main__":
    sys.exit(main())
