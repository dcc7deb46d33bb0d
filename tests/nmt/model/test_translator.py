"""The model: equal to the NumPy model; names; gradients; what padding and dropout must not do."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import initializer
from nmt.options.config import Config
from nmt.options.model_options import ATTENTIONS
from tests.nmt.model import graphs
from tests.nmt.model.comparisons import (
    Batch,
    assert_control_flows_agree,
    assert_gradients_are_finite_differences,
    assert_loss_is_the_oracles,
    assert_steps_are_the_oracles,
    lstm,
    names,
)
from tests.nmt.model.graphs import architecture, v1

SHAPES: dict[str, dict[str, Any]] = {
    "uni1": dict(encoder_type="uni", num_encoder_layers=1, num_decoder_layers=1),
    "uni3 residual": dict(
        encoder_type="uni",
        num_encoder_layers=3,
        num_decoder_layers=3,
        num_encoder_residual_layers=2,
        num_decoder_residual_layers=2,
    ),
    "bi2": dict(encoder_type="bi", num_encoder_layers=2, num_decoder_layers=2, num_decoder_residual_layers=1),
    "bi4 residual": dict(
        encoder_type="bi",
        num_encoder_layers=4,
        num_decoder_layers=4,
        num_encoder_residual_layers=3,
        num_decoder_residual_layers=3,
        forget_bias=0.3,
    ),
}
VARIANTS = [
    *itertools.product(["uni1", "bi4 residual"], ATTENTIONS, [True]),
    *itertools.product(["uni1", "bi4 residual"], ["scaled_luong", "normed_bahdanau"], [False]),
    ("uni3 residual", "scaled_luong", True),
    ("bi2", "normed_bahdanau", True),
]
SEEN = pytest.mark.long("each attention is compared in other shapes")
LONG_VARIANTS = [
    pytest.param(*variant, marks=SEEN)
    for variant in itertools.product(["uni3 residual", "bi2"], ATTENTIONS, [True])
    if variant not in VARIANTS
]


@pytest.mark.parametrize(("shape", "attention", "output_attention"), [*VARIANTS, *LONG_VARIANTS])
def test_loss_is_that_of_the_numpy_model(shape: str, attention: str, output_attention: bool) -> None:
    """Encoder, attention, depth, residual connections: the summed loss to 1e-5."""
    arch = architecture(**SHAPES[shape], attention=attention, output_attention=output_attention)
    with graphs.model(arch) as (translator, session):
        assert_loss_is_the_oracles(translator, session)


@pytest.mark.parametrize("attention", ATTENTIONS[1:])
def test_unequal_depths_start_from_zeros(attention: str) -> None:
    """pass_hidden_state=False, with encoder and decoder of different depth."""
    arch = architecture(num_decoder_layers=2, pass_hidden_state=False, attention=attention)
    with graphs.model(arch) as (translator, session):
        assert_loss_is_the_oracles(translator, session)


@pytest.mark.parametrize("shape", ["uni1", "bi4 residual"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_steps_for_search_are_those_of_the_numpy_model(shape: str, attention: str) -> None:
    """Logits and weights of the step that search uses, at each position."""
    arch = architecture(**SHAPES[shape], attention=attention)
    with graphs.model(arch) as (translator, session):
        assert_steps_are_the_oracles(translator, session)


@pytest.mark.parametrize(
    ("shape", "attention"),
    [
        ("bi2", "normed_bahdanau"),
        ("uni3 residual", "scaled_luong"),
        *(
            pytest.param("bi2", attention, marks=pytest.mark.long("normed_bahdanau and scaled_luong have all parts"))
            for attention in ATTENTIONS
            if attention != "normed_bahdanau"
        ),
    ],
)
def test_gradients_are_finite_differences(shape: str, attention: str) -> None:
    """Every variable, in float64, along a random direction; dropout on, its masks fixed by the seed."""
    assert_gradients_are_finite_differences(architecture(**SHAPES[shape], attention=attention))


def test_embedding_gradients_stay_sparse() -> None:
    """Only the rows of the batch's words are touched."""
    with graphs.model(architecture(attention="luong")) as (translator, _):
        loss = translator.losses(*Batch().places()).words
        embeddings = [v for v in v1.trainable_variables() if v.name.startswith("embeddings/")]
        assert all(isinstance(g, tf.IndexedSlices) for g in tf.gradients(loss, embeddings))


