"""Kinds of cells, encoder and decoders of GNMT, and placement of layers on GPUs."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import initializer
from nmt.model.parts.placement import Placement
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


def shape(kind: str, layers: int, residual: int | tuple[int, int] = 0, **changes: Any) -> dict[str, Any]:
    """Return settings of an encoder of this kind and a decoder with the same layers, unless ``changes`` differ."""
    encoder, decoder = residual if isinstance(residual, tuple) else (residual, residual)
    depths = dict(num_encoder_layers=layers, num_decoder_layers=layers)
    residuals = dict(num_encoder_residual_layers=encoder, num_decoder_residual_layers=decoder)
    return dict(encoder_type=kind) | depths | residuals | changes


VARIANTS: dict[str, dict[str, Any]] = {
    "gru, no attention": shape("bi", 2, 2, unit_type="gru"),
    "gru": shape("uni", 2, 1, unit_type="gru", attention="scaled_luong"),
    "layer_norm_lstm, no attention": shape("uni", 3, 2, unit_type="layer_norm_lstm", forget_bias=0.3),
    "layer_norm_lstm": shape("bi", 2, unit_type="layer_norm_lstm", attention="normed_bahdanau"),
    "nas, no attention": shape("bi", 2, unit_type="nas"),
    "nas": shape("uni", 2, 1, unit_type="nas", attention="luong"),
    "gnmt encoder, no attention": shape("gnmt", 2),
    "gnmt encoder, standard": shape("gnmt", 3, 1, attention="normed_bahdanau"),
    "gnmt": shape("gnmt", 3, 1, attention="scaled_luong", attention_architecture="gnmt"),
    "gnmt_v2": shape("gnmt", 4, 2, attention="normed_bahdanau", attention_architecture="gnmt_v2"),
    "gnmt over uni": shape("uni", 3, 2, attention="luong", attention_architecture="gnmt"),
    "gnmt_v2 over bi": shape(
        "bi", 2, (0, 1), attention="bahdanau", attention_architecture="gnmt_v2", output_attention=False
    ),
    "gnmt_v2 of one layer": shape("uni", 1, attention="luong", attention_architecture="gnmt_v2"),
    "gnmt, shallower": shape(
        "gnmt",
        3,
        attention="scaled_luong",
        attention_architecture="gnmt",
        num_decoder_layers=1,
        pass_hidden_state=False,
    ),
    "gnmt_v2 of gru, deeper": shape(
        "gnmt",
        2,
        (0, 1),
        attention="luong",
        attention_architecture="gnmt_v2",
        num_decoder_layers=3,
        pass_hidden_state=False,
        unit_type="gru",
    ),
    "gnmt of nas": shape("gnmt", 2, attention="luong", attention_architecture="gnmt", unit_type="nas"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_figures_are_those_of_the_numpy_model(variant: str) -> None:
    """Check the training loss and the search's steps, which are different graphs."""
    with graphs.model(architecture(**VARIANTS[variant])) as (translator, session):
        assert_loss_is_the_oracles(translator, session)
        assert_steps_are_the_oracles(translator, session)


@pytest.mark.parametrize(
    "variant",
    [
        "gnmt_v2",
        *(
            pytest.param(variant, marks=pytest.mark.long("the same cells and layers in another order"))
            for variant in (
                "gru",
                "layer_norm_lstm",
                "nas",
                "nas, no attention",
                "gnmt encoder, no attention",
                "gnmt encoder, standard",
                "gnmt",
                "gnmt_v2 over bi",
                "gnmt_v2 of gru, deeper",
            )
        ),
    ],
)
def test_gradients_are_finite_differences(variant: str) -> None:
    """With dropout, through kernels applied before the loop and inside it."""
    assert_gradients_are_finite_differences(architecture(**VARIANTS[variant]))


