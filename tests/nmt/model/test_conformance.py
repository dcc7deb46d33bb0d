"""Figures that the TensorFlow NMT tutorial states for its models.

Two sentence pairs, vocabularies of five words, five units, one training step; tolerance 5 % + 0.05 as in the tutorial.
Its weights all start from one operation seed, so that variables of equal shape are equal. The models here get the same
initial values; the dropout of the training step differs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import Initializer
from nmt.options.config import Config
from nmt.options.model_options import ATTENTIONS
from nmt.search.beam_search import beam_search
from tests.nmt.model.graphs import v1

# Source words: eos a b c d. Target words: sos eos a b c. The two pairs: "a a b b c" -> "a b c b c".
# And "a b b" -> "a b c b".
SOS, EOS = 0, 1
SOURCE = np.array([[1, 1, 2, 2, 3], [1, 2, 2, 0, 0]], np.int32).T
SOURCE_LENGTHS = np.array([5, 3], np.int32)
TARGET_IN = np.array([[0, 2, 3, 4, 3, 4], [0, 2, 3, 4, 3, 1]], np.int32).T
TARGET_OUT = np.array([[2, 3, 4, 3, 4, 1], [2, 3, 4, 3, 1, 1]], np.int32).T
TARGET_LENGTHS = np.array([6, 5], np.int32)
MOST_STEPS = 100

UNI1 = dict(num_encoder_layers=1, num_decoder_layers=1)
TWO = dict(num_encoder_layers=2, num_decoder_layers=2)
FOUR = dict(num_encoder_layers=4, num_decoder_layers=4)
RESIDUAL = dict(num_encoder_residual_layers=2, num_decoder_residual_layers=2)
GNMT = dict(encoder_type="gnmt", attention="scaled_luong", **FOUR)


class Figures(NamedTuple):
    """Losses per sentence before and after the training step, and the sum of the logits of a greedy search."""

    train_loss: float
    eval_loss: float
    logits_sum: float


STATED: dict[str, tuple[dict[str, Any], Figures]] = {
    "uni": (UNI1, Figures(8.8516, 8.8440, -1.0809)),
    "bi": (dict(encoder_type="bi", **FOUR, **RESIDUAL), Figures(8.8520, 8.8291, -2.8148)),
    **{name: (dict(attention=name, **TWO), Figures(8.8519, 8.8517, -0.02637)) for name in ATTENTIONS[1:]},
    "four layers": (dict(attention="scaled_luong", **FOUR), Figures(8.8519, 8.8517, -0.02665)),
    "gnmt": (dict(attention_architecture="gnmt", **GNMT), Figures(8.8519, 8.8443, -1.1085)),
    "gnmt_v2": (dict(attention_architecture="gnmt_v2", **GNMT), Figures(8.8519, 8.8444, -1.1095)),
}


class OneSeed(Initializer):
    """Every variable starts from the same operation seed."""

    def for_variable(self, name: str, stated: Any = None) -> Any:
        """Return the tutorial's initializer, which does not depend on the name."""
        return self.draw(self.seed)


def architecture(**changes: Any) -> LSTMArchitecture:
    """Return the architecture of the tutorial's test model."""
    return LSTMArchitecture(5, 5, 5, forget_bias=0.0, **changes)


def greedy_logits_sum(translator: LSTMTranslator, session: Any) -> float:
    """Return the sum over all positions until both sentences have ended, positions after an end included."""
    memory = translator.encode(tf.constant(SOURCE), tf.constant(SOURCE_LENGTHS))
    decoder = translator.decoder(memory)
    start = tf.nest.flatten(decoder.initial_state)
    places = [v1.placeholder(value.dtype, value.shape) for value in start]
    words = v1.placeholder(tf.int32, [2])
    logits, after, _ = decoder.step(tf.nest.pack_sequence_as(decoder.initial_state, places), words)
    state, written, ended, total = session.run(start), np.full(2, SOS), np.zeros(2, bool), 0.0
    for _ in range(MOST_STEPS):
        fed = dict(zip(places, state, strict=True)) | {words: written}
        values, state = session.run([logits, tf.nest.flatten(after)], fed)
        written, total = values.argmax(1), total + float(values.sum())
        ended |= written == EOS
        if ended.all():
            break
    return total


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.long("the same attentions and layers as others"))
        if case in ("bahdanau", "normed_bahdanau", "luong", "bi", "four layers", "gnmt")
        else case
        for case in STATED
    ],
)
def test_stated_figures(case: str) -> None:
    """Check the training loss, then evaluation and greedy inference with the weights after one step."""
    changes, stated = STATED[case]
    with tf.Graph().as_default(), v1.Session() as session:
        start = OneSeed("uniform", 0.1, seed=3)
        training = LSTMTranslator(architecture(**changes), start, Config(dropout=0.5), tf.constant([3, 0]))
        translator = LSTMTranslator(architecture(**changes), start)
        batch = [tf.constant(a) for a in (SOURCE, SOURCE_LENGTHS, TARGET_IN, TARGET_OUT, TARGET_LENGTHS)]
        train_loss, eval_loss = (model.losses(*batch).words / 2 for model in (training, translator))
        variables = v1.trainable_variables()
        gradients, _ = tf.clip_by_global_norm(tf.gradients(train_loss, variables), 5.0)
        with tf.control_dependencies([train_loss]):
            update = v1.train.GradientDescentOptimizer(1.0).apply_gradients(zip(gradients, variables, strict=True))
        session.run(v1.global_variables_initializer())
        before = session.run(train_loss)
        session.run(update)
        found = Figures(before, session.run(eval_loss), greedy_logits_sum(translator, session))
    for name, value, wanted in zip(Figures._fields, found, stated, strict=True):
        assert value == pytest.approx(wanted, abs=0.05 + 0.05 * abs(wanted)), name


