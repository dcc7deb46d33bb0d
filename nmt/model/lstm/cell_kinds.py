"""Kinds of recurrent cells: LSTM, GRU, LSTM with layer normalisation, NAS.

In the formulas x is the input, [ahead; inside], and ';' concatenates vectors. The variables have the names of
TensorFlow 1's cells (`tf.nn.rnn_cell` and `tf.contrib.rnn`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.recurrent_cell import Cell, GRUState, LSTMState, Multiply, Product, join
from nmt.model.parts.placement import Placement


class LSTMCell(Cell):
    """Long short-term memory (Hochreiter & Schmidhuber 1997; Zaremba et al. 2014, eq. 2-6).

        i, j, f, o = split([x; h] W + b)
        c' = c * sigmoid(f + forget_bias) + sigmoid(i) * tanh(j)
        h' = sigmoid(o) * tanh(c')

    Creates `basic_lstm_cell/kernel` [ahead_size + inside_size + num_units, 4 * num_units] and
    `basic_lstm_cell/bias` [4 * num_units], which starts from 0, in the current variable scope.

    Args:
        ahead_size: width of the input part that `project` takes; may be 0.
        inside_size: width of the input part that the loop computes; may be 0.
        num_units: width of c and h.
        forget_bias: constant added to the forget gate's pre-activation.
        device: name of the device of its variables and operations.
    """

    def __init__(self, ahead_size: int, inside_size: int, num_units: int, forget_bias: float, device: str) -> None:
        with tf.device(device), tf.compat.v1.variable_scope("basic_lstm_cell"):
            # The forget bias is added once before the loop, not in each step.
            lift = np.repeat([0.0, 0.0, forget_bias, 0.0], num_units)
            gates = Product(ahead_size, inside_size + num_units, 4 * num_units, bias=0.0, lift=lift)
        super().__init__(num_units, [gates], device)
        self.gates = gates

    def _advance(self, products: Sequence[Multiply], inside: tf.Tensor | None, state: LSTMState) -> LSTMState:
        (gates,) = products
        i, j, f, o = tf.split(gates(join(inside, state.h)), 4, axis=1)
        c = state.c * tf.sigmoid(f) + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return LSTMState(c, h)


class LayerNormLSTMCell(Cell):
    """Long short-term memory with layer normalisation (Ba et al. 2016, section 3.1 and eq. 20-22).

        i, j, f, o = split([x; h] W), each normalised
        c' = norm(c * sigmoid(f + forget_bias) + sigmoid(i) * tanh(j))
        h' = sigmoid(o) * tanh(c')
        norm(a) = gamma * (a - mean(a)) / sqrt(variance(a) + 1e-12) + beta

    As in `tf.contrib.rnn.LayerNormBasicLSTMCell`, and unlike the paper, the state keeps the normalised c', and
    x W and h W are normalised as one. Creates `layer_norm_basic_lstm_cell/kernel` [ahead_size + inside_size +
    num_units, 4 * num_units] and, below it, `{input,transform,forget,output,state}/{gamma,beta}` [num_units],
    which start from 1 and 0, in the current variable scope.

    Args: as for `LSTMCell`.
    """

    def __init__(self, ahead_size: int, inside_size: int, num_units: int, forget_bias: float, device: str) -> None:
        with tf.device(device), tf.compat.v1.variable_scope("layer_norm_basic_lstm_cell"):
            gates = Product(ahead_size, inside_size + num_units, 4 * num_units)
            norms = [_scale_and_shift(name, num_units) for name in ("input", "transform", "forget", "output")]
            # The gates are normalised all at once, as [batch, 4, num_units].
            self._gates_gamma, self._gates_beta = (tf.stack(values) for values in zip(*norms, strict=True))
            self._state_gamma, self._state_beta = _scale_and_shift("state", num_units)
        super().__init__(num_units, [gates], device)
        self._forget_bias = forget_bias

    def _advance(self, products: Sequence[Multiply], inside: tf.Tensor | None, state: LSTMState) -> LSTMState:
        (gates,) = products
        together = tf.reshape(gates(join(inside, state.h)), [-1, 4, self.num_units])
        i, j, f, o = tf.unstack(_normalised(together, self._gates_gamma, self._gates_beta), axis=1)
        c = state.c * tf.sigmoid(f + self._forget_bias) + tf.sigmoid(i) * tf.tanh(j)
        c = _normalised(c, self._state_gamma, self._state_beta)
        return LSTMState(c, tf.sigmoid(o) * tf.tanh(c))


def _scale_and_shift(name: str, size: int) -> tuple[tf.Tensor, tf.Tensor]:
    v1 = tf.compat.v1
    with v1.variable_scope(name):
        gamma = v1.get_variable("gamma", [size], initializer=v1.ones_initializer())
        beta = v1.get_variable("beta", [size], initializer=v1.zeros_initializer())
    return tf.identity(gamma), tf.identity(beta)


def _normalised(values: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(values, [-1], keepdims=True)
    return (values - mean) * tf.math.rsqrt(variance + 1e-12) * gamma + beta


class GRUCell(Cell):
    """Gated recurrent unit (Cho et al. 2014, eq. 5-8).

        r, u = split(sigmoid([x; h] Wg + bg))
        n    = tanh([x; r * h] Wc + bc)
        h'   = u * h + (1 - u) * n

    Creates, in the current variable scope, `gru_cell/gates/{kernel,bias}` [ahead_size + inside_size + num_units, 2 *
    num_units], [2 * num_units] and `gru_cell/candidate/{kernel,bias}` of half that width. The gates' bias starts from
    1, so that the cell keeps its state at first; the candidate's bias starts from 0.

    Args:
        ahead_size: width of the input part that `project` takes; may be 0.
        inside_size: width of the input part that the loop computes; may be 0.
        num_units: width of h.
        device: name of the device of its variables and operations.
    """

    state_type = GRUState

    def __init__(self, ahead_size: int, inside_size: int, num_units: int, device: str) -> None:
        scope, fed_size = tf.compat.v1.variable_scope, inside_size + num_units
        with tf.device(device), scope("gru_cell"):
            with scope("gates"):
                gates = Product(ahead_size, fed_size, 2 * num_units, bias=1.0)
            with scope("candidate"):
                candidate = Product(ahead_size, fed_size, num_units, bias=0.0)
        super().__init__(num_units, [gates, candidate], device)

    def _advance(self, products: Sequence[Multiply], inside: tf.Tensor | None, state: GRUState) -> GRUState:
        gates, candidate = products
        r, u = tf.split(tf.sigmoid(gates(join(inside, state.h))), 2, axis=1)
        n = tf.tanh(candidate(join(inside, r * state.h)))
        return GRUState(u * state.h + (1.0 - u) * n)


class NASCell(Cell):
    """Cell found by neural architecture search (Zoph & Le 2017, figure 8, right, and appendix A).

        a, m = x K, h R, in 8 parts each
        p_k  = a_k + m_k, but p_3 = a_3 * m_3
        t_0, t_1 = tanh(sigmoid(p_0) * relu(p_1)), tanh(sigmoid(p_2) + relu(p_3))
        t_2, t_3 = tanh(tanh(p_4) * sigmoid(p_5)), sigmoid(tanh(p_6) + sigmoid(p_7))
        c' = tanh(t_0 + c) * t_1
        h' = tanh(c' * tanh(t_2 + t_3))

    Creates `nas_cell/kernel` [ahead_size + inside_size, 8 * num_units] and `nas_cell/recurrent_kernel`
    [num_units, 8 * num_units] in the current variable scope.

    Args:
        ahead_size: width of the input part that `project` takes; may be 0.
        inside_size: width of the input part that the loop computes; may be 0.
        num_units: width of c and h.
        device: name of the device of its variables and operations.
    """

    def __init__(self, ahead_size: int, inside_size: int, num_units: int, device: str) -> None:
        with tf.device(device), tf.compat.v1.variable_scope("nas_cell"):
            of_input = Product(ahead_size, inside_size, 8 * num_units)
            of_state = Product(0, num_units, 8 * num_units, name="recurrent_kernel")
        super().__init__(num_units, [of_input, of_state], device)

    def _advance(self, products: Sequence[Multiply], inside: tf.Tensor | None, state: LSTMState) -> LSTMState:
        of_input, of_state = products
        a, m = tf.split(of_input(inside), 8, axis=1), tf.split(of_state(state.h), 8, axis=1)
        p = [x * y if k == 3 else x + y for k, (x, y) in enumerate(zip(a, m, strict=True))]
        t0, t1 = tf.tanh(tf.sigmoid(p[0]) * tf.nn.relu(p[1])), tf.tanh(tf.sigmoid(p[2]) + tf.nn.relu(p[3]))
        t2, t3 = tf.tanh(tf.tanh(p[4]) * tf.sigmoid(p[5])), tf.sigmoid(tf.tanh(p[6]) + tf.sigmoid(p[7]))
        c = tf.tanh(t0 + state.c) * t1
        return LSTMState(c, tf.tanh(c * tf.tanh(t2 + t3)))


def make_cell(architecture: LSTMArchitecture, ahead_size: int, inside_size: int, device: str) -> Cell:
    """Create a cell of the architecture's kind in the current variable scope, with these input sizes."""
    units, forget_bias = architecture.num_units, architecture.forget_bias
    match architecture.unit_type:
        case "lstm":
            return LSTMCell(ahead_size, inside_size, units, forget_bias, device)
        case "layer_norm_lstm":
            return LayerNormLSTMCell(ahead_size, inside_size, units, forget_bias, device)
        case "gru":
            return GRUCell(ahead_size, inside_size, units, device)
        case "nas":
            return NASCell(ahead_size, inside_size, units, device)
        case other:
            raise ValueError(f"unit_type is {other!r}; there is no such cell")


def make_stack(
    architecture: LSTMArchitecture,
    num_layers: int,
    ahead_size: int,
    inside_size: int,
    placement: Placement,
    base: int = 0,
) -> list[Cell]:
    """Create the cells of one stack in the current variable scope and return them, bottom first.

    `ahead_size` and `inside_size` are the bottom cell's. The upper cells read the layer below before the loop if
    `inside_size` is 0, else inside the loop. The scope `multi_rnn_cell/cell_<i>` is used for several layers only.
    `base` is the bottom layer's number for the placement.
    """
    units = architecture.num_units
    above = (0, units) if inside_size else (units, 0)
    cells = []
    for layer in range(num_layers):
        sizes = (ahead_size, inside_size) if layer == 0 else above
        name = f"multi_rnn_cell/cell_{layer}" if num_layers > 1 else None
        with tf.compat.v1.variable_scope(name or tf.compat.v1.get_variable_scope()):
            cells.append(make_cell(architecture, *sizes, placement.layer(base + layer)))
    return cells
