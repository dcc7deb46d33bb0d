"""LSTMArchitecture, initialisers, dropout masks, the output layer and the loss figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.initializers import initializer
from nmt.model.parts.r_drop import r_drop_loss_sum
from nmt.model.parts.softmax_cross_entropy import cross_entropy_sum, flat_places
from nmt.scoring.perplexity import perplexity
from nmt.train.step import normalized
from tests.nmt.model.graphs import architecture, v1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(num_encoder_residual_layers=2), "num_encoder_residual_layers is 2; it must be between 0 and 1"),
        (dict(num_decoder_residual_layers=1, attention="luong"), "num_decoder_residual_layers is 1"),
        (
            dict(encoder_type="gnmt", num_encoder_layers=3, num_decoder_layers=3, num_encoder_residual_layers=2),
            "num_encoder_residual_layers is 2; it must be between 0 and 1",
        ),
    ],
)
def test_architecture_refuses(changes: dict[str, object], message: str) -> None:
    """The message names the value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        architecture(**changes)


def initial_values(seed: int | None, **changes: object) -> dict[str, np.ndarray]:
    """Return the initial values of a new model."""
    with tf.Graph().as_default(), v1.Session() as session:
        LSTMTranslator(architecture(**changes), initializer("uniform", 0.1, seed))
        session.run(v1.global_variables_initializer())
        return {v.name: session.run(v) for v in v1.global_variables()}


def test_initial_values_follow_seed_and_name() -> None:
    """Equal-shaped variables differ, a second model is equal, and attention does not change the other variables."""
    kind = dict(encoder_type="bi", num_encoder_layers=2, num_decoder_layers=2)
    first, again, other = initial_values(3, **kind), initial_values(3, **kind), initial_values(4, **kind)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)
        assert name.endswith("bias:0") or not np.array_equal(value, other[name]), name
    kernels = [v.tobytes() for n, v in first.items() if n.endswith("cell/kernel:0")]
    assert len(set(kernels)) == len(kernels) == 4
    with_attention = initial_values(3, attention="luong", **kind)
    shared = first.keys() & with_attention.keys()
    assert len(shared) >= 7
    assert all(np.array_equal(first[name], with_attention[name]) for name in shared)


def test_initial_values_without_a_seed_are_new_each_time() -> None:
    """Two sessions have different values."""
    first, second = initial_values(None), initial_values(None)
    assert not np.array_equal(
        first["embeddings/encoder/embedding_encoder:0"], second["embeddings/encoder/embedding_encoder:0"]
    )


@pytest.mark.parametrize(
    ("op", "limit"), [("uniform", 0.3), ("glorot_uniform", math.sqrt(6 / 250)), ("glorot_normal", None)]
)
def test_initial_ranges(op: str, limit: float | None) -> None:
    """Uniform within the weight; Glorot by fan-in and fan-out of [100, 150]."""
    with tf.Graph().as_default(), v1.Session() as session:
        make = initializer(op, 0.3, seed=1)
        with v1.variable_scope("s", custom_getter=make.getter):
            variable = v1.get_variable("w", [100, 150])
        session.run(v1.global_variables_initializer())
        values = session.run(variable)
    if limit is None:
        assert values.std() == pytest.approx(math.sqrt(2 / 250), rel=0.05)
    else:
        assert 0.99 * limit < np.abs(values).max() <= limit


def test_dropout_masks() -> None:
    """Masks keep and scale the right share; two places differ; rate 0 adds no operation."""
    with tf.Graph().as_default() as graph, v1.Session() as session:
        ones = tf.ones([100, 100])
        before = len(graph.get_operations())
        assert Dropout()(ones) is ones
        assert len(graph.get_operations()) == before
        dropout = Dropout(0.25, tf.constant([1, 2]))
        first, second = session.run([dropout(ones), dropout(ones)])
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert first.mean() == pytest.approx(1.0, abs=0.03)
    assert (first != second).mean() == pytest.approx(2 * 0.25 * 0.75, abs=0.03)
    with tf.Graph().as_default(), v1.Session() as session:
        dropout = Dropout(0.25, tf.constant([1, 2]), first_place=7)
        words = session.run(dropout.whole(tf.ones([50, 60, 4])))
    assert (words == words[..., :1]).all() and words[..., 0].mean() == pytest.approx(1.0, abs=0.05)
    with tf.Graph().as_default(), v1.Session() as session:
        dropout = Dropout(0.25, tf.constant([1, 2]), per_sentence=True)
        ones = tf.ones([5, 60, 40])
        dropped, mask = session.run([dropout(ones), dropout.mask(tf.shape(ones), tf.float32)])
    for one in (dropped, mask):
        assert (one == one[:1]).all() and one.shape == (5, 60, 40) and one[0].mean() == pytest.approx(1.0, abs=0.05)
    assert (dropped != mask).any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("positions", [0, 1, 3, 10])
