"""Tests for nmt.model.lstm.recurrence."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from nmt.model.lstm.cell_kinds import GRUCell, LSTMCell
from nmt.model.lstm.recurrence import Reader, run_layer
from nmt.model.lstm.recurrent_cell import LSTMState

v1 = tf.compat.v1
LENGTHS = [3, 0, 5, 1]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_padding_is_as_if_it_were_not_there(kind: str, backwards: bool) -> None:
    """A batch's outputs, last states and gradients are those of each sentence alone, whatever the padding holds."""
    rng = np.random.default_rng(4)
    time, batch, size, units = max(LENGTHS), len(LENGTHS), 2, 3
    values = 3 * rng.standard_normal((time, batch, size))
    wanted = rng.standard_normal((time, batch, units))  # weights of the outputs in the loss
    of_state = rng.standard_normal((batch, units))
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("", dtype=tf.float64, initializer=v1.random_uniform_initializer(-1, 1, seed=3)):
            cell = LSTMCell(size, 0, units, 1.0, "") if kind == "lstm" else GRUCell(size, 0, units, "")
        inputs = tf.constant(values)
        reader = Reader(tf.constant(LENGTHS), tf.constant(time), tf.float64)
        outputs, last = (reader.backwards if backwards else reader.forwards)(cell, inputs)
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
            np.testing.assert_allclose(found[:length, number], session.run(of_one)[:, 0], rtol=1e-12)
            np.testing.assert_allclose(states[number], session.run(end)[0], rtol=1e-12)
        for number, length in enumerate(LENGTHS):
            assert not found[length:, number].any()
        assert not states[LENGTHS.index(0)].any()
        assert not any(part[LENGTHS.index(0)].any() for part in session.run(last))
        mine, theirs = session.run(gradients)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
