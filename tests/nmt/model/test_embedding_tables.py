"""nmt.model.parts.embedding_tables: shared and pretrained embeddings, and models without a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import Checkpoints, restore
from nmt.model.inference_model import TrainedWeights
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.embedding_tables import given_vectors
from nmt.model.parts.initializers import Initializer, initializer
from nmt.options.config import Config
from nmt.scoring.perplexity import LikelihoodModel
from nmt.search.beam_search import beam_search
from nmt.search.greedy import greedy_search
from nmt.text.batches import Batch, make_batch
from nmt.train.schedule import Schedule
from nmt.train.step import TrainStep
from tests.nmt.model import graphs
from tests.nmt.model.graphs import EOS, SOS, architecture, v1
from tests.nmt.model.slopes import assert_gradients_are_slopes

BI = dict(encoder_type="bi", num_encoder_layers=2, num_decoder_layers=2)
GIVEN = dict(src_pretrained=True, tgt_pretrained=True)
ALONE = dict(language_model=True, pass_hidden_state=False)
CASES: dict[str, dict[str, Any]] = {
    "shared": dict(src_vocab_size=13, share_embedding=True, attention="luong"),
    "pretrained": dict(**GIVEN, **BI, src_embedding_size=4, tgt_embedding_size=9, attention="luong"),
    "pretrained source": dict(src_pretrained=True),
    "pretrained shared": dict(src_vocab_size=13, share_embedding=True, **GIVEN, attention="bahdanau"),
    "wide and residual": dict(
        **BI,
        src_embedding_size=8,
        tgt_embedding_size=5,
        num_encoder_residual_layers=1,
        num_decoder_residual_layers=1,
    ),
    "tied": dict(attention="luong", tie_embeddings="decoder"),
    "tied and narrower": dict(attention="luong", tie_embeddings="decoder", tgt_embedding_size=4),
    "all tied": dict(**BI, src_vocab_size=13, share_embedding=True, attention="luong", tie_embeddings="all"),
    "language model": dict(**ALONE, num_decoder_layers=2, num_decoder_residual_layers=1),
    "language model of given words": dict(**ALONE, src_vocab_size=13, share_embedding=True, **GIVEN),
}


class Sentences:
    """Four sources and targets."""

    def __init__(self, arch: LSTMArchitecture) -> None:
        lengths = [0, 0, 0, 0] if arch.language_model else [5, 1, 3, 2]
        self.source = graphs.sentences(lengths, arch.src_vocab_size)
        target = graphs.sentences([2, 4, 1, 3], arch.tgt_vocab_size, seed=1)
        self.source[0][:2] = [0, EOS][: lengths[0]]  # trained rows in addition to pretrained ones
        self.target_in = [[SOS, *words] for words in target]
        self.target_out = [[*words, EOS] for words in target]
        self.arrays = [
            graphs.time_major(self.source, EOS),
            np.array(lengths, np.int32),
            graphs.time_major(self.target_in, EOS),
            graphs.time_major(self.target_out, EOS),
            np.array([len(words) for words in self.target_out], np.int32),
        ]


LONG = pytest.mark.long("its parts are in other cases")


@pytest.mark.parametrize("case", CASES)
def test_loss_and_steps_are_those_of_the_numpy_model(case: str) -> None:
    """The summed loss and the logits of the search's steps agree to 1e-5."""
    arch = architecture(**CASES[case])
    batch = Sentences(arch)
    with graphs.model(arch) as (translator, session):
        places = [v1.placeholder(tf.int32, [None] * array.ndim) for array in batch.arrays]
        loss = translator.losses(*places).words
        decoder = translator.decoder(translator.encode(*places[:2]))
        state, steps = decoder.initial_state, []
        for row in batch.arrays[2][:3]:
            logits, state, _ = decoder.step(state, tf.constant(row))
            steps.append(logits)
        found, results = session.run((loss, steps), dict(zip(places, batch.arrays, strict=True)))
        oracle = graphs.oracle(arch, session)
    rows = zip(batch.source, batch.target_in, batch.target_out, strict=True)
    assert found == pytest.approx(sum(oracle.loss(*row) for row in rows), rel=1e-5)
    for k, source in enumerate(batch.source):
        decoding = oracle.start(source)
        for time, step in enumerate(results):
            wanted, decoding = decoding.step(batch.arrays[2][time, k])
            np.testing.assert_allclose(step[k], wanted, rtol=1e-5, atol=1e-5, err_msg=f"time {time}, k {k}")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in ("pretrained shared", "language model", "all tied") else LONG)
        for case in CASES
    ],
)
def test_gradients_are_finite_differences(case: str) -> None:
    """With dropout: its masks have the cells' width and not the embedding's."""
    arch = architecture(**CASES[case])

    def loss() -> tf.Tensor:
        translator = LSTMTranslator(arch, initializer("uniform", 0.5, seed=5), Config(dropout=0.3), tf.constant([4, 9]))
        return translator.losses(*map(tf.constant, Sentences(arch).arrays)).words

    assert_gradients_are_slopes(loss)