@pytest.mark.parametrize(
    "variant", [pytest.param("gru", marks=pytest.mark.long("the loop over cells is one")), "gnmt_v2 of one layer"]
)
def test_both_control_flows_give_the_same(variant: str) -> None:
    """Check a cell state of one part, and the loop of the bottom layer."""
    assert_control_flows_agree(architecture(**VARIANTS[variant]))


def test_gnmt_decoders_differ() -> None:
    """They differ in the attention that upper layers see, and are equal if there is none."""
    losses = {}
    for layers in (1, 2):
        for kind in ("gnmt", "gnmt_v2"):
            changes = shape("uni", 2, attention="luong", attention_architecture=kind, num_decoder_layers=layers)
            with graphs.model(architecture(**changes, pass_hidden_state=False)) as (translator, session):
                loss = translator.losses(*[tf.constant(a) for a in Batch().arrays]).words
                losses[layers, kind] = session.run(loss)
    assert losses[1, "gnmt"] == pytest.approx(losses[1, "gnmt_v2"], rel=1e-6)
    assert losses[2, "gnmt"] != pytest.approx(losses[2, "gnmt_v2"], rel=1e-4)


def test_names_of_cells() -> None:
    """Cells have TensorFlow 1's names; kernels have [input 6 + state 6] rows."""
    assert names(unit_type="gru") == {
        f"{scope}/gru_cell/{part}/{name}": ([12] if name == "kernel" else []) + [width]
        for scope in ("encoder/rnn", "decoder")
        for part, width in (("gates", 12), ("candidate", 6))
        for name in ("kernel", "bias")
    }
    norms = [
        f"{part}/{name}" for part in ["input", "transform", "forget", "output", "state"] for name in ("gamma", "beta")
    ]
    assert names(unit_type="layer_norm_lstm") == {
        f"{scope}/layer_norm_basic_lstm_cell/{name}": [12, 24] if name == "kernel" else [6]
        for scope in ("encoder/rnn", "decoder")
        for name in ("kernel", *norms)
    }
    assert names(unit_type="nas") == {
        f"{scope}/nas_cell/{name}": [6, 48]
        for scope in ("encoder/rnn", "decoder")
        for name in ("kernel", "recurrent_kernel")
    }
    # Also inside a loop: [attention 6] for the bottom layer, [layer below 6] for the upper layer.
    nas = names(**VARIANTS["nas"])
    assert nas["decoder/attention/multi_rnn_cell/cell_0/nas_cell/kernel"] == [12, 48]
    assert nas["decoder/attention/multi_rnn_cell/cell_1/nas_cell/kernel"] == [6, 48]


def test_names_of_gnmt() -> None:
    """The wrapper is in the bottom cell's scope; a single upper layer of the encoder has no number."""
    both, decoder = "encoder/bidirectional_rnn", "decoder/multi_rnn_cell"
    bottom = f"{decoder}/cell_0_attention/attention"
    wanted = lstm(f"{both}/fw", 12) | lstm(f"{both}/bw", 12) | lstm("encoder/rnn", 18)
    wanted |= lstm(bottom, 18) | lstm(f"{decoder}/cell_1", 18) | {"decoder/memory_layer/kernel": [6, 6]}
    for kind in ("gnmt", "gnmt_v2"):
        changes = shape("gnmt", 2, attention="scaled_luong", attention_architecture=kind)
        assert names(**changes) == wanted | {f"{bottom}/luong_attention/attention_g": []}, kind
    three = names(**shape("gnmt", 3, attention="normed_bahdanau", attention_architecture="gnmt"))
    assert three[f"{bottom}/bahdanau_attention/query_layer/kernel"] == [6, 6]
    assert three["encoder/rnn/multi_rnn_cell/cell_0/basic_lstm_cell/kernel"] == [18, 24]
    assert three["encoder/rnn/multi_rnn_cell/cell_1/basic_lstm_cell/kernel"] == [12, 24]
    # The context is as wide as the memory: [embedding 6; context 12; state 6], [below 6; context 12; state 6].
    wide = names(**VARIANTS["gnmt_v2 over bi"])
    assert wide[f"{bottom}/basic_lstm_cell/kernel"] == wide[f"{decoder}/cell_1/basic_lstm_cell/kernel"] == [24, 24]
    assert names(**VARIANTS["gnmt_v2 of one layer"])[f"{bottom}/basic_lstm_cell/kernel"] == [18, 24]


