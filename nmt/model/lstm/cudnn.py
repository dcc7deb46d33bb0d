"""cuDNN's LSTM: on an NVIDIA GPU, one operation runs a layer over all times, in place of a loop of small operations.

Source: tensorflow/core/ops/cudnn_rnn_ops.cc, `CudnnRNNV3`; the order of the weights is that of NVIDIA's documentation
of `cudnnGetRNNWeightParams`. cuDNN has the cell of `cell_kinds.LSTMCell`, with two biases that are added.
"""

from __future__ import annotations

import tensorflow as tf

from nmt.model.lstm.recurrent_cell import Cell, CellState, LSTMState


def runs(cell: Cell) -> bool:
    """Return True if cuDNN can run this cell, where its whole input is known before the loop: an LSTM on a GPU."""
    return cell.gates is not None and "gpu" in cell.device and bool(tf.config.list_physical_devices("GPU"))


def run(cell: Cell, inputs: tf.Tensor, lengths: tf.Tensor, state: CellState) -> tuple[tf.Tensor, LSTMState]:
    """Run one layer over sentences.

    Args:
        cell: a cell for which `runs` is true.
        inputs: inputs of the layer, [time, batch, size].
        lengths: lengths of the sentences, int32 [batch], at least 1.
        state: state before the first step.

    Returns:
        the outputs [time, batch, num_units], undefined past the end, and the state after each sentence's last word.
    """
    assert isinstance(state, LSTMState) and cell.gates is not None and cell.gates.bias is not None
    with tf.device(cell.device):
        bias = _in_order(cell.gates.bias[None])
        weights = [_in_order(cell.gates.ahead), _in_order(cell.gates.inside), bias, tf.zeros_like(bias)]
        found = tf.raw_ops.CudnnRNNV3(
            input=inputs,
            input_h=state.h[None],
            input_c=state.c[None],
            params=tf.concat(weights, 0),
            sequence_lengths=lengths,
            rnn_mode="lstm",
            input_mode="linear_input",
            direction="unidirectional",
            is_training=True,
            time_major=True,
        )
        outputs, h, c = found[0], found[1][0], found[2][0]
        for tensor in (outputs, h, c):
            tensor.set_shape([*[None] * (tensor.shape.rank - 1), cell.num_units])
        return outputs, LSTMState(c, h)


def _in_order(kernel: tf.Tensor) -> tf.Tensor:
    """Return a kernel [rows, 4 * units] as cuDNN reads it: input, forget, new, output gate, each as [units, rows]."""
    i, j, f, o = tf.split(kernel, 4, axis=1)
    return tf.reshape(tf.transpose(tf.concat([i, f, j, o], 1)), [-1])
