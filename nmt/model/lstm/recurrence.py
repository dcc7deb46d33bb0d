"""Recurrence: loops over time, the one place where the model has a while loop.

Everything is time-major, [time, batch, ...]. Works with TensorFlow's first and second control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from nmt.model.lstm.recurrent_cell import Cell, CellState
from nmt.model.parts.dropout import Dropout


def over_time(
    step: Callable[[Any, Any], tuple[Any, Any]],
    inputs: Any,
    state: Any,
    output_widths: Any,
    backwards: bool = False,
) -> tuple[Any, Any]:
    """Apply `step` at every time.

    Args:
        step: (inputs at one time, state) -> (outputs at that time, state).
        inputs: nested tensors [time, ...] of equal time.
        state: nested tensors, the state before the first step.
        output_widths: for each output its last dimension, nested as the outputs are; an output is [batch,
            width], of the first input's type.
        backwards: start at the last time and end at time 0.

    Returns:
        the outputs [time, batch, width], in the order of time either way, and the state after the last step.
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
    """One layer over whole sequences of which every time counts.

    Args:
        cell: a cell that takes its whole input ahead of the loop.
        inputs: [time, batch, size].
        state: before the first step.

    Returns:
        outputs [time, batch, num_units].
    """
    (outputs,), _ = _loop(cell, inputs, state, lambda after: [after.h])
    return outputs


class Reader:
    """Reads sentences of several lengths, layer by layer, from the state of zeros.

    Args:
        lengths: int32 [batch], 0 allowed.
        time: of the longest sentence, at least 1.
        dtype: of what is read.
    """

    def __init__(self, lengths: tf.Tensor, time: tf.Tensor, dtype: tf.DType) -> None:
        self._lengths = lengths
        self._mask = tf.transpose(tf.sequence_mask(lengths, time, dtype))[:, :, None]

    def within(self, values: tf.Tensor) -> tf.Tensor:
        """The same [time, batch, ...], zero past the end of each sentence."""
        return values * self._mask

    def forwards(self, cell: Cell, inputs: tf.Tensor) -> tuple[tf.Tensor, CellState]:
        """One layer.

        The loop reads the padding, too, which comes last; its states are kept, and those after each last word taken
        from them: cheaper than to copy each state past the end, in the loop and in its gradient.

        Args:
            cell: a cell that takes its whole input ahead of the loop.
            inputs: [time, batch, size].

        Returns:
            outputs [time, batch, num_units], zero past the end, and the state after the last word of each sentence.
        """
        parts, _ = _loop(cell, inputs, self._zeros(cell), list)
        with tf.device(cell.device):
            last = tf.maximum(self._lengths - 1, 0)
            places = tf.stack([last, tf.range(tf.size(last))], 1)
            there = tf.cast(self._lengths > 0, inputs.dtype)[:, None]
            state = cell.state_type(*(tf.gather_nd(part, places) * there for part in parts))
            return self.within(cell.state_type(*parts).h), state

    def backwards(self, cell: Cell, inputs: tf.Tensor) -> tuple[tf.Tensor, CellState]:
        """The same from the sentences' ends.

        The padding comes first and leaves the state at zero, so that each sentence starts at its own last word and
        nothing has to be reversed.
        """
        (outputs,), last = _loop(cell, inputs, self._zeros(cell), lambda after: [after.h], self._mask)
        return outputs, last

    def _zeros(self, cell: Cell) -> CellState:
        return cell.zero_state(tf.size(self._lengths))


def _loop(
    cell: Cell,
    inputs: tf.Tensor,
    start: CellState,
    kept: Callable[[CellState], list[tf.Tensor]],
    backwards_mask: tf.Tensor | None = None,
) -> tuple[list[tf.Tensor], CellState]:
    """One layer's loop.

    Args:
        cell: as for `run_layer`.
        inputs: likewise.
        start: the state before the first step.
        kept: the parts of a state that are wanted of all times.
        backwards_mask: [time, batch, 1]; if given, start at the last time, and be zero where this is.

    Returns:
        what was kept, [time, batch, num_units] each, and the state after the last step.
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
    """A stack over whole sequences, one layer after the other.

    Dropout acts on each cell's input. The top `num_residual_layers` layers add their undropped input to their
    output.

    Args:
        cells: bottom first.
        inputs: [time, batch, size].
        run: (number of a layer, its inputs) -> its outputs [time, batch, num_units].
        num_residual_layers: of the stack.
        dropout: of the inputs.

    Returns:
        outputs [time, batch, num_units].
    """
    for layer in range(len(cells)):
        outputs = run(layer, dropout(inputs))
        inputs = outputs + inputs if is_residual(layer, len(cells), num_residual_layers) else outputs
    return inputs


def is_residual(layer: int, num_layers: int, num_residual_layers: int) -> bool:
    """Whether a layer (0 is the bottom) adds its input to its output."""
    return layer >= num_layers - num_residual_layers
