"""Tests for nmt.model.lstm.recurrence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm import cudnn
from nmt.model.lstm.cell_kinds import GRUCell, LSTMCell
from nmt.model.lstm.recurrence import Reader, run_layer
from nmt.model.lstm.recurrent_cell import LSTMState

v1 = tf.compat.v1
LENGTHS = [3, 0, 5, 1]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_padding_is_as_if_it_were_not_there(kind: str, backwards: bool) -> None:
    """A batch's outputs, last states and gradients are those of each sentence alone, whatever the padding holds."""
    _check(kind, backwards)


@pytest.mark.parametrize("backwards", [False, True])
def test_cudnn_computes_the_same(backwards: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN for the batch, a loop for each sentence alone. Without a GPU, the documented formula replaces cuDNN."""
    if not tf.config.list_physical_devices("GPU"):
        monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", _documented)
    monkeypatch.setattr(cudnn, "runs", lambda cell: True)
    _check("lstm", backwards, monkeypatch)


def _documented(
    input: tf.Tensor, input_h: tf.Tensor, input_c: tf.Tensor, params: tf.Tensor, sequence_lengths: tf.Tensor, **_: Any
) -> list[tf.Tensor]:
    """The LSTM of NVIDIA's documentation: `cudnnRNNMode_t` and the order of `cudnnGetRNNWeightParams`."""
    size, units = input.shape[2], input_h.shape[2]
    of_input, of_state, *biases = tf.split(params, [4 * units * size, 4 * units * units, 4 * units, 4 * units])
    w, r = tf.reshape(of_input, [4, units, size]), tf.reshape(of_state, [4, units, units])
    bias = tf.reshape(tf.add_n(biases), [4, 1, units])
    h, c, outputs = input_h[0], input_c[0], []
    for time in range(input.shape[0]):
        i, f, n, o = tf.unstack(tf.einsum("bs,kus->kbu", input[time], w) + tf.einsum("bv,kuv->kbu", h, r) + bias)
        within = (time < sequence_lengths)[:, None]
        after = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(n)
        c, h = tf.where(within, after, c), tf.where(within, tf.sigmoid(o) * tf.tanh(after), h)
        outputs.append(tf.where(within, h, 0.0))
    return [tf.stack(outputs), h[None], c[None]]


def _check(kind: str, backwards: bool, for_batch: pytest.MonkeyPatch | None = None) -> None:
    rng = np.random.default_rng(4)
    time, batch, size, units = max(LENGTHS), len(LENGTHS), 2, 3
    tolerance = 1e-12 if for_batch is None else 1e-10
    values = 3 * rng.standard_normal((time, batch, size))
    wanted = rng.standard_normal((time, batch, units))  # weights of the outputs in the loss
    of_state = rng.standard_normal((batch, units))
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("", dtype=tf.float64, initializer=v1.random_uniform_initializer(-1, 1, seed=3)):
            cell = LSTMCell(size, 0, units, 1.0, "") if kind == "lstm" else GRUCell(size, 0, units, "")
        inputs = tf.constant(values)
        reader = Reader(tf.constant(LENGTHS), tf.constant(time), tf.float64)
        outputs, last = (reader.backwards if backwards else reader.forwards)(cell, inputs)
        if for_batch is not None:
            for_batch.undo()
        loss = tf.reduce_sum(outputs * wanted) + sum(tf.reduce_sum(part * of_state) for part in last)
        alone = tf.constant(0.0, tf.float64)
        each = []
        for number, length in enumerate(LENGTHS):
            if not length:
                continue
            one = inputs[:length, number : number + 1]
            read = run_layer(cell, one[::-1] if backwards else one, cell.zero_state(tf.constant(1)))
            of_one = read[::-1] if backwards else read
            alone += tf.reduce_sum(of_one * wanted[:length, number : number + 1])
            alone += tf.reduce_sum(read[-1] * of_state[number])
            each.append((number, length, of_one, read[-1]))
        if isinstance(last, LSTMState):  # `run_layer` does not return the memory cell
            loss -= tf.reduce_sum(last.c * of_state)
        weights = [inputs, *v1.trainable_variables()]
        gradients = [tf.gradients(one, weights) for one in (loss, alone)]
        session.run(v1.global_variables_initializer())
        found, states = session.run([outputs, last.h])
        for number, length, of_one, end in each:
            np.testing.assert_allclose(found[:length, number], session.run(of_one)[:, 0], rtol=tolerance)
            np.testing.assert_allclose(states[number], session.run(end)[0], rtol=tolerance)
        for number, length in enumerate(LENGTHS):
            assert not found[length:, number].any()
        assert not states[LENGTHS.index(0)].any()
        assert not any(part[LENGTHS.index(0)].any() for part in session.run(last))
        mine, theirs = session.run(gradients)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