@pytest.mark.parametrize("attention", ["", "scaled_luong"])
def test_a_batch_without_targets_has_no_loss_and_no_gradient(attention: str) -> None:
    """A rank without a sentence gets zeros, and only finite numbers."""
    batch = Batch()
    batch.arrays[4] = np.zeros(4, np.int32)
    with graphs.model(architecture(attention=attention)) as (translator, session):
        places = batch.places()
        loss = translator.losses(*places).words
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, v1.trainable_variables())]
        values = session.run([loss, *gradients], batch.feed(places))
    assert all(not np.any(value) for value in values)


def test_both_control_flows_give_the_same() -> None:
    """TensorFlow's first and second control flow."""
    assert_control_flows_agree(architecture(**SHAPES["bi2"], attention="scaled_luong"))


def test_dropout_follows_its_seed() -> None:
    """Equal seeds give equal losses, other seeds others; the mean loss stays near the loss without dropout."""
    batch = Batch()
    arch = architecture(**SHAPES["bi2"], attention="luong")
    with tf.Graph().as_default():
        seed = v1.placeholder(tf.int32, [2])
        translator = LSTMTranslator(arch, initializer("uniform", 0.5, seed=5), Config(dropout=0.4), seed)
        loss = translator.losses(*[tf.constant(a) for a in batch.arrays]).words
        plain = LSTMTranslator(arch, initializer()).losses(*[tf.constant(a) for a in batch.arrays]).words
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = [session.run(loss, {seed: [1, k]}) for k in [*range(8), 0]]
            assert losses[0] == losses[8]
            assert len(set(losses)) == 8
            assert np.mean(losses) == pytest.approx(session.run(plain), rel=0.1)


def of_edge(edge: str, rate: Any) -> Config:
    return Config(dropout=0.0, **{edge: rate})


@pytest.mark.parametrize("edge", ["src_word_dropout", "tgt_word_dropout", "output_dropout"])
def test_dropped_words_and_outputs(edge: str) -> None:
    """Each kind has its own masks, which follow the seed; a graph without dropout has no operations for them."""
    arch = architecture(**SHAPES["bi2"], attention="luong")
    with tf.Graph().as_default() as graph, v1.Session() as session:
        seed = v1.placeholder(tf.int32, [2])
        plain = LSTMTranslator(arch, initializer("uniform", 0.5, seed=5), Config(dropout=0.0), seed)
        tensors = [tf.constant(a) for a in Batch().arrays]
        losses = [plain.losses(*tensors).words]
        source, lengths, given, wanted, target_lengths = tensors
        alone = plain.losses(source, lengths, given, wanted, target_lengths, r_drop=5.0)  # two equal passes
        assert not [op for op in graph.get_operations() if "StatelessRandom" in op.type]
        for rate in (0.5, 0.5, 0.999):
            dropping = LSTMTranslator(arch, initializer(), of_edge(edge, rate), seed)
            losses.append(dropping.losses(*tensors).words)
        session.run(v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(alone), session.run([losses[0]] * 2), rtol=1e-5)
        found = [session.run(losses, {seed: [1, k]}) for k in range(8)]
        assert all(one[0] == found[0][0] and one[1] == one[2] for one in found)
        assert len({one[1] for one in found}) > 4 and found[0][0] not in {one[1] for one in found}
        # If all words of a side are dropped to zero, other words on this side give the same loss.
        side = {"src_word_dropout": 0, "tgt_word_dropout": 2}.get(edge)
        if side is not None:
            ids = [tf.reverse(one, [0]) if place == side else one for place, one in enumerate(tensors)]
            none = LSTMTranslator(arch, initializer(), of_edge(edge, 0.999999), seed)
            either = [none.losses(*ids).words, none.losses(*tensors).words, plain.losses(*ids).words]
            changed, dropped, seen = session.run(either, {seed: [1, 0]})
            assert changed == pytest.approx(dropped, rel=1e-6) and seen != pytest.approx(found[0][0], rel=1e-4)
        if edge == "output_dropout":  # without outputs all words are equally probable
            words = int(Batch().arrays[4].sum())
            assert found[0][3] == pytest.approx(words * np.log(arch.tgt_vocab_size), rel=1e-4)


