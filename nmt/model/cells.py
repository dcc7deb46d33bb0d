"""Recurrent cells, one step of one layer.

A cell's input has a part that is known for all times before the loop starts (the embedded words, or the layer
below) and a part that the loop itself produces (the attention vector, or the layer below inside a decoder
step). The product with the known part is formed for all times at once by `project`; only the rest is
multiplied inside the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.deferred import LoopOperand, matrix_gradient

CELL_NAMES = {"lstm": "basic_lstm_cell"}


class CellState(NamedTuple):
    """State of one layer between two steps.

    Attributes:
        c: the memory cell, [batch, num_units].
        h: the output, [batch, num_units].
    """

    c: tf.Tensor
    h: tf.Tensor


class LSTMCell:
    """Long short-term memory (Hochreiter & Schmidhuber 1997; Zaremba et al. 2014, eq. 2-6).

        i, j, f, o = split([x; h] W + b)
        c' = c * sigmoid(f + forget_bias) + sigmoid(i) * tanh(j)
        h' = sigmoid(o) * tanh(c')

    Creates `basic_lstm_cell/kernel` [ahead_size + inside_size + num_units, 4 * num_units] and
    `basic_lstm_cell/bias` [4 * num_units] in the current variable scope.

    Args:
        ahead_size: width of the input part that `project` takes; may be 0.
        inside_size: width of the input part that is only known in the loop; may be 0.
        num_units: width of c and h.
        forget_bias: added to the forget gate's pre-activation.

    Attributes:
        num_units: as given.
        fed_size: width of what the loop multiplies with the kernel.
    """

    def __init__(self, ahead_size: int, inside_size: int, num_units: int, forget_bias: float) -> None:
        self.num_units = num_units
        self._forget_bias = forget_bias
        self.fed_size = inside_size + num_units
        with tf.compat.v1.variable_scope(CELL_NAMES["lstm"]):
            rows = ahead_size + inside_size + num_units
            kernel = tf.compat.v1.get_variable("kernel", [rows, 4 * num_units])
            bias = tf.compat.v1.get_variable(
                "bias",
                [4 * num_units],
                initializer=tf.compat.v1.zeros_initializer(),
            )
        # One split, whose gradient is one concatenation; two slices would each pad to the full size.
        self._ahead, self._inside = tf.split(kernel, [ahead_size, rows - ahead_size])
        self._bias = tf.identity(bias)

    def zero_state(self, batch: tf.Tensor) -> CellState:
        """The state before anything was read, for `batch` sentences."""
        zeros = tf.zeros(tf.stack([batch, self.num_units]), self._bias.dtype)
        zeros.set_shape([None, self.num_units])
        return CellState(zeros, zeros)

    def project(self, inputs: tf.Tensor) -> tf.Tensor:
        """The part of the gates known ahead: [..., ahead_size] -> [..., 4 * num_units], bias included.

        A cell that knows nothing ahead (ahead_size 0) takes an input of no width.
        """
        size = inputs.shape[-1]
        shape = tf.concat([tf.shape(inputs)[:-1], [4 * self.num_units]], 0)
        # oneDNN's fused product aborts the process on matrices of no width.
        if size:
            projected = tf.reshape(tf.matmul(tf.reshape(inputs, [-1, size]), self._ahead) + self._bias, shape)
        else:
            projected = tf.broadcast_to(self._bias, shape)
        projected.set_shape(inputs.shape[:-1].concatenate([4 * self.num_units]))
        return projected

    def step(
        self,
        projected: tf.Tensor,
        inside: tf.Tensor | None,
        state: CellState,
    ) -> tuple[tf.Tensor, CellState]:
        """One step.

        Args:
            projected: [batch, 4 * num_units] from `project`.
            inside: [batch, inside_size]; None if inside_size is 0.
            state: of the step before.

        Returns:
            the output [batch, num_units] (which is h) and the new state.
        """
        gates = projected + tf.matmul(_fed(inside, state), self._inside)
        return self._apply(gates, state)

    def in_loop(self, projected: tf.Tensor) -> LSTMInLoop:
        """The same for all times of one loop, with `projected` [time, batch, 4 * num_units]."""
        return LSTMInLoop(self._inside, self._apply, projected)

    def _apply(self, gates: tf.Tensor, state: CellState) -> tuple[tf.Tensor, CellState]:
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = state.c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, CellState(c, h)


class LSTMInLoop:
    """An `LSTMCell` in one loop, its kernel's gradient formed after the loop (see `nmt.model.deferred`).

    Attributes:
        projected: what the loop has to read, [time, batch, 4 * num_units].
    """

    def __init__(
        self,
        kernel: tf.Tensor,
        apply: Callable[[tf.Tensor, CellState], tuple[tf.Tensor, CellState]],
        projected: tf.Tensor,
    ) -> None:
        self._kernel = LoopOperand(kernel, matrix_gradient)
        self._apply = apply
        self.projected = self._kernel.carry(projected)

    def step(
        self,
        projected: tf.Tensor,
        inside: tf.Tensor | None,
        state: CellState,
    ) -> tuple[tf.Tensor, CellState, tf.Tensor]:
        """As `LSTMCell.step`; the third result [batch, fed_size] of all times goes to `close` after the
        loop."""
        fed = _fed(inside, state)
        return *self._apply(projected + tf.matmul(fed, self._kernel.value), state), fed

    def close(self, fed: tf.Tensor) -> None:
        """Take [time, batch, fed_size]."""
        self._kernel.fed(fed)


def _fed(inside: tf.Tensor | None, state: CellState) -> tf.Tensor:
    return state.h if inside is None else tf.concat([inside, state.h], 1)


def make_stack(
    architecture: Architecture,
    num_layers: int,
    ahead_size: int,
    inside_size: int,
) -> list[LSTMCell]:
    """The cells of one stack, bottom first, in the current variable scope.

    The sizes are those of the bottom cell's input. The upper cells read the layer below ahead of the loop if
    the bottom one has no part inside the loop, else inside it. A single layer is not named
    `multi_rnn_cell/cell_0`.
    """
    units = architecture.num_units
    above = (0, units) if inside_size else (units, 0)
    cells = []
    for layer in range(num_layers):
        sizes = (ahead_size, inside_size) if layer == 0 else above
        name = f"multi_rnn_cell/cell_{layer}" if num_layers > 1 else None
        with tf.compat.v1.variable_scope(name or tf.compat.v1.get_variable_scope()):
            cells.append(LSTMCell(*sizes, units, architecture.forget_bias))
    return cells
