"""The Transformer against NumPy; gradients; independence of padding, batches and the ranks' dummies."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.parts.initializers import initializer
from nmt.model.registry import make_translator
from nmt.model.transformer.architecture import TransformerArchitecture
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
    "post": {},
    "pre": dict(norm="pre"),
    "learned": dict(positions="learned", max_positions=9),
    "deep": dict(num_encoder_layers=2, num_decoder_layers=3, num_heads=1, norm="pre", positions="learned"),
    "tied": dict(tie_embeddings="decoder", num_decoder_layers=2),
    "all tied": dict(src_vocab_size=13, share_embedding=True, tie_embeddings="all"),
    "language model": dict(language_model=True, num_decoder_layers=2),
}

NONE = Config(dropout=0.0)


def architecture(**changes: Any) -> Any:
    return graphs.architecture("transformer", **changes)


@pytest.mark.parametrize("variant", VARIANTS)
def test_loss_is_that_of_the_numpy_model(variant: str) -> None:
    """For a padded batch, within 1e-5."""
    with graphs.model(architecture(**VARIANTS[variant])) as (translator, session):
        assert_loss_is_the_oracles(translator, session)


@pytest.mark.parametrize("variant", some(VARIANTS, "post", "deep", "all tied", "language model"))
def test_steps_for_search_are_those_of_the_numpy_model(variant: str) -> None:
    """Logits and attention weights of each step, with cached keys and values, within 1e-5."""
    with graphs.model(architecture(**VARIANTS[variant])) as (translator, session):
        assert_steps_are_the_oracles(translator, session)


@pytest.mark.parametrize("variant", ["deep", "all tied"])
def test_gradients_are_finite_differences(variant: str) -> None:
    """Each variable, in float64, along a random direction; all dropouts are on, with masks fixed by the seed."""
    words = dict(src_word_dropout=0.1, tgt_word_dropout=0.1, output_dropout=0.1)
    inner = dict(attention_dropout=0.2, activation_dropout=0.2)
    assert_gradients_are_finite_differences(architecture(**VARIANTS[variant]), **words, **inner)


def test_neighbours_and_padding_change_nothing() -> None:
    """Several translations of a sentence, sentences that do not count, and seven more positions."""
    assert_translations_step_together(architecture(norm="pre", num_decoder_layers=2))
    assert_no_targets_make_no_gradient(architecture())
    assert_padding_changes_nothing(architecture())


@pytest.mark.parametrize("place", ["attention_dropout", "activation_dropout"])
def test_inner_dropouts_follow_the_seed(place: str) -> None:
    """Equal seeds give equal losses, other seeds other losses; without dropout there is no random operation."""
    tensors = Batch().arrays
    with tf.Graph().as_default() as graph, v1.Session() as session:
        seed = v1.placeholder(tf.int32, [2])
        plain = make_translator(architecture(), initializer(), NONE, seed).losses(*map(tf.constant, tensors)).words
        assert not [op for op in graph.get_operations() if "StatelessRandom" in op.type]
        inside: Any = {place: 0.4}
        dropping = make_translator(architecture(), initializer(), dataclasses.replace(NONE, **inside), seed)
        loss = dropping.losses(*map(tf.constant, tensors)).words
        session.run(v1.global_variables_initializer())
        losses = [session.run(loss, {seed: [1, k]}) for k in [*range(6), 0]]
        assert losses[0] == losses[6] and len(set(losses)) == 6
        assert np.mean(losses) == pytest.approx(session.run(plain), rel=0.1)


def test_sentences_beyond_the_positions_are_told() -> None:
    """The error for a longer sentence names the remedy; the longest sentences that fit are read."""
    batch = Batch()  # sources of up to 5 words; targets of up to 4 words and eos
    with graphs.model(architecture(positions="learned", max_positions=5)) as (translator, session):
        places = batch.places()
        loss = translator.losses(*places).words
        assert np.isfinite(session.run(loss, batch.feed(places)))
        longer = Batch(extra=1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="(?s)max_positions.*src_max_len.*5.*6"):
            session.run(loss, longer.feed(places))


def test_starts() -> None:
    """Word vectors have a deviation of 1 / sqrt(width), gains 1, biases 0; equal shapes have different values."""
    with tf.Graph().as_default(), v1.Session() as session:
        make_translator(TransformerArchitecture(500, 500, 64, 2, 2), initializer("uniform", 9.0, seed=3))
        session.run(v1.global_variables_initializer())
        values = {v.op.name: session.run(v) for v in v1.trainable_variables()}
    for name, value in values.items():
        if name.endswith("bias"):
            assert not value.any(), name
        elif name.endswith("gain"):
            assert (value == 1).all(), name
        elif name.startswith("embeddings/"):
            assert value.std() == pytest.approx(1 / 8, rel=0.02), name
        else:
            inputs, outputs = value.shape
            most = np.sqrt(6 / (4 * 64 if "query" in name or "key_value" in name else inputs + outputs))
            assert np.abs(value).max() == pytest.approx(most, rel=0.02), name
    kernels = [v for n, v in values.items() if n.endswith("feed_forward/inner/kernel")]
    assert len({v.tobytes() for v in kernels}) == 4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (dict(num_units=7, num_heads=7), "sinusoidal positions need an even number"),
        (dict(tgt_embedding_size=5), "target words have vectors of 5 numbers, and num_units is 6"),
    ],
)
def test_what_no_model_can_be_built_from(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        architecture(**changes)
