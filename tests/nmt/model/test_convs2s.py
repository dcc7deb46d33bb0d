"""The convolutional model against the NumPy one; gradients; what padding, batches and dummies must not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.convs2s.architecture import ConvS2SArchitecture
from nmt.model.parts.initializers import initializer
from nmt.model.registry import make_translator
from nmt.options.config import Config
from tests.nmt.model import graphs
from tests.nmt.model.comparisons import (
    Batch,
    assert_gradients_are_finite_differences,
    assert_loss_is_the_oracles,
    assert_no_targets_make_no_gradient,
    assert_padding_changes_nothing,
    assert_steps_are_the_oracles,
    assert_translations_step_together,
    some,
)
from tests.nmt.model.graphs import v1

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": dict(max_positions=12),
    "wide": dict(kernel_width=5, num_encoder_layers=2),
    "narrow": dict(kernel_width=1, num_decoder_layers=2),
    "deep": dict(num_encoder_layers=3, num_decoder_layers=3, src_embedding_size=4, tgt_embedding_size=4),
    "tied": dict(tie_embeddings="decoder", src_embedding_size=4, tgt_embedding_size=4),
    "all tied": dict(src_vocab_size=13, share_embedding=True, tie_embeddings="all"),
    "language model": dict(language_model=True, num_decoder_layers=2),
}


def architecture(**changes: Any) -> Any:
    return graphs.architecture("convs2s", **changes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_is_that_of_the_numpy_model(variant: str) -> None:
    """The loss of a padded batch, to 1e-5."""
    with graphs.model(architecture(**VARIANTS[variant])) as (translator, session):
        assert_loss_is_the_oracles(translator, session)


@pytest.mark.parametrize("variant", some(VARIANTS, "plain", "tied", "language model"))
def test_steps_for_search_are_those_of_the_numpy_model(variant: str) -> None:
    """Logits and weights of each step, which keeps the inputs of convolutions, to 1e-5."""
    with graphs.model(architecture(**VARIANTS[variant])) as (translator, session):
        assert_steps_are_the_oracles(translator, session)


@pytest.mark.parametrize("variant", ["wide", "tied"])
def test_gradients_are_finite_differences(variant: str) -> None:
    """Every variable, in float64, along a random direction; dropout on, its masks fixed by the seed."""
    changes = VARIANTS[variant]
    assert_gradients_are_finite_differences(architecture(**changes))


def test_the_encoders_gradient_is_divided_by_the_number_of_attentions() -> None:
    """Gradients of its layers are divided, not those of the word vectors (section 3.4); outputs stay the same."""
    found = []
    for layers in (1, 2):
        arch = architecture(num_decoder_layers=layers)
        with graphs.model(arch) as (translator, session):
            outputs = translator.encode(*map(tf.constant, Batch().arrays[:2])).outputs
            weights = [v for v in v1.trainable_variables() if "encoder/layer_0/direction" in v.name]
            found.append(session.run([outputs, *tf.gradients(tf.reduce_sum(outputs**2), weights)]))
    (first, whole), (second, half) = found
    np.testing.assert_allclose(first, second, rtol=1e-6)
    np.testing.assert_allclose(half, whole / 2, rtol=1e-5)


def test_neighbours_and_padding_change_nothing() -> None:
    """Several translations of a sentence, sentences that do not count, seven more positions."""
    assert_translations_step_together(architecture(num_decoder_layers=2))
    assert_no_targets_make_no_gradient(architecture())
    assert_padding_changes_nothing(architecture(kernel_width=5, num_encoder_layers=2))


def test_starts() -> None:
    """Variances of section 3.5: kernels' depend on dropout, gates' are four times as large; biases are 0."""
    with tf.Graph().as_default(), v1.Session() as session:
        arch = ConvS2SArchitecture(500, 500, 64, 2, 2, src_embedding_size=32, tgt_embedding_size=32)
        make_translator(arch, initializer("uniform", 9.0, seed=3), Config(dropout=0.2), tf.constant([1, 2]))
        session.run(v1.global_variables_initializer())
        values = {v.op.name: session.run(v) for v in v1.trainable_variables()}
    for name, value in values.items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif name.endswith("output_projection/kernel"):
            assert value.std() == pytest.approx(np.sqrt(0.8 / 64), rel=0.05)
        elif name.startswith("embeddings/") or name.endswith("positions"):
            assert value.std() == pytest.approx(0.1, rel=0.05), name
        elif name.endswith("direction"):
            gated = value.shape == (3 * 64, 2 * 64)
            keep = 0.8 if gated or "/input/" in name else 1.0  # of layers with dropped inputs
            wanted = np.sqrt((4 if gated else 1) * keep / len(value))
            assert value.std() == pytest.approx(wanted, rel=0.05), name
            lengths = values[name.replace("direction", "length")]
            np.testing.assert_allclose(lengths, wanted * np.sqrt(len(value)), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(tgt_embedding_size=5), "source words have vectors of 6 numbers, target words of 5"),
    ],
)
def test_what_no_model_can_be_built_from(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        architecture(**changes)
