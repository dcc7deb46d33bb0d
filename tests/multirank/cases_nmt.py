"""The law for the translation program: 1 rank x 64 sentences is 2 x 32 is 4 x 16."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf

import tfdist
from nmt import nmt
from nmt.checkpoints.checkpoint import Checkpoints, latest, restore
from nmt.model.convs2s.architecture import ConvS2SArchitecture
from nmt.model.inference_model import TrainedWeights
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.parts.embedding_tables import given_vectors
from nmt.model.parts.initializers import Initializer, initializer
from nmt.model.transformer.architecture import TransformerArchitecture
from nmt.options.config import Config
from nmt.reporting.outputs import RunOutputs
from nmt.runs.tfdist_ranks import Processes
from nmt.scoring.perplexity import LikelihoodModel
from nmt.search.translate_file import translate_file
from nmt.search.translation_model import TranslationModel
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.vocabulary import Vocabulary, write_vocabulary
from nmt.train.divergence import Guard, LossGuard
from nmt.train.evaluation import Evaluation
from nmt.train.feed import Feed
from nmt.train.loop import train
from nmt.train.schedule import Schedule
from nmt.train.step import StepResult, TrainStep, dropout_seed
from tests.multirank import inside
from tests.multirank.cases_programs import refusal
from tests.multirank.inside import everywhere, through_mpi
from tests.multirank.oracle import assert_close, one_process, v1
from tests.named import subtest

GLOBAL_BATCH = 64
STEPS = 10
# Attention must matter: near zero weights, the gradient of its bias is as small as its rounding.
INIT_WEIGHT = 0.5
WORDS = [f"w{i}" for i in range(60)]


def text() -> tuple[ParallelCorpus, Vocabulary]:
    """Return random sentences, the same on every rank, and their vocabulary."""
    directory = Path(tempfile.mkdtemp())
    random = np.random.RandomState(5)
    for side in ("en", "de"):
        lines = [" ".join(random.choice(WORDS, random.randint(1, 14))) for _ in range(203)]
        (directory / f"train.{side}").write_text("\n".join(lines) + "\n")
    vocabulary = write_vocabulary(str(directory / "vocab"), WORDS)
    return open_parallel(str(directory / "train.en"), str(directory / "train.de")), vocabulary


def feed(rank: int, size: int, parts: int = 1, normalization: str = "sentences") -> Feed:
    """Return a rank's feed; the last batches of an epoch are short and of odd sizes."""
    corpus, vocabulary = text()
    settings = Config(
        batch_size=GLOBAL_BATCH // (size * parts),
        random_seed=1,
        accumulate_steps=parts,
        loss_normalization=normalization,
    )
    return Feed(corpus, vocabulary, vocabulary, settings, rank, size)


def trained(
    optimizer: str,
    attention: str,
    rank: int,
    size: int,
    seed: int,
    parts: int = 1,
    normalization: str = "sentences",
    how: Mapping[str, Any] = MappingProxyType({}),
    **changes: Any,
) -> dict[str, np.ndarray]:
    batches = feed(rank, size, parts, normalization)
    with tf.Graph().as_default(), v1.Session() as session:
        kind = changes.pop("kind", LSTMArchitecture)
        recurrent = dict(encoder_type="bi", attention=attention) if kind is LSTMArchitecture else {}
        shape = kind(63, 63, 20, 2, 2, **recurrent, **changes)
        rate = {"sgd": 0.3, "adam": 0.001}[optimizer]  # larger rates amplify float32 rounding: 1 and 0.01 give 2e-5
        schedule = Schedule(rate, num_train_steps=STEPS, decay_scheme="luong5")
        vectors = np.random.RandomState(seed).randn(60, 20).astype(np.float32)
        initial = Initializer("uniform", INIT_WEIGHT, seed, given_vectors(shape, vectors, vectors))
        step = TrainStep(shape, initial, Config(optimizer=optimizer, **(dict(dropout=0.0) | dict(how))), schedule)
        session.run(v1.global_variables_initializer())
        for number in range(STEPS):
            for part in range(parts):
                step.run(session, batches.batch(number, part), dropout_seed(0, rank, number))
        variables = v1.global_variables()
        return dict(zip([v.name for v in variables], session.run(variables), strict=True))


