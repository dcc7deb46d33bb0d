"""nmt.model.parts.sampled_softmax: the sample, the loss over the sample, and training with it."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.initializers import Initializer, initializer
from nmt.model.parts.sampled_softmax import expected_counts, log_uniform, log_uniform_sample, sampled_cross_entropy_sum
from nmt.model.parts.softmax_cross_entropy import cross_entropy_sum
from nmt.options.config import Config
from nmt.text.batches import make_batch
from nmt.train.schedule import Schedule
from nmt.train.step import TrainStep
from tests.nmt.model import graphs
from tests.nmt.model.graphs import EOS, SOS, architecture, v1
from tests.nmt.model.slopes import assert_gradients_are_slopes


def probabilities(vocabulary: int) -> np.ndarray:
    """Return P(k) of all words, in NumPy."""
    k = np.arange(vocabulary)
    return (np.log(k + 2) - np.log(k + 1)) / np.log(vocabulary + 1)


def test_probabilities() -> None:
    with v1.Session(graph=tf.Graph()) as session, session.graph.as_default():
        for vocabulary in (1, 7, 50_000):
            found = session.run(log_uniform(vocabulary))
            np.testing.assert_allclose(found, probabilities(vocabulary), rtol=1e-9, err_msg=f"vocabulary {vocabulary}")
            assert found.sum() == pytest.approx(1.0), vocabulary
        counts = session.run(expected_counts(7, tf.constant(4.0, tf.float64)))
    np.testing.assert_allclose(counts, 1 - (1 - probabilities(7)) ** 4, rtol=1e-9)


def test_a_sample_is_what_drawing_until_there_are_enough_gives() -> None:
    """Frequency of each ordered sample, and mean number of draws, against the exact values."""
    vocabulary, n, times = 5, 3, 4000
    p = probabilities(vocabulary)
    with tf.Graph().as_default(), v1.Session() as session:
        seed = v1.placeholder(tf.int32, [2])
        fetches = log_uniform_sample(vocabulary, n, seed)
        results = [session.run(fetches, {seed: [3, k]}) for k in range(times)]
        again = session.run(fetches, {seed: [3, 0]})
    assert again[0].tolist() == results[0][0].tolist() and again[1] == results[0][1]
    expected_draws = 0.0
    for order in itertools.permutations(range(vocabulary), n):
        drawn, chance, draws = 0.0, 1.0, 0.0
        for word in order:
            chance *= p[word] / (1 - drawn)
            draws += 1 / (1 - drawn)
            drawn += p[word]
        expected_draws += chance * draws
        found = sum(sample.tolist() == list(order) for sample, _ in results) / times
        assert abs(found - chance) < 4.5 * math.sqrt(chance / times), order
    counts = np.array([draws for _, draws in results])
    assert (counts == np.round(counts)).all() and counts.min() == n
    assert counts.mean() == pytest.approx(expected_draws, abs=4 * counts.std() / math.sqrt(times))


@pytest.mark.parametrize(("vocabulary", "n", "positions"), [(20, 6, 9), (20, 20, 4), (7, 1, 3), (7, 3, 0)])
def test_loss_is_tensorflows_and_numpys(vocabulary: int, n: int, positions: int) -> None:
    """With the same sample, the loss and its gradients are equal."""
    rng = np.random.default_rng(2)
    rows, kernel = rng.standard_normal((positions, 4)), rng.standard_normal((4, vocabulary))
    labels = rng.integers(0, vocabulary, positions).astype(np.int32)
    with tf.Graph().as_default(), v1.Session() as session:
        seed, inputs, weights = tf.constant([5, 6]), tf.constant(rows), tf.constant(kernel)
        loss = sampled_cross_entropy_sum(inputs, weights, tf.constant(labels), n, seed)
        sample, draws = log_uniform_sample(vocabulary, n, seed)
        expected = expected_counts(vocabulary, draws)
        candidates = (
            tf.cast(sample, tf.int64),
            tf.gather(expected, labels[:, None]),
            tf.gather(expected, sample),
        )
        theirs = tf.reduce_sum(
            tf.nn.sampled_softmax_loss(
                tf.transpose(weights), tf.zeros([vocabulary], tf.float64), labels[:, None], inputs, n, vocabulary,
                sampled_values=candidates,
            )
        )  # fmt: skip
        values = [session.run([x, *tf.gradients(x, [inputs, weights])]) for x in (loss, theirs)]
        drawn, counts = session.run([sample, expected])
    for what, mine, wanted in zip(("loss", "inputs", "weights"), *values, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12, err_msg=what)
    logits = rows @ kernel - np.log(counts)
    wanted = 0.0
    for row, label in zip(logits, labels, strict=True):
        others = [word for word in drawn if word != label]
        wanted += np.log(np.exp(row[label]) + np.exp(row[others]).sum()) - row[label]
    assert values[0][0] == pytest.approx(wanted)


def test_the_mean_over_samples_approaches_the_full_loss() -> None:
    vocabulary = 60
    rng = np.random.default_rng(4)
    with tf.Graph().as_default(), v1.Session() as session:
        rows, kernel = tf.constant(rng.standard_normal((30, 5))), tf.constant(rng.standard_normal((5, vocabulary)))
        labels = tf.constant(rng.integers(0, vocabulary, 30), tf.int32)
        seed = v1.placeholder(tf.int32, [2])
        full = session.run(cross_entropy_sum(rows, kernel, labels).words)
        distances = []
        for n in (4, 20, 50, 60):
            loss = sampled_cross_entropy_sum(rows, kernel, labels, n, seed)
            mean = np.mean([session.run(loss, {seed: [n, k]}) for k in range(200)])
            distances.append(abs(mean / full - 1))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.02


def batch() -> list[np.ndarray]:
    """Return sources and targets of three sentences."""
    target = graphs.sentences([2, 4, 1], 13, seed=1)
    return [
        graphs.time_major(graphs.sentences([3, 1, 2], 11), EOS),
        np.array([3, 1, 2], np.int32),
        graphs.time_major([[SOS, *words] for words in target], EOS),
        graphs.time_major([[*words, EOS] for words in target], EOS),
        np.array([3, 5, 2], np.int32),
    ]


def loss_of_batch(translator: LSTMTranslator, num_sampled: int) -> tf.Tensor:
    """Return the batch's loss over a sample."""
    source, source_lengths, target_in, target_out, target_lengths = map(tf.constant, batch())
    return translator.losses(
        source, source_lengths, target_in, target_out, target_lengths, num_sampled=num_sampled
    ).words