def embeddings(**changes: Any) -> dict[str, tuple[list[int], bool]]:
    """Return name, shape and whether it is trained for each variable that belongs to no cell."""
    with tf.Graph().as_default():
        LSTMTranslator(architecture(**changes), initializer())
        return {
            v.op.name.removeprefix("embeddings/"): (v.shape.as_list(), v.trainable)
            for v in v1.global_variables()
            if v.op.name.startswith("embeddings/")
        }


def test_a_tied_output_layer_has_no_variable() -> None:
    for case in ("tied", "all tied"):
        with tf.Graph().as_default():
            LSTMTranslator(architecture(**CASES[case]), initializer())
            assert not [v.op.name for v in v1.global_variables() if "output_projection" in v.op.name]


def test_names() -> None:
    """Variables have the tutorial's names; the pretrained words have names of their own."""
    encoder, decoder = "encoder/embedding_encoder", "decoder/embedding_decoder"
    assert embeddings() == {encoder: ([11, 6], True), decoder: ([13, 6], True)}
    assert embeddings(**CASES["shared"]) == {"embedding_share": ([13, 6], True)}
    assert embeddings(**CASES["language model"]) == {decoder: ([13, 6], True)}
    assert embeddings(**CASES["pretrained"]) == {
        encoder: ([3, 4], True),
        f"{encoder}_pretrained": ([8, 4], False),
        decoder: ([3, 9], True),
        f"{decoder}_pretrained": ([10, 9], False),
    }
    assert embeddings(**CASES["language model of given words"]) == {
        "embedding_share": ([3, 6], True),
        "embedding_share_pretrained": ([10, 6], False),
    }
    assert len(embeddings(**CASES["pretrained source"])) == 3


def test_a_language_model_has_no_encoder() -> None:
    with tf.Graph().as_default():
        LSTMTranslator(architecture(**CASES["language model"]), initializer())
        assert not [v.op.name for v in v1.global_variables() if "encoder" in v.op.name]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(src_embedding_size=4, num_encoder_residual_layers=1), "must be between 0 and 0"),
        (dict(tgt_embedding_size=4, num_decoder_residual_layers=1), "num_decoder_residual_layers is 1"),
    ],
)
def test_architecture_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        architecture(**changes)


