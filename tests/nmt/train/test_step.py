"""A step of training: the update, its figures, and the equality of ranks with one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm import loop_kernel
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.decoder import BoundDecoder
from nmt.model.lstm.loop_kernel import LoopKernel
from nmt.model.parts.initializers import Initializer
from nmt.options.config import Config
from nmt.text.batches import Batch, make_batch
from nmt.text.epoch_plan import rank_slice
from nmt.train.schedule import Schedule
from nmt.train.step import TrainStep, dropout_seed, make_optimizer, merged

v1 = tf.compat.v1
SEED = np.array([1, 2], np.int32)


class Training:
    """A training step in a session, initialized from seed 5."""

    def __init__(
        self,
        architecture: LSTMArchitecture,
        *,
        dropout: float = 0.0,
        clip: float = 1e9,
        optimizer: str = "sgd",
        init_weight: float = 0.1,
        rate: float = 0.5,
        **more: Any,
    ) -> None:
        schedule = Schedule(learning_rate=rate, num_train_steps=100)
        with tf.Graph().as_default() as graph:
            initializer = Initializer(init_weight=init_weight, seed=5)
            config = Config(optimizer=optimizer, max_gradient_norm=clip, dropout=dropout, **more)
            self.step = TrainStep(architecture, initializer, config, schedule)
            initialise = v1.global_variables_initializer()
            self._variables = v1.global_variables()
            self._weights = v1.trainable_variables()
        self.session = v1.Session(graph=graph)
        self.session.run(initialise)
        self._start = self.session.run(self._variables)

    def restart(self) -> None:
        """Reset all variables to their first values: building graphs and sessions takes long."""
        initialisers = [variable.initializer for variable in self._variables]
        values = zip(initialisers, self._start, strict=True)
        self.session.run(initialisers, {initialiser.inputs[1]: value for initialiser, value in values})

    def weights(self) -> dict[str, np.ndarray]:
        values = self.session.run(self._weights)
        return {variable.op.name: value for variable, value in zip(self._weights, values, strict=True)}

    def update(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return the changes of the weights by one step from the start."""
        self.restart()
        before = self.weights()
        self.step.run(self.session, batch, SEED)
        return {name: value - before[name] for name, value in self.weights().items()}


def cut(toy: Any, sentences: np.ndarray, rank: int = 0, size: int = 1) -> Batch:
    """Return a rank's part of a global batch."""
    part = rank_slice(sentences, rank, size)
    return make_batch(part, toy.train, toy.src_vocab, toy.tgt_vocab, None, None, len(sentences), size)


@pytest.mark.parametrize("size", [2, 3, 9])
def test_the_mean_of_the_ranks_updates_is_that_of_one_process(toy: Any, size: int) -> None:
    sentences = np.arange(7)  # uneven for all sizes; two of nine ranks have no sentence

    # Near zero, attention has hardly a gradient; and an update must exceed the rounding of the weight it is
    # added to.
    training = Training(toy.architecture, init_weight=0.8, rate=1e3)
    ranks = [training.update(cut(toy, sentences, rank, size)) for rank in range(size)]
    for name, expected in training.update(cut(toy, sentences)).items():
        tolerance = np.abs(expected).max() * 1e-5
        parts = [part[name] for part in ranks]
        assert np.abs(np.mean(parts, axis=0) - expected).max() <= tolerance, name
        assert np.abs(parts[0] - expected).max() > 100 * tolerance, name


def test_a_rank_without_sentences_changes_nothing(toy: Any) -> None:
    update = Training(toy.architecture).update(cut(toy, np.arange(2), rank=2, size=3))
    assert all(not value.any() for value in update.values())


def test_figures(toy: Any) -> None:
    training = Training(toy.architecture)
    batch = cut(toy, np.arange(6))
    first, second = (training.step.run(training.session, batch, SEED) for _ in range(2))
    words = sum(len(toy.train.tgt.line(i).split()) for i in range(6))
    assert (first.source_words, first.target_words) == (words, words + 6)
    assert (first.global_step, second.global_step) == (1, 2)
    assert first.learning_rate == pytest.approx(0.5)
    # Weights within 0.1 of zero predict words nearly evenly.
    assert first.loss_sum == pytest.approx((words + 6) * np.log(toy.tgt_vocab.size), rel=0.02)
    assert second.loss_sum < first.loss_sum


