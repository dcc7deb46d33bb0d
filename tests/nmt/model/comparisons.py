"""Checks for every model: equal to the NumPy model, and gradients equal to finite differences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.interface import Translator
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import initializer
from nmt.model.registry import make_translator
from nmt.options.config import Config
from tests.nmt.model import graphs
from tests.nmt.model.graphs import EOS, SOS, v1
from tests.nmt.model.slopes import assert_gradients_are_slopes


def some(variants: Iterable[str], *chosen: str) -> list[Any]:
    """Return the chosen variants, and the others marked as long tests."""
    seen = pytest.mark.long("each part is in another variant")
    return [one if one in chosen else pytest.param(one, marks=seen) for one in variants]


class Batch:
    """Ragged sentences, one of which has no target."""

    def __init__(self, extra: int = 0) -> None:
        self.source = graphs.sentences([5, 1, 3, 2], 11)
        self.target = graphs.sentences([2, 4, 0, 3], 13, seed=1)
        self.target_in = [[SOS, *t] for t in self.target]
        self.target_out = [[*t, EOS] for t in self.target]
        # The third sentence is a rank's dummy: it has a source but counts for nothing.
        self.target_lengths = [3, 5, 0, 4]
        self.arrays = [
            graphs.time_major(self.source, EOS, extra),
            np.array([5, 1, 3, 2], np.int32),
            graphs.time_major(self.target_in, EOS, extra),
            graphs.time_major(self.target_out, EOS, extra),
            np.array(self.target_lengths, np.int32),
        ]

    def places(self) -> list[Any]:
        """Return placeholders without static sizes."""
        return [v1.placeholder(tf.int32, [None] * a.ndim) for a in self.arrays]

    def feed(self, places: list[Any]) -> dict[Any, np.ndarray]:
        """Return the feed of the batch for these placeholders."""
        return dict(zip(places, self.arrays, strict=True))


def assert_loss_is_the_oracles(translator: Translator, session: Any) -> None:
    """Compare the summed loss of a padded batch with the NumPy model's, to 1e-5."""
    batch = Batch(extra=2)
    places = batch.places()
    loss = session.run(translator.losses(*places).words, batch.feed(places))
    expected = graphs.oracle(translator.architecture, session)
    rows = zip(batch.source, batch.target_in, batch.target_out, batch.target_lengths, strict=True)
    wanted = sum(expected.loss(source, given, out) for source, given, out, length in rows if length)
    assert loss == pytest.approx(wanted, rel=1e-5)


def assert_steps_are_the_oracles(translator: Translator, session: Any) -> None:
    """Compare logits and weights of search's step with the NumPy model's, at each of three positions, to 1e-5."""
    batch = Batch()
    memory = translator.encode(tf.constant(batch.arrays[0]), tf.constant(batch.arrays[1]))
    decoder = translator.decoder(memory)
    state, fetched = decoder.initial_state, []
    words = batch.arrays[2][:3]
    for row in words:
        logits, state, weights = decoder.step(state, tf.constant(row))
        fetched.append((logits, tf.constant(0) if weights is None else weights))
    results = session.run(fetched)
    expected = graphs.oracle(translator.architecture, session)
    for k, source in enumerate(batch.source):
        decoding = expected.start(source)
        for time, (logits, weights) in enumerate(results):
            wanted, decoding = decoding.step(words[time, k])
            np.testing.assert_allclose(logits[k], wanted, rtol=1e-5, atol=1e-5, err_msg=f"time {time}, k {k}")
            assert (decoding.weights is None) == (weights.ndim == 0), (k, time)
            if decoding.weights is not None:
                np.testing.assert_allclose(
                    weights[k, : len(source)], decoding.weights, rtol=1e-5, atol=1e-6, err_msg=f"time {time}, k {k}"
                )
                assert not weights[k, len(source) :].any(), (k, time)


def assert_gradients_are_finite_differences(arch: Architecture, **drops: Any) -> None:
    """Check every variable, in float64, along a random direction; dropout is on, with masks fixed by the seed."""

    def loss() -> tf.Tensor:
        translator = make_translator(
            arch, initializer("uniform", 0.5, seed=5), Config(dropout=0.3, **drops), tf.constant([4, 9])
        )
        return translator.losses(*[tf.constant(a) for a in Batch().arrays]).words

    assert_gradients_are_slopes(loss)


