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


def run_layer(
    cell: Cell, inputs: tf.Tensor, state: CellState, mask: tf.Tensor | None, backwards: bool = False
) -> tuple[tf.Tensor, CellState]:
    """One layer over whole sequences.

    Args:
        cell: a cell that takes its whole input ahead of the loop.
        inputs: [time, batch, size].
        state: before the first step.
        mask: [time, batch, 1], 1 inside a sentence and 0 past its end, where the state is copied through and
            the output is 0; None if every time counts.
        backwards: read the sentences from their ends. The padding then comes first and leaves the state as it
            is, so that each sentence starts at its own last word and nothing has to be reversed.

    Returns:
        outputs [time, batch, num_units], zero past the end, and the state after the last word of each
        sentence.
    """

    def step(now: tuple[list[tf.Tensor], list[tf.Tensor]], state: CellState) -> tuple[Any, CellState]:
        projected, inside = now
        after, fed = layer.step(projected, None, state)
        output = after.h
        if inside:
            after = tf.nest.map_structure(lambda old, new: old + inside[0] * (new - old), state, after)
        return (output, fed), after

    with tf.device(cell.device):
        layer = cell.in_loop(cell.project(inputs))
        read = (layer.projected, [] if mask is None else [mask])
        (outputs, fed), last = over_time(step, read, state, (cell.num_units, layer.fed_sizes), backwards)
        layer.close(fed)
        return (outputs if mask is None else outputs * mask), last


def run_stack(
    cells: Sequence[Cell],
    inputs: tf.Tensor,
    states: Sequence[CellState],
    mask: tf.Tensor | None,
    num_residual_layers: int,
    dropout: Dropout,
    backwards: bool = False,
) -> tuple[tf.Tensor, list[CellState]]:
    """A stack over whole sequences, one layer after the other; arguments as for `run_layer`.

    Dropout acts on each cell's input. The top `num_residual_layers` layers add their undropped input to their
    output.
    """
    last = []
    for layer, (cell, state) in enumerate(zip(cells, states, strict=True)):
        outputs, final = run_layer(cell, dropout(inputs), state, mask, backwards)
        inputs = outputs + inputs if is_residual(layer, len(cells), num_residual_layers) else outputs
        last.append(final)
    # The embedded padding is not zero; a residual bottom layer would let it through.
    return (inputs if mask is None or num_residual_layers < len(cells) else inputs * mask), last


def is_residual(layer: int, num_layers: int, num_residual_layers: int) -> bool:
    """Whether a layer (0 is the bottom) adds its input to its output."""
    return layer >= num_layers - num_residual_layers
