"""The encoder: embedded source sentences -> memory and last state.

"uni" is a stack of layers; "bi" is two stacks, one of which reads the sentences from their ends (Schuster &
Paliwal 1997), with their outputs concatenated (Bahdanau et al. 2015, section 3.2).
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from nmt.model.architecture import Architecture
from nmt.model.cells import CellState, make_stack
from nmt.model.dropout import Dropout
from nmt.model.recurrence import run_stack


class Memory(NamedTuple):
    """What the decoder knows of a batch of sentences.

    Attributes:
        outputs: of the top layer, [time, batch, memory_size], zero past each sentence's end.
        lengths: int32 [batch].
        state: after each sentence's last word, one `CellState` per layer; "bi" alternates forward and
            backward, bottom first.
    """

    outputs: tf.Tensor
    lengths: tf.Tensor
    state: tuple[CellState, ...]


class Encoder:
    """The variables of an encoder and their use.

    Creates `encoder/rnn/...` or `encoder/bidirectional_rnn/{fw,bw}/...` in the current variable scope.
    """

    def __init__(self, architecture: Architecture, dropout: Dropout) -> None:
        self._dropout = dropout
        both = ["bidirectional_rnn/fw", "bidirectional_rnn/bw"]
        directions = both if architecture.encoder_type == "bi" else ["rnn"]
        self._num_residual_layers = architecture.num_encoder_residual_layers // len(directions)
        self._stacks = []
        for direction in directions:
            with tf.compat.v1.variable_scope(f"encoder/{direction}"):
                depth = architecture.num_encoder_layers // len(directions)
                self._stacks.append(make_stack(architecture, depth, architecture.num_units, 0))

    def __call__(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        """Read sentences [time, batch, num_units] of these lengths (int32 [batch], 0 allowed)."""
        time, batch = tf.unstack(tf.shape(embedded)[:2])
        mask = tf.transpose(tf.sequence_mask(lengths, time, embedded.dtype))[:, :, None]
        outputs, states = [], []
        for cells, backwards in zip(self._stacks, (False, True), strict=False):
            start = [cell.zero_state(batch) for cell in cells]
            top, last = run_stack(
                cells,
                embedded,
                start,
                mask,
                self._num_residual_layers,
                self._dropout,
                backwards,
            )
            outputs.append(top)
            states.append(last)
        alternating = [state for layer in zip(*states, strict=True) for state in layer]
        return Memory(outputs[0] if len(outputs) == 1 else tf.concat(outputs, 2), lengths, tuple(alternating))
