"""Encoder of a recurrent model: embedded source sentences -> memory with the last state.

"uni" is a stack of forward layers. "bi" is a forward and a backward stack (Schuster & Paliwal 1997) with concatenated
outputs (Bahdanau et al. 2015, section 3.2). "gnmt" is one bidirectional layer below a forward stack (Wu et al. 2016,
section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from nmt.model.interface import Memory
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.cell_kinds import make_stack
from nmt.model.lstm.recurrence import Reader, run_stack
from nmt.model.lstm.recurrent_cell import Cell, CellState
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.placement import Placement

ReadLayer = Callable[[Cell, tf.Tensor], tuple[tf.Tensor, CellState]]  # a method of `Reader`


class Encoder:
    """The variables of an encoder and its computation.

    Creates, in the current variable scope, `encoder/bidirectional_rnn/{fw,bw}/...` for the bidirectional layers and
    `encoder/rnn/...` for the forward layers.
    """

    def __init__(self, architecture: LSTMArchitecture, dropout: Dropout, placement: Placement) -> None:
        self._dropout = dropout
        kind, layers, size = architecture.encoder_type, architecture.num_encoder_layers, architecture.source_size
        residual = architecture.num_encoder_residual_layers
        self._keeps_forward_state = kind == "bi"
        self._both: list[list[Cell]] = []
        both = {"uni": 0, "bi": layers // 2, "gnmt": 1}[kind]
        self._both_residual, self._one_residual = (residual // 2, 0) if kind == "bi" else (0, residual)
        if both:
            for number, direction in enumerate(("fw", "bw")):
                with tf.compat.v1.variable_scope(f"encoder/bidirectional_rnn/{direction}"):
                    self._both.append(make_stack(architecture, both, size, 0, placement, number * both))
        one = {"uni": layers, "bi": 0, "gnmt": layers - 1}[kind]
        with tf.compat.v1.variable_scope("encoder/rnn"):
            self._one = make_stack(architecture, one, 2 * architecture.num_units if both else size, 0, placement, both)

    def __call__(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        """Encode sentences [time, batch, source_size], time at least 1, of these lengths (int32 [batch], 0 allowed).

        The memory's state has one `CellState` per layer, after each sentence's last word, bottom first. In "bi" forward
        and backward states alternate. In "gnmt" the bottom layer's state is that of its backward direction.
        """
        reader = Reader(lengths, tf.shape(embedded)[0], embedded.dtype)
        outputs, states = embedded, list[CellState]()
        if self._both:
            forward, forward_states = self._read(self._both[0], embedded, reader, reader.forwards, self._both_residual)
            backward, backward_states = self._read(
                self._both[1], embedded, reader, reader.backwards, self._both_residual
            )
            outputs = tf.concat([forward, backward], 2)
            for pair in zip(forward_states, backward_states, strict=True):
                states += pair if self._keeps_forward_state else pair[1:]
        if self._one:
            outputs, last = self._read(self._one, outputs, reader, reader.forwards, self._one_residual)
            states += last
        return Memory(outputs, lengths, tuple(states))

    def _read(
        self, cells: list[Cell], inputs: tf.Tensor, reader: Reader, read: ReadLayer, num_residual_layers: int
    ) -> tuple[tf.Tensor, list[CellState]]:
        states = list[CellState]()

        def run(layer: int, inputs: tf.Tensor) -> tf.Tensor:
            outputs, last = read(cells[layer], inputs)
            states.append(last)
            return outputs

        outputs = run_stack(cells, inputs, run, num_residual_layers, self._dropout)
        # The embedded padding is not zero, and a residual bottom layer would add it to the outputs.
        return (reader.within(outputs) if num_residual_layers >= len(cells) else outputs), states