class Training:
    """A training step with its session and checkpoints."""

    def __init__(self, shape: LSTMArchitecture, directory: Path, initial: Initializer | None = None) -> None:
        with tf.Graph().as_default() as self.graph:
            schedule = Schedule(0.5, num_train_steps=9)
            start = initial or Initializer("uniform", 0.8, seed=5)
            self._step = TrainStep(shape, start, Config(optimizer="adam", max_gradient_norm=0.5, dropout=0.0), schedule)
            self.saver = v1.train.Saver()
            self.session = v1.Session()
            self.session.run(v1.global_variables_initializer())
        self._directory = directory

    def run(self, batch: Batch, steps: int = 2) -> list[float]:
        """Run this number of steps and return their losses and gradient norms."""
        results = [self._step.run(self.session, batch, np.array([1, 2], np.int32)) for _ in range(steps)]
        return [figure for result in results for figure in (result.loss_sum, result.grad_norm)]

    def save(self) -> tuple[str, dict[str, np.ndarray]]:
        """Save a checkpoint and return its path and contents."""
        path = Checkpoints(self._directory).save(self.session, self.saver, 1)
        reader = tf.train.load_checkpoint(path)
        return path, {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def toy_batch(toy: Any) -> Batch:
    """Return a batch of the first sentences."""
    return make_batch(range(6), toy.train, toy.src_vocab, toy.tgt_vocab, None, None, 6, 1)


def test_pretrained_words_stay_and_the_marks_are_trained(toy: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    shape = LSTMArchitecture(
        10, 10, 8, 1, 1, src_pretrained=True, tgt_pretrained=True, src_embedding_size=5, tgt_embedding_size=6
    )
    vectors = [rng.standard_normal((7, size)).astype(np.float32) for size in (5, 6)]
    given = given_vectors(shape, *vectors)
    training = Training(shape, tmp_path, Initializer(seed=5, given=given))
    before = training.save()[1]
    training.run(toy_batch(toy))
    path, after = training.save()
    for side, rows in zip(("encoder", "decoder"), vectors, strict=True):
        name = f"embeddings/{side}/embedding_{side}"
        np.testing.assert_array_equal(after[f"{name}_pretrained"], rows, err_msg=f"side {side}")
        assert f"{name}_pretrained/Adam" not in after, side
    assert not np.array_equal(
        before["embeddings/decoder/embedding_decoder"], after["embeddings/decoder/embedding_decoder"]
    )
    # A graph for evaluation needs no file: the checkpoint has the vectors.
    weights = TrainedWeights(shape)
    likelihood = LikelihoodModel(weights, toy.src_vocab, toy.tgt_vocab, Config())
    restore(weights.session, weights.saver, path)
    assert likelihood.perplexity(toy.dev) > 1
    with pytest.raises(ValueError, match="embedding_encoder_pretrained is not trained: the initializer must be given"):
        Training(shape, tmp_path, Initializer())


def test_given_vectors_are_not_in_the_graph_definition() -> None:
    vectors = np.ones((40_000, 6), np.float32)
    shape = architecture(src_vocab_size=40_003, src_pretrained=True)
    with tf.Graph().as_default() as graph:
        LSTMTranslator(shape, Initializer(given=given_vectors(shape, vectors, None)))
        assert graph.as_graph_def().ByteSize() < vectors.nbytes / 4


def test_given_vectors_must_fit() -> None:
    shape = architecture(**CASES["pretrained"])
    fitting = np.zeros((8, 4), np.float32)
    with pytest.raises(ValueError, match=r"embedding_encoder_pretrained needs vectors \[8, 4\]; they are \[8, 5\]"):
        given_vectors(shape, np.zeros((8, 5), np.float32), None)
    with pytest.raises(ValueError, match=r"embedding_decoder_pretrained needs vectors \[10, 9\]; there are none"):
        given_vectors(shape, fitting, None)
    shared = architecture(**CASES["pretrained shared"])
    assert list(given_vectors(shared, np.zeros((10, 6)), None)) == ["embeddings/embedding_share_pretrained"]


@pytest.mark.parametrize("case", ["language model", "language model of given words"])
def test_a_language_model_writes_from_nothing(case: str) -> None:
    """Greedy and beam search write two sentences from sources without words."""
    arch = architecture(**CASES[case])
    with graphs.model(arch, 2.0) as (translator, session):
        nothing = (translator, tf.zeros([0, 2], tf.int32), tf.zeros([2], tf.int32), tf.constant(5), SOS, EOS)
        ids, (beams, scores) = session.run([greedy_search(*nothing), beam_search(*nothing, beam_width=3)])
        decoding, word = graphs.oracle(arch, session).start([]), SOS
    wanted: list[int] = []
    while word != EOS and len(wanted) < 5:
        logits, decoding = decoding.step(word)
        word = int(logits.argmax())
        wanted.append(word)
    assert ids.tolist() == [wanted, wanted]
    np.testing.assert_array_equal(beams[0], beams[1])
    assert scores[0, 0] >= scores[0, 1]