def compare(optimizer: str, attention: str, **changes: Any) -> None:
    assert GLOBAL_BATCH % tfdist.size() == 0
    expected = one_process(lambda: trained(optimizer, attention, 0, 1, seed=1, **changes))
    found = trained(optimizer, attention, tfdist.rank(), tfdist.size(), seed=1 + tfdist.rank(), **changes)
    # The number of Adam's updates and its moments are variables too: all are compared.
    assert_close(found, expected, 1e-5)


def case_nmt_with_sgd() -> None:
    compare("sgd", "normed_bahdanau")


def case_nmt_with_accumulated_steps() -> None:
    """Also if losses are divided by the number of words of all ranks and parts."""
    train = functools.partial(trained, "adam", "scaled_luong")
    sentences, words = (
        one_process(functools.partial(train, 0, 1, seed=1, normalization=by)) for by in ("sentences", "words")
    )
    with inside.settings():
        Processes().configure(accumulate_steps=4)
        own = functools.partial(train, tfdist.rank(), tfdist.size(), seed=1 + tfdist.rank(), parts=4)
        try:
            by_sentences, by_words = own(), own(normalization="words")
        finally:
            tfdist.configure(accumulate_steps=1)
    assert_close(by_sentences, sentences, 1e-5)
    assert_close(by_words, words, 1e-5)
    assert any(np.abs(words[name] - value).max() > 1e-3 for name, value in sentences.items())


def case_nmt_with_variations() -> None:
    """SGD trains the attention that the case with Adam trains."""
    compare("sgd", "scaled_luong")


def case_nmt_with_adam() -> None:
    compare("adam", "scaled_luong")


def case_nmt_with_other_families() -> None:
    """The Transformer's only table gets the gradients of two lookups and of the output layer."""
    tied = dict(share_embedding=True, tie_embeddings="all")
    with subtest("transformer"):
        compare("sgd", "", kind=TransformerArchitecture, num_heads=4, feed_forward_size=30, norm="pre", **tied)
    with subtest("convs2s"):
        compare("sgd", "", kind=ConvS2SArchitecture)


def case_nmt_with_pretrained_words() -> None:
    compare("sgd", "luong", src_pretrained=True, tgt_pretrained=True)


def case_nmt_with_tied_embeddings_and_smoothed_labels() -> None:
    """The table is both embedding and output layer; weight decay shrinks matrices in each update."""
    how = {"label_smoothing": 0.1, "r_drop": 0.5, "weight_decay": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-6}
    narrow = {"src_embedding_size": 12, "tgt_embedding_size": 12}
    compare("adam", "luong", share_embedding=True, tie_embeddings="all", how=how, **narrow)


def case_nmt_drops_by_the_rank() -> None:
    """The result is the mean of the ranks' updates, by their sentences and random numbers, in each step."""
    how = {
        "dropout": 0.3, "output_dropout": 0.2, "src_word_dropout": 0.1, "tgt_word_dropout": 0.1, "r_drop": 1.0,
        "label_smoothing": 0.1, "dropout_mask": "sentence",
    }  # fmt: skip

    def in_turn(size: int) -> dict[str, np.ndarray]:
        """Train each rank's part of a step from the same weights in one process; SGD's mean is that of gradients."""
        batches = [feed(rank, size) for rank in range(size)]
        with tf.Graph().as_default(), v1.Session() as session:
            step = built(how)
            weights, number = v1.trainable_variables(), v1.train.get_global_step()
            session.run(v1.global_variables_initializer())
            for done in range(STEPS):
                start, parts = session.run(weights), []
                for rank in range(size):
                    for variable, value in [*zip(weights, start, strict=True), (number, done)]:
                        variable.load(value, session)
                    step.run(session, batches[rank].batch(done), dropout_seed(0, rank, done))
                    parts.append(session.run(weights))
                for variable, *values in zip(weights, *parts, strict=True):
                    variable.load(np.mean(values, axis=0), session)
            return dict(zip([v.name for v in weights], session.run(weights), strict=True))

    def built(how: Mapping[str, Any]) -> TrainStep:
        shape = LSTMArchitecture(63, 63, 20, 2, 2, encoder_type="bi", attention="scaled_luong")
        config = Config(max_gradient_norm=1e9, **(dict(dropout=0.0) | dict(how)))
        return TrainStep(shape, Initializer("uniform", INIT_WEIGHT, 1), config, Schedule(0.3, num_train_steps=STEPS))

    def together(**more: float) -> dict[str, np.ndarray]:
        batches = feed(tfdist.rank(), tfdist.size())
        with tf.Graph().as_default(), v1.Session() as session:
            step = built(how | more)
            session.run(v1.global_variables_initializer())
            for done in range(STEPS):
                step.run(session, batches.batch(done), dropout_seed(0, tfdist.rank(), done))
            weights = v1.trainable_variables()
            return dict(zip([v.name for v in weights], session.run(weights), strict=True))

    expected, found = one_process(lambda: in_turn(tfdist.size())), together()
    assert_close(found, expected, 1e-5)
    for other in (together(r_drop=0.0), together(dropout=0.0)):
        assert any(np.abs(other[name] - value).max() > 1e-3 for name, value in found.items())