def test_gradients_are_clipped_to_their_global_norm(toy: Any) -> None:
    batch = cut(toy, np.arange(6))
    update = Training(toy.architecture).update(batch)
    norm = np.sqrt(sum(np.square(value).sum() for value in update.values())) / 0.5
    clipping = Training(toy.architecture, clip=norm / 4)
    assert clipping.step.run(clipping.session, batch, SEED).grad_norm == pytest.approx(norm, rel=1e-5)
    clipped = clipping.update(batch)
    for name, value in update.items():
        np.testing.assert_allclose(clipped[name], value / 4, atol=1e-6, err_msg=name)


def test_adam_moves_each_weight_by_the_rate(toy: Any) -> None:
    update = Training(toy.architecture, optimizer="adam").update(cut(toy, np.arange(6)))
    # Kingma & Ba: the first step is rate * g / |g|, whatever the gradient.
    kernel = np.abs(update["dynamic_seq2seq/decoder/output_projection/kernel"])
    assert np.median(kernel) == pytest.approx(0.5, rel=1e-2)


@pytest.mark.parametrize(
    "more",
    [
        {"output_dropout": 0.5},
        {"src_word_dropout": 0.5},
        {"tgt_word_dropout": 0.5},
        {"label_smoothing": 0.3},
        {"dropout": 0.5, "r_drop": 5.0},
        {"dropout": 0.5, "dropout_mask": "sentence"},
        {"weight_decay": 0.5},
    ],
    ids=lambda more: list(more)[-1],
)
def test_each_setting_changes_the_update(toy: Any, more: dict[str, Any]) -> None:
    """The modules' tests check what each setting does; this test checks that the training graph has it."""
    batch, dropout = cut(toy, np.arange(8)), more.get("dropout", 0.0)
    plain = Training(toy.architecture, init_weight=0.5, dropout=dropout).update(batch)
    other = Training(toy.architecture, init_weight=0.5, **more).update(batch)
    kernels = [name for name, value in plain.items() if value.ndim == 2]
    for name in kernels:
        assert np.abs(other[name] - plain[name]).max() > 1e-3 * np.abs(plain[name]).max(), name


def test_a_plateau_lowers_the_rate(toy: Any) -> None:
    training = Training(toy.architecture, rate=0.5, decay_scheme="plateau", plateau_factor=0.1)
    batch = cut(toy, np.arange(8))
    assert training.step.run(training.session, batch, SEED).learning_rate == pytest.approx(0.5)
    with training.session.graph.as_default():
        (state,) = [one for one in v1.global_variables() if one.op.name == "plateau"]
        training.session.run(state.initializer, {state.initializer.inputs[1]: [30.0, 0.0, 2.0]})
    assert training.step.run(training.session, batch, SEED).learning_rate == pytest.approx(0.005)


def test_dropout_follows_its_seed(toy: Any) -> None:
    batch = cut(toy, np.arange(6))

    training = Training(toy.architecture, dropout=0.5)

    def loss(seed: np.ndarray) -> float:
        training.restart()
        return training.step.run(training.session, batch, seed).loss_sum

    assert loss(dropout_seed(7, 0, 3)) == loss(dropout_seed(7, 0, 3))
    losses = {loss(dropout_seed(*key)) for key in ((7, 0, 3), (7, 1, 3), (7, 0, 4), (8, 0, 3))}
    assert len(losses) == 4


def test_merged_sums_equal_rows() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        slices = tf.IndexedSlices(tf.constant([[1.0], [2.0], [4.0]]), tf.constant([3, 1, 3]), tf.constant([5, 1]))
        result = session.run(merged(slices))
        assert dict(zip(result.indices.tolist(), result.values[:, 0].tolist(), strict=True)) == {
            3: 5.0,
            1: 2.0,
        }
        dense = tf.constant(1.0)
        assert merged(dense) is dense
        assert merged(None) is None