@pytest.mark.parametrize(
    ("changes", "stated"),
    [
        (UNI1, [["b b b b", "b b b <s>", "b b b c"], ["b b b b", "a b b b", "b b b <s>"]]),
        (dict(attention="scaled_luong", **TWO), [["", "<s> a <s> a"], ["", "b"]]),
        (dict(attention_architecture="gnmt", **GNMT), [[""], [""]]),
    ],
    ids=["uni", "attention", "gnmt"],
)
def test_stated_beams(changes: dict[str, Any], stated: list[list[str]]) -> None:
    """Check the best of three beams of at most four words, before any training."""
    words = ["<s>", "</s>", "a", "b", "c"]
    with tf.Graph().as_default(), v1.Session() as session:
        translator = LSTMTranslator(architecture(**changes), OneSeed("uniform", 0.1, seed=3))
        source = tf.constant(SOURCE), tf.constant(SOURCE_LENGTHS)
        ids, *_ = beam_search(translator, *source, tf.constant(4), SOS, EOS, 3)
        session.run(v1.global_variables_initializer())
        for beams, wanted in zip(session.run(ids), stated, strict=True):
            texts = [" ".join(words[i] for i in beam).split("</s>")[0].strip() for beam in beams]
            assert texts[: len(wanted)] == wanted, beams


@pytest.mark.parametrize(("init_op", "stated"), [("glorot_normal", 8.9779), ("glorot_uniform", 8.7644)])
def test_stated_loss_of_glorot(init_op: str, stated: float) -> None:
    """Check the training loss of one layer before any step."""
    with tf.Graph().as_default(), v1.Session() as session:
        training = LSTMTranslator(
            architecture(**UNI1), OneSeed(init_op, seed=3), Config(dropout=0.5), tf.constant([3, 0])
        )
        batch = [tf.constant(a) for a in (SOURCE, SOURCE_LENGTHS, TARGET_IN, TARGET_OUT, TARGET_LENGTHS)]
        session.run(v1.global_variables_initializer())
        loss = session.run(training.losses(*batch).words / 2)
    assert loss == pytest.approx(stated, rel=0.05, abs=0.05)


def test_stated_sums_of_the_initialiser_alone() -> None:
    stated = {(10, 20): 0.0580249, (5, 5): -0.4481545, (10, 5): -0.6498364, (15, 20): -0.4863433}
    for shape, wanted in stated.items():
        with tf.Graph().as_default(), v1.Session() as session:
            draw = Initializer("uniform", 0.1).draw(seed=3)
            assert session.run(draw(shape, tf.float32)).sum() == pytest.approx(wanted, abs=1e-6), shape


def test_stated_sums_of_initial_weights() -> None:
    """Check the sum of initial weights for each shape in the tutorial's models, as TensorFlow draws them."""
    with tf.Graph().as_default(), v1.Session() as session:
        LSTMTranslator(architecture(attention_architecture="gnmt", **GNMT), OneSeed("uniform", 0.1, seed=3))
        session.run(v1.global_variables_initializer())
        values = {v.name.removesuffix(":0"): session.run(v) for v in v1.trainable_variables()}
    prefix = "dynamic_seq2seq"
    assert TARGET_LENGTHS.sum() == 11  # words that a perplexity counts
    for name, shape, stated in (
        ("embeddings/encoder/embedding_encoder", (5, 5), -0.4481545),
        (f"{prefix}/encoder/bidirectional_rnn/bw/basic_lstm_cell/kernel", (10, 20), 0.0580249),
        (f"{prefix}/encoder/rnn/multi_rnn_cell/cell_0/basic_lstm_cell/kernel", (15, 20), -0.4863433),
        (f"{prefix}/decoder/multi_rnn_cell/cell_3/basic_lstm_cell/kernel", (15, 20), -0.4863433),
        (f"{prefix}/decoder/output_projection/kernel", (5, 5), -0.4481545),
    ):
        assert values[name].shape == shape, (name, shape)
        assert values[name].sum() == pytest.approx(stated, abs=1e-6), name