def assert_control_flows_agree(arch: Architecture) -> None:
    """Check that TensorFlow's first and second control flow give the same loss and gradients."""
    batch, results = Batch(), []
    enabled = v1.control_flow_v2_enabled()
    try:
        for switch in (v1.disable_control_flow_v2, v1.enable_control_flow_v2):
            switch()
            with graphs.model(arch) as (translator, session):
                loss = translator.losses(*[tf.constant(a) for a in batch.arrays]).words
                gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, v1.trainable_variables())]
                results.append(session.run([loss, *gradients]))
    finally:
        (v1.enable_control_flow_v2 if enabled else v1.disable_control_flow_v2)()
    for number, (first, second) in enumerate(zip(*results, strict=True)):
        np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6, err_msg=f"the loss is 0: {number}")


def assert_translations_step_together(arch: Architecture) -> None:
    """Check adjacent rows of one sentence, as search has them: each row's result is as if it were alone."""
    batch = Batch()
    with graphs.model(arch) as (translator, session):
        decoder = translator.decoder(translator.encode(tf.constant(batch.arrays[0]), tf.constant(batch.arrays[1])))
        twice = tf.nest.map_structure(lambda value: tf.repeat(value, 2, axis=0), decoder.initial_state)
        single, state = [], decoder.initial_state
        for words in ([1, 1, 1, 1], [3, 4, 5, 6]):
            logits, state, weights = decoder.step(state, tf.constant(words))
            single.append((logits, weights))
        both, state = [], twice
        for words in ([1] * 8, [3, 7, 4, 7, 5, 7, 6, 7]):
            logits, state, weights = decoder.step(state, tf.constant(words))
            both.append((logits, weights))
        for alone, together in session.run(list(zip(single, both, strict=True))):
            for one, two in zip(alone, together, strict=True):
                np.testing.assert_allclose(two[::2], one, rtol=1e-5, atol=1e-6)


def assert_no_targets_make_no_gradient(arch: Architecture) -> None:
    """Check a rank without a sentence: loss and gradients are zeros, and finite."""
    batch = Batch()
    batch.arrays[4] = np.zeros(4, np.int32)
    batch.arrays[1] = np.array([5, 0, 0, 2], np.int32)
    with graphs.model(arch) as (translator, session):
        places = batch.places()
        loss = translator.losses(*places).words
        gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, v1.trainable_variables())]
        values = session.run([loss, *gradients], batch.feed(places))
    assert all(not np.any(value) for value in values)


def assert_padding_changes_nothing(arch: Architecture) -> None:
    """Check that seven positions of padding change neither loss nor gradients."""
    found = []
    for extra in (0, 7):
        batch = Batch(extra)
        with graphs.model(arch) as (translator, session):
            places = batch.places()
            loss = translator.losses(*places).words
            gradients = [tf.convert_to_tensor(g) for g in tf.gradients(loss, v1.trainable_variables())]
            found.append(session.run([loss, *gradients], batch.feed(places)))
    for short, long in zip(*found, strict=True):
        np.testing.assert_allclose(short, long, rtol=1e-5, atol=1e-6)


def names(**changes: Any) -> dict[str, list[int]]:
    """Return the names, below dynamic_seq2seq, and shapes of a small model's variables."""
    with tf.Graph().as_default():
        LSTMTranslator(graphs.architecture(**changes), initializer())
        found = {v.name.removesuffix(":0"): v.shape.as_list() for v in v1.trainable_variables()}
    assert found.pop("embeddings/encoder/embedding_encoder") == [11, 6]
    assert found.pop("embeddings/decoder/embedding_decoder") == [13, 6]
    assert found.pop("dynamic_seq2seq/decoder/output_projection/kernel") == [6, 13]
    return {name.removeprefix("dynamic_seq2seq/"): shape for name, shape in found.items()}


def lstm(scope: str, rows: int) -> dict[str, list[int]]:
    """Return names and shapes of the two variables of an LSTM cell of 6 units."""
    return {f"{scope}/basic_lstm_cell/kernel": [rows, 24], f"{scope}/basic_lstm_cell/bias": [24]}