def test_cross_entropy_is_tensorflows(positions: int, smoothing: float) -> None:
    """Value and gradients equal TensorFlow's, also with fewer positions than slices."""
    rng = np.random.default_rng(2)
    with tf.Graph().as_default(), v1.Session() as session:
        rows = tf.constant(rng.standard_normal((positions, 4)))
        kernel = tf.constant(rng.standard_normal((4, 7)))
        labels = tf.constant(rng.integers(0, 7, positions), tf.int32)
        ours, words = cross_entropy_sum(rows, kernel, labels, smoothing)
        logits, asked = tf.matmul(rows, kernel), tf.one_hot(labels, 7, dtype=tf.float64)
        plain, even = (
            tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(labels=one, logits=logits))
            for one in (asked, tf.ones_like(asked) / 7)
        )
        theirs = (1 - smoothing) * plain + smoothing * even
        np.testing.assert_allclose(*session.run([words, plain]))
        results = session.run([[x, *tf.gradients(3.0 * x, [rows, kernel])] for x in (ours, theirs)])
    for what, mine, wanted in zip(("loss", "rows", "kernel"), *results, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12, err_msg=what)


@pytest.mark.parametrize(("positions", "smoothing"), [(0, 0.1), (3, 0.0), (10, 0.1)])
def test_r_drop_is_the_papers(positions: int, smoothing: float) -> None:
    """The loss is half of equation 4, its gradients are TensorFlow's, and ``words`` is the mean of both passes."""
    rng = np.random.default_rng(2)
    alpha, labels = 3.0, rng.integers(0, 7, positions)
    values = [rng.standard_normal(shape) for shape in ((positions, 4), (positions, 4), (4, 7))]
    one, other = (np.log(np.exp(x @ values[2]) / np.exp(x @ values[2]).sum(1, keepdims=True)) for x in values[:2])
    right = [-log_p[np.arange(positions), labels].sum() for log_p in (one, other)]
    likely = [(1 - smoothing) * r - smoothing * p.sum() / 7 for r, p in zip(right, (one, other), strict=True)]
    apart = (np.exp(one) * (one - other)).sum() + (np.exp(other) * (other - one)).sum()
    with tf.Graph().as_default(), v1.Session() as session:
        first, second, kernel = (tf.constant(value) for value in values)
        ours = r_drop_loss_sum((first, second), kernel, tf.constant(labels, tf.int32), alpha, smoothing)
        found = session.run(ours)
        np.testing.assert_allclose(found, [sum(likely) / 2 + alpha / 4 * apart, sum(right) / 2], atol=1e-12)
        asked = (1 - smoothing) * tf.one_hot(labels, 7, dtype=tf.float64) + smoothing / 7
        p, q = (tf.nn.log_softmax(tf.matmul(x, kernel)) for x in (first, second))
        plain = -tf.reduce_sum(asked * (p + q)) / 2 + alpha / 4 * tf.reduce_sum((tf.exp(p) - tf.exp(q)) * (p - q))
        weights = [first, second, kernel]
        results = session.run([tf.gradients(3.0 * loss, weights) for loss in (ours.trained, plain)])
    for what, mine, wanted in zip(("first", "second", "kernel"), *results, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-12, err_msg=what)


def test_cross_entropy_of_the_impossible_is_finite() -> None:
    """A probability that underflows has 87 nats and the exact gradient."""
    with tf.Graph().as_default(), v1.Session() as session:
        rows, kernel = tf.constant([[1.0]]), tf.constant([[0.0, 200.0]])
        loss = cross_entropy_sum(rows, kernel, tf.constant([0])).trained
        value, gradient = session.run([loss, tf.gradients(loss, kernel)[0]])
    assert value == pytest.approx(87.3, abs=0.1)
    np.testing.assert_allclose(gradient, [[-1.0, 1.0]])


def test_more_logits_than_an_index_reaches_are_refused() -> None:
    """The error comes before flat indices wrap around in 32 bits."""
    with tf.Graph().as_default(), v1.Session() as session:
        places, shape = tf.constant([[3, 7]]), v1.placeholder(tf.int32, [2])
        flat = flat_places(places, shape)
        assert session.run(flat, {shape: [4, 2**29 - 1]}).tolist() == [3 * (2**29 - 1) + 7]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be less than 2\\*\\*31: take smaller batches"):
            session.run(flat, {shape: [4, 2**29]})


def test_perplexity() -> None:
    """Uniform over 8 words is 8; an overflow is infinite; without words the perplexity is NaN."""
    assert perplexity(10 * math.log(8), 10) == pytest.approx(8.0)
    assert perplexity(1e6, 10) == math.inf
    assert math.isnan(perplexity(math.nan, 10))
    assert math.isnan(perplexity(0.0, 0))


def test_loss_normalized_adds_up_over_ranks() -> None:
    """Slices of 3 and 2 sentences: the mean over the ranks is the loss of the whole batch."""
    with tf.Graph().as_default(), v1.Session() as session:
        ranks = session.run([normalized(tf.constant(loss), tf.constant(5 / 2)) for loss in (6.0, 9.0)])
    assert sum(ranks) / 2 == pytest.approx(15.0 / 5)