def test_gradients_are_finite_differences() -> None:
    def loss() -> tf.Tensor:
        translator = LSTMTranslator(
            architecture(attention="luong"), initializer("uniform", 0.5, seed=5), Config(dropout=0.3), [4, 9]
        )
        return loss_of_batch(translator, 4)

    assert_gradients_are_slopes(loss)


def test_training_follows_the_steps_seed(toy: Any) -> None:
    """Equal seeds give equal losses, and other seeds give other losses."""
    sentences = make_batch(range(6), toy.train, toy.src_vocab, toy.tgt_vocab, None, None, 6, 1)
    with tf.Graph().as_default(), v1.Session() as session:
        config, schedule = Config(num_sampled_softmax=3, dropout=0.0), Schedule(1e-9, num_train_steps=9)
        step = TrainStep(toy.architecture, Initializer(seed=1), config, schedule)
        session.run(v1.global_variables_initializer())
        losses = [step.run(session, sentences, np.array([7, k], np.int32)).loss_sum for k in (0, 1, 2, 0)]
    assert losses[0] == pytest.approx(losses[3], rel=1e-6)
    assert len(set(losses[:3])) == 3
    assert max(losses) < math.log(toy.tgt_vocab.size) * sentences.target_lengths.sum()


def test_the_tutorials_figure_is_within_reach() -> None:
    """The tutorial's test has 5.84 per sentence: logits near zero, 11 positions, 3 samples of 5 words."""
    labels = [2, 3, 4, 3, 4, 1, 2, 3, 4, 3, 1]  # a b c b c </s>, a b c b </s>
    with tf.Graph().as_default(), v1.Session() as session:
        seed = v1.placeholder(tf.int32, [2])
        loss = sampled_cross_entropy_sum(tf.zeros([11, 2]), tf.zeros([2, 5]), tf.constant(labels), 3, seed) / 2
        losses = [session.run(loss, {seed: [0, k]}) for k in range(300)]
    assert min(losses) < 5.84 < max(losses)
    assert abs(np.mean(losses) - 5.84) < 2 * np.std(losses)