def communication(graph: tf.Graph) -> list[str]:
    """Return the graph's nodes that call Python or tfdist, as all that communicate do."""
    return [op.name for op in graph.get_operations() if "PyFunc" in op.type or "tfdist" in op.name]


def case_nmt_evaluates_and_translates_without_communication() -> None:
    shape = LSTMArchitecture(63, 63, 20, 2, 2, encoder_type="bi", attention="scaled_luong")
    corpus, words = text()
    with tf.Graph().as_default() as training, v1.Session() as session:
        TrainStep(shape, initializer("uniform", 0.1, 1), Config(dropout=0.0), Schedule(0.1, STEPS))
        session.run(v1.global_variables_initializer())
        path = Checkpoints(tempfile.mkdtemp()).save(session, v1.train.Saver(), 1)
    assert communication(training)  # the function does find such nodes
    with tfdist.disable_broadcast():
        weights = TrainedWeights(shape)
        likelihood = LikelihoodModel(weights, words, words, Config())
        translation = TranslationModel(weights, words, words, Config(beam_width=2))
    restore(weights.session, weights.saver, path)
    if tfdist.rank() == 0:  # on one rank only: communication would wait for the others
        assert likelihood.perplexity(corpus) > 1
        assert all(translation.translate(["w1 w2", "w3"]))
    assert not communication(weights.session.graph)


def case_nmt_evaluates_and_saves_at_the_end_of_a_block() -> None:
    """Blocks of 4 steps: an evaluation after step 3 and a stop after step 5 end the block early."""
    seen: list[tuple[int, np.ndarray]] = []

    class Looking(Evaluation):
        def milestone(self, session: Any, step: int, **due: bool) -> None:
            self.save(session, step)

        def save(self, session: Any, step: int) -> None:
            seen.append((step, np.concatenate([w.ravel() for w in session.run(weights)])))

    class StopAfter5:
        left = 5

        def asked(self) -> bool:
            self.left -= 1
            return not self.left

    ranks, shape = Processes(), LSTMArchitecture(63, 63, 20, 2, 2)
    with inside.settings(through_mpi()), tf.Graph().as_default(), v1.Session() as session:
        ranks.configure(sync="bmuf:steps=4")
        schedule = Schedule(0.3, num_train_steps=STEPS)
        config = Config(
            dropout=0.0, num_train_steps=STEPS, steps_per_external_eval=3, evaluate_epochs=False, random_seed=1
        )
        step = TrainStep(shape, initializer("uniform", INIT_WEIGHT, 1 + ranks.rank), config, schedule)
        weights = v1.trainable_variables()
        session.run(v1.global_variables_initializer())
        train(
            step, session, feed(ranks.rank, ranks.size), config, first_step=0, ranks=ranks,
            evaluation=Looking(), outputs=RunOutputs(), stop=StopAfter5().asked, guard=Guard(),
        )  # fmt: skip
        assert [n for n, _ in seen] == [0, 3, 5]
        for number, values in enumerate(everywhere(seen)):
            for (_, own), (done, other) in zip(seen, values, strict=True):
                np.testing.assert_array_equal(own, other, err_msg=f"rank {number} after step {done}")
        assert all(np.abs(b - a).max() > 1e-3 for (_, a), (_, b) in pairwise(seen))
    for value, words in (
        ("average:steps=4:nesterov=1", "block_nesterov is True"),
        ("bmuf", "TFDIST_SYNC=bmuf:steps=16"),
        ("bmuff:steps=4", "--sync='bmuff' is out of range; it takes gradients | average | bmuf | diloco"),
    ):
        told = refusal(lambda value=value: ranks.configure(sync=value))  # type: ignore[misc]
        assert words in told, told