def test_names_without_attention() -> None:
    """Names of single layers have no number, names of stacked layers do."""
    assert names() == lstm("encoder/rnn", 12) | lstm("decoder", 12)
    s = "multi_rnn_cell/cell_"
    assert names(num_encoder_layers=2, num_decoder_layers=2) == (
        lstm(f"encoder/rnn/{s}0", 12)
        | lstm(f"encoder/rnn/{s}1", 12)
        | lstm(f"decoder/{s}0", 12)
        | lstm(f"decoder/{s}1", 12)
    )
    bi = "encoder/bidirectional_rnn"
    decoder = lstm(f"decoder/{s}0", 12) | lstm(f"decoder/{s}1", 12)
    assert names(encoder_type="bi", num_encoder_layers=2, num_decoder_layers=2) == (
        lstm(f"{bi}/fw", 12) | lstm(f"{bi}/bw", 12) | decoder
    )
    four = names(encoder_type="bi", num_encoder_layers=4, num_decoder_layers=4)
    assert {n for n in four if n.startswith("encoder")} == {
        f"{bi}/{d}/{s}{k}/basic_lstm_cell/{w}" for d in ("fw", "bw") for k in "01" for w in ("kernel", "bias")
    }


@pytest.mark.parametrize(
    ("attention", "score"),
    [
        ("luong", {}),
        ("scaled_luong", {"luong_attention/attention_g": []}),
        (
            "bahdanau",
            {"bahdanau_attention/attention_v": [6], "bahdanau_attention/query_layer/kernel": [6, 6]},
        ),
        (
            "normed_bahdanau",
            {
                "bahdanau_attention/attention_v": [6],
                "bahdanau_attention/attention_g": [],
                "bahdanau_attention/attention_b": [6],
                "bahdanau_attention/query_layer/kernel": [6, 6],
            },
        ),
    ],
)
def test_names_with_attention(attention: str, score: dict[str, list[int]]) -> None:
    """With a bidirectional encoder; the decoder's bottom cell reads embedding, attention and its own
    state."""
    found = names(attention=attention, encoder_type="bi", num_encoder_layers=2, num_decoder_layers=2)
    wanted = {f"decoder/attention/{name}": shape for name, shape in score.items()}
    wanted |= lstm("decoder/attention/multi_rnn_cell/cell_0", 18) | lstm(
        "decoder/attention/multi_rnn_cell/cell_1",
        12,
    )
    wanted |= {"decoder/memory_layer/kernel": [12, 6], "decoder/attention/attention_layer/kernel": [18, 6]}
    wanted |= lstm("encoder/bidirectional_rnn/fw", 12) | lstm("encoder/bidirectional_rnn/bw", 12)
    assert found == wanted


def test_fixed_starts() -> None:
    """Biases start at 0, luong's scale at 1, bahdanau's scale at sqrt(1 / units)."""
    for attention, scope, start in (("scaled_luong", "luong", 1.0), ("normed_bahdanau", "bahdanau", 6**-0.5)):
        with tf.Graph().as_default(), v1.Session() as session:
            LSTMTranslator(architecture(attention=attention), initializer())
            session.run(v1.global_variables_initializer())
            prefix = "dynamic_seq2seq/decoder/attention"
            assert float(session.run(_variable(f"{prefix}/{scope}_attention/attention_g"))) == pytest.approx(
                start,
            ), (attention, scope)
            assert not session.run(_variable(f"{prefix}/basic_lstm_cell/bias")).any(), (attention, scope)


def _variable(name: str) -> tf.Variable:
    return next(v for v in v1.global_variables() if v.name == f"{name}:0")