def test_fixed_starts_of_cells() -> None:
    """The GRU keeps its state at first; layer normalisation starts with scale 1 and shift 0."""
    for unit_type, starts in (
        ("gru", {"gates/bias": 1.0, "candidate/bias": 0.0}),
        ("layer_norm_lstm", {"forget/gamma": 1.0, "state/gamma": 1.0, "input/beta": 0.0, "state/beta": 0.0}),
    ):
        with tf.Graph().as_default(), v1.Session() as session:
            LSTMTranslator(architecture(unit_type=unit_type), initializer())
            session.run(v1.global_variables_initializer())
            for name, start in starts.items():
                found = [v for v in v1.global_variables() if v.name.endswith(f"{name}:0")]
                assert len(found) == 2, (unit_type, name)
                assert all((value == start).all() for value in session.run(found)), (unit_type, name)


def test_placement_deals_layers_to_gpus() -> None:
    """Layers go to the GPUs in turn; the output layer goes to a GPU without decoder layers, if there is one."""
    two = Placement(2)
    assert [two.layer(k) for k in range(3)] == ["/gpu:0", "/gpu:1", "/gpu:0"]
    assert Placement(4).output(2) == "/gpu:2"
    assert two.output(2) == "/gpu:1"
    assert {Placement(0).layer(3), Placement(0).output(2)} == {"/cpu:0"}
    assert [two.embedding(words) for words in (50_000, 50_001)] == ["/gpu:0", "/cpu:0"]


def placed_loss(num_gpus: int) -> tuple[float, dict[str, str]]:
    """Return the loss of a GNMT model and the device of each variable."""
    with tf.Graph().as_default():
        translator = LSTMTranslator(architecture(**VARIANTS["gnmt"]), initializer(seed=3), num_gpus=num_gpus)
        loss = translator.losses(*[tf.constant(a) for a in Batch().arrays]).words
        devices = {v.op.name: v.device.removeprefix("/device:") for v in v1.global_variables()}
        with v1.Session(config=v1.ConfigProto(allow_soft_placement=True)) as session:
            session.run(v1.global_variables_initializer())
            return float(session.run(loss)), devices


def test_placement_of_gnmt() -> None:
    """The two directions are on two GPUs, the other layers after the forward one, the output after the decoder.
    The loss does not change, and the CPU replaces missing GPUs."""
    wanted, devices = placed_loss(0)
    assert set(devices.values()) == {"CPU:0"}
    assert placed_loss(1)[0] == pytest.approx(wanted, rel=1e-6)
    loss, devices = placed_loss(4)
    assert loss == pytest.approx(wanted, rel=1e-6)
    for name, gpu in (
        ("embeddings/encoder/embedding_encoder", 0),
        ("embeddings/decoder/embedding_decoder", 0),
        ("encoder/bidirectional_rnn/fw/basic_lstm_cell/kernel", 0),
        ("encoder/bidirectional_rnn/bw/basic_lstm_cell/kernel", 1),
        ("encoder/rnn/multi_rnn_cell/cell_0/basic_lstm_cell/kernel", 1),
        ("encoder/rnn/multi_rnn_cell/cell_1/basic_lstm_cell/kernel", 2),
        ("decoder/memory_layer/kernel", 0),
        ("decoder/multi_rnn_cell/cell_0_attention/attention/basic_lstm_cell/kernel", 0),
        ("decoder/multi_rnn_cell/cell_2/basic_lstm_cell/kernel", 2),
        ("decoder/output_projection/kernel", 3),
    ):
        assert devices[name if name in devices else f"dynamic_seq2seq/{name}"] == f"GPU:{gpu}", name