def case_nmt_gathers_values_in_the_order_of_ranks() -> None:
    ranks = Processes()
    wanted = [("x" * 1000 * rank, {"rank": rank}) for rank in range(ranks.size)]
    assert ranks.gather(wanted[ranks.rank]) == wanted


def case_nmt_shares_translation_and_perplexity() -> None:
    corpus, words = text()
    ranks = Processes()
    lines = ["", *(corpus.src.line(i) for i in range(20)), " ", "w1 unknown"]
    directory = Path(tempfile.mkdtemp())
    (directory / "in").write_text("".join(line + "\n" for line in lines))
    shape = LSTMArchitecture(63, 63, 12, 2, 2, encoder_type="bi", attention="scaled_luong")
    searches = [
        Config(infer_batch_size=7, tgt_max_len_infer=12),
        Config(
            infer_batch_size=7,
            tgt_max_len_infer=12,
            beam_width=3,
            num_translations_per_input=2,
            coverage_penalty_weight=0.2,
        ),
        Config(
            infer_batch_size=7,
            tgt_max_len_infer=12,
            sampling_temperature=1.0,
            num_translations_per_input=2,
            random_seed=3,
        ),
    ]
    with tfdist.disable_broadcast():
        weights = TrainedWeights(shape)
        models = [TranslationModel(weights, words, words, settings) for settings in searches]
        likelihood = LikelihoodModel(weights, words, words, Config(batch_size=32))
    random = np.random.default_rng(4)
    for variable in sorted(weights.session.graph.get_collection("variables"), key=lambda each: each.name):
        value = random.uniform(-1, 1, variable.shape)
        weights.session.run(variable.initializer, {variable.initializer.inputs[1]: value})
    for model, settings in zip(models, searches, strict=True):
        with subtest(settings):
            assert translate_file(model, str(directory / "in"), str(directory / "out"), ranks) == len(lines)
            written = ranks.broadcast((directory / "out").read_text() if ranks.rank == 0 else "")
            assert written == "".join(found + "\n" for all_found in model.translate(lines) for found in all_found)
            assert (directory / "out").exists() == (ranks.rank == 0)
    np.testing.assert_allclose(likelihood.perplexity(corpus, ranks), likelihood.perplexity(corpus), rtol=1e-9)


def case_nmt_goes_back_together() -> None:
    """A run with a loss that is not finite on one rank goes back, and ends as a run with half the rate does."""
    corpus, _ = text()
    folder = Path(corpus.src.path).parent
    write_vocabulary(str(folder / "vocab.en"), WORDS)
    write_vocabulary(str(folder / "vocab.de"), WORDS)
    shared = Path(tfdist.broadcast(tempfile.mkdtemp()))
    ranks = Processes()

    def run(name: str, *more: str) -> dict[str, np.ndarray]:
        flags = [
            "--src=en", "--tgt=de", f"--train_prefix={folder}/train", f"--dev_prefix={folder}/train",
            f"--vocab_prefix={folder}/vocab", f"--out_dir={shared / name}", "--num_units=8", "--num_layers=1",
            "--batch_size=8", "--num_train_steps=24", "--random_seed=1", "--noevaluate_epochs", "--beam_width=0",
            "--tgt_max_len_infer=2", *more,
        ]  # fmt: skip
        with contextlib.redirect_stdout(io.StringIO()) as said:
            nmt.run(flags, ranks)
        if ranks.rank == 0 and "rewind" in more[0]:
            assert "Going back to step 0 with 1/2 of the learning rate" in said.getvalue()
        path = tfdist.broadcast(latest(str(shared / name)) if ranks.rank == 0 else None)
        reader = tf.train.load_checkpoint(path)
        return {variable: reader.get_tensor(variable) for variable in reader.get_variable_to_shape_map()}

    run_once = LossGuard.see

    def broken(guard: LossGuard, result: StepResult) -> None:
        first = ranks.rank == ranks.size - 1 and result.global_step == 21 and result.learning_rate == 1.0
        run_once(guard, result._replace(loss_sum=float("nan")) if first else result)

    with mock.patch.object(LossGuard, "see", broken):
        found = run("rewound", "--divergence=rewind")
    expected = run("half", "--learning_rate=0.5")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], name)