def test_adam_and_weight_decay_are_the_papers() -> None:
    """Loshchilov & Hutter 2019, algorithm 2, in NumPy: rows without a gradient shrink too, the bias does not.

    The length of a normalised kernel shrinks; its direction does not.
    """
    rate, beta1, beta2, epsilon, decay = 0.1, 0.8, 0.9, 1e-3, 0.5
    settings: Any = dict(adam_beta1=beta1, adam_beta2=beta2, adam_epsilon=epsilon, weight_decay=decay)
    random = np.random.default_rng(3)
    start = {"kernel": random.normal(size=(3, 2)), "table": random.normal(size=(4, 2)), "bias": random.normal(size=2)}
    start |= {"direction": random.normal(size=(3, 2)), "length": random.normal(size=2)}
    dense = [{name: random.normal(size=value.shape) for name, value in start.items()} for _ in range(3)]
    rows = [1, 3]
    with tf.Graph().as_default(), v1.Session() as session:
        weights = {name: tf.Variable(value, name=f"layer/{name}") for name, value in start.items()}
        fed = {name: v1.placeholder(tf.float64, value.shape) for name, value in start.items()}
        sparse = tf.IndexedSlices(tf.gather(fed["table"], rows), tf.constant(rows), tf.constant([4, 2]))
        pairs = [(sparse if name == "table" else fed[name], weights[name]) for name in start]
        made = make_optimizer(Config(optimizer="adam", **settings), tf.constant(rate, tf.float64))
        update = made.apply_gradients(pairs)
        session.run(v1.global_variables_initializer())
        for gradients in dense:
            session.run(update, {fed[name]: gradients[name] for name in start})
        found = session.run(weights)
    for name, w in start.items():
        m = v = np.zeros_like(w)
        for t, gradients in enumerate(dense, 1):
            g = gradients[name]
            if name == "table":
                g = np.where(np.isin(np.arange(4), rows)[:, None], g, 0)
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            unbiased = rate * np.sqrt(1 - beta2**t) / (1 - beta1**t)  # section 2 of Kingma & Ba, as TensorFlow has it
            w = w - unbiased * m / (np.sqrt(v) + epsilon) - (0 if name in ("bias", "direction") else rate * decay * w)
        np.testing.assert_allclose(found[name], w, rtol=1e-6, atol=1e-7, err_msg=name)  # Adam's powers are float32


@pytest.mark.parametrize(
    "onednn", [False, pytest.param(True, marks=pytest.mark.long("TensorFlow's products, differently"))]
)
def test_the_forms_made_for_speed_lose_what_the_plain_ones_do(
    toy: Any, monkeypatch: pytest.MonkeyPatch, onednn: bool
) -> None:
    """Fifty updates, against the decoder's steps one after another with plain products."""
    batch = cut(toy, np.arange(6))
    shape = dataclasses.replace(toy.architecture, encoder_type="bi", num_encoder_layers=2, num_decoder_layers=2)

    def losses() -> list[float]:
        training = Training(shape, init_weight=0.5, rate=0.05, clip=5.0)
        return [training.step.run(training.session, batch, SEED).loss_sum for _ in range(50)]

    monkeypatch.setattr(loop_kernel, "_ONEDNN", onednn)
    fast = losses()

    def side_by_side(decoding: BoundDecoder, embedded: tf.Tensor) -> tf.Tensor:
        outputs, state = [], decoding.initial_state
        for now in tf.unstack(embedded, len(batch.target_in)):
            output, state, _ = decoding.step(now, state, decoding.sources)
            outputs.append(output)
        return tf.stack(outputs)

    monkeypatch.setattr(loop_kernel, "for_search", lambda kernel: kernel)
    monkeypatch.setattr(LoopKernel, "times", lambda kernel, fed: tf.matmul(fed, kernel.value))
    monkeypatch.setattr(BoundDecoder, "all_steps", side_by_side)
    assert fast == pytest.approx(losses(), rel=1e-5)
    assert fast[-1] < 0.9 * fast[0]
