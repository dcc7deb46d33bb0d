"""Recurrence: loops over time, or cuDNN's LSTM on a GPU. This is the model's only module with a while loop.

All tensors are time-major, [time, batch, ...]. The code works with both versions of TensorFlow's control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from nmt.model.lstm import cudnn
from nmt.model.lstm.recurrent_cell import Cell, CellState
from nmt.model.parts.dropout import Dropout


def over_time(
    step: Callable[[Any, Any], tuple[Any, Any]],
    inputs: Any,
    state: Any,
    output_widths: Any,
    backwards: bool = False,
) -> tuple[Any, Any]:
    """Run `step` at every time and return the outputs and the last state.

    Args:
        step: function (inputs at one time, state) -> (outputs at that time, state).
        inputs: nested tensors [time, ...] of equal time.
        state: state before the first step, nested tensors.
        output_widths: width of each output, nested as the outputs. An output of a step is [batch, width], with the
            first input's dtype.
        backwards: True to start at the last time and end at time 0.

    Returns:
        the outputs [time, batch, width], indexed by time in both directions, and the state after the last step.
    """
    read = tf.nest.flatten(inputs)
    steps = tf.shape(read[0])[0]
    dtype, batch = read[0].dtype, read[0].shape[1]
    arrays = [tf.TensorArray(x.dtype, steps, element_shape=x.shape[1:]).unstack(x) for x in read]
    widths = tf.nest.flatten(output_widths)
    written = [tf.TensorArray(dtype, steps, element_shape=[batch, width]) for width in widths]

    def body(count: tf.Tensor, old: list[tf.Tensor], written: list[Any]) -> tuple[Any, ...]:
        time = steps - 1 - count if backwards else count
        now = tf.nest.pack_sequence_as(inputs, [array.read(time) for array in arrays])
        outputs, state_after = step(now, tf.nest.pack_sequence_as(state, old))
        tf.nest.assert_same_structure(output_widths, outputs)
        new = tf.nest.flatten(state_after)
        for before, after in zip(old, new, strict=True):
            after.set_shape(before.shape)
        values = tf.nest.flatten(outputs)
        return count + 1, new, [array.write(time, x) for array, x in zip(written, values, strict=True)]

    _, last, written = tf.while_loop(
        lambda count, *_: count < steps, body, [tf.constant(0), tf.nest.flatten(state), written]
    )
    outputs = tf.nest.pack_sequence_as(output_widths, [array.stack() for array in written])
    return outputs, tf.nest.pack_sequence_as(state, last)


def run_layer(cell: Cell, inputs: tf.Tensor, state: CellState) -> tf.Tensor:
    """Run one layer over whole sequences without padding.

    Args:
        cell: a cell that reads its whole input before the loop (inside_size 0).
        inputs: inputs of the layer, [time, batch, size].
        state: state before the first step.

    Returns:
        outputs [time, batch, num_units].
    """
    if cudnn.runs(cell):
        outputs, _ = cudnn.run(cell, inputs, tf.fill([tf.shape(inputs)[1]], tf.shape(inputs)[0]), state)
    else:
        (outputs,), _ = _loop(cell, inputs, state, lambda after: [after.h])
    return outputs


class Reader:
    """Runs layers over sentences of different lengths, starting from a state of zeros.

    Args:
        lengths: lengths of the sentences, int32 [batch], 0 allowed.
        time: length of the longest sentence, at least 1.
        dtype: dtype of the layers' inputs.
    """

    def __init__(self, lengths: tf.Tensor, time: tf.Tensor, dtype: tf.DType) -> None:
        self._lengths = lengths
        self._mask = tf.transpose(tf.sequence_mask(lengths, time, dtype))[:, :, None]

    def within(self, values: tf.Tensor) -> tf.Tensor:
        """Return the values [time, batch, ...] with zeros past the end of each sentence."""
        return values * self._mask

    def forwards(self, cell: Cell, inputs: tf.Tensor) -> tuple[tf.Tensor, CellState]:
        """Run one layer forwards.

        The loop also reads the padding, which comes last. It stores the states of all times, from which the state after
        each sentence's last word is taken. To copy each state past the end would cost more, also in the gradient.

        Args:
            cell: a cell that reads its whole input before the loop (inside_size 0).
            inputs: inputs of the layer, [time, batch, size].

        Returns:
            the outputs [time, batch, num_units], zero past the end, and the state after each sentence's last word.
        """
        if cudnn.runs(cell):
            return self._by_cudnn(cell, inputs)
        parts, _ = _loop(cell, inputs, self._zeros(cell), list)
        with tf.device(cell.device):
            last = tf.maximum(self._lengths - 1, 0)
            places = tf.stack([last, tf.range(tf.size(last))], 1)
            there = tf.cast(self._lengths > 0, inputs.dtype)[:, None]
            state = cell.state_type(*(tf.gather_nd(part, places) * there for part in parts))
            return self.within(cell.state_type(*parts).h), state

    def backwards(self, cell: Cell, inputs: tf.Tensor) -> tuple[tf.Tensor, CellState]:
        """Run one layer backwards; arguments and results as for `forwards`.

        The padding comes first, and the state stays zero there. So each sentence starts at its own last word, and no
        sentence has to be reversed.
        """
        if cudnn.runs(cell):
            with tf.device(cell.device):
                outputs, state = self._by_cudnn(cell, tf.reverse_sequence(inputs, self._lengths, 0, 1))
                return tf.reverse_sequence(outputs, self._lengths, 0, 1), state
        (outputs,), last = _loop(cell, inputs, self._zeros(cell), lambda after: [after.h], self._mask)
        return outputs, last

    def _by_cudnn(self, cell: Cell, inputs: tf.Tensor) -> tuple[tf.Tensor, CellState]:
        with tf.device(cell.device):
            # cuDNN has no sentences of length 0: it reads one padding word of theirs, which is then taken out.
            outputs, state = cudnn.run(cell, inputs, tf.maximum(self._lengths, 1), self._zeros(cell))
            there = tf.cast(self._lengths > 0, inputs.dtype)[:, None]
            return self.within(outputs), tf.nest.map_structure(lambda part: part * there, state)

    def _zeros(self, cell: Cell) -> CellState:
        return cell.zero_state(tf.size(self._lengths))


def _loop(
    cell: Cell,
    inputs: tf.Tensor,
    start: CellState,
    kept: Callable[[CellState], list[tf.Tensor]],
    backwards_mask: tf.Tensor | None = None,
) -> tuple[list[tf.Tensor], CellState]:
    """Run the loop of one layer.

    Args:
        cell: a cell that reads its whole input before the loop (inside_size 0).
        inputs: inputs of the layer, [time, batch, size].
        start: state before the first step.
        kept: function that selects the parts of a state to return for all times.
        backwards_mask: [time, batch, 1]; if given, the loop runs backwards, and the state is zero where the mask is.

    Returns:
        the selected parts, [time, batch, num_units] each, and the state after the last step.
    """

    def step(now: tuple[list[tf.Tensor], list[tf.Tensor]], state: CellState) -> tuple[Any, CellState]:
        projected, mask = now
        after, fed = layer.step(projected, None, state)
        if mask:
            after = tf.nest.map_structure(lambda part: part * mask[0], after)
        return (kept(after), fed), after

    with tf.device(cell.device):
        layer = cell.in_loop(cell.project(inputs))
        read = (layer.projected, [] if backwards_mask is None else [backwards_mask])
        widths = (len(kept(start)) * [cell.num_units], layer.fed_sizes)
        (outputs, fed), last = over_time(step, read, start, widths, backwards_mask is not None)
        layer.close(fed)
        return outputs, last


def run_stack(
    cells: Sequence[Cell],
    inputs: tf.Tensor,
    run: Callable[[int, tf.Tensor], tf.Tensor],
    num_residual_layers: int,
    dropout: Dropout,
) -> tf.Tensor:
    """Run a stack of layers over whole sequences, one layer after the other, and return the top outputs.

    Dropout acts on each cell's input. The top `num_residual_layers` layers add their input before dropout to their
    output.

    Args:
        cells: cells of the layers, bottom first.
        inputs: inputs of the bottom layer, [time, batch, size].
        run: function (number of a layer, its inputs) -> its outputs [time, batch, num_units].
        num_residual_layers: number of top layers with a residual connection.
        dropout: dropout of each layer's inputs.

    Returns:
        outputs of the top layer, [time, batch, num_units].
    """
    for layer in range(len(cells)):
        outputs = run(layer, dropout(inputs))
        inputs = outputs + inputs if is_residual(layer, len(cells), num_residual_layers) else outputs
    return inputs


def is_residual(layer: int, num_layers: int, num_residual_layers: int) -> bool:
    """Return True if a layer (0 is the bottom) has a residual connection."""
    return layer >= num_layers - num_residual_layers
