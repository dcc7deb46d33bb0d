"""GNMT decoder: only the bottom layer computes the attention (Wu et al. 2016, section 3, figure 1).

    q_t       = cell_0([y_t; context_{t-1}])
    context_t = context(q_t)
    x_t^0     = q_t
    x_t^i     = cell_i([x_t^{i-1}; s_t]), plus x_t^{i-1} if the layer is residual
    output_t  = the top x_t

where s_t is context_{t-1} in "gnmt" and context_t in "gnmt_v2". The upper layers' outputs are not fed back. So in
training only the bottom layer shares its loop with the attention. An upper layer's whole input is known before its own
loop, and its products are computed for all times at once.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from nmt.model.interface import Memory
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.attention import Attention
from nmt.model.lstm.cell_kinds import make_cell
from nmt.model.lstm.decoder import BoundDecoder, DecoderState
from nmt.model.lstm.recurrence import over_time, run_layer
from nmt.model.lstm.recurrent_cell import CellState
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.placement import Placement

_WRAPPER = "multi_rnn_cell/cell_0_attention/attention"


class GNMTDecoder:
    """The variables of the decoder, in the scope `decoder` of the current variable scope.

    The attention's `memory_layer` is there. The bottom cell and the attention's score are in
    `multi_rnn_cell/cell_0_attention/attention`, and the upper cells in `multi_rnn_cell/cell_<i>`.
    """

    def __init__(self, architecture: LSTMArchitecture, dropout: Dropout, placement: Placement) -> None:
        self.architecture = architecture
        self.dropout = dropout
        self.device = placement.layer(0)
        units, context = architecture.num_units, architecture.memory_size
        scope = tf.compat.v1.variable_scope
        with tf.device(self.device), scope("decoder"):
            self.attention = Attention(architecture, _WRAPPER)
            with scope(_WRAPPER):
                self.cells = [make_cell(architecture, architecture.target_size, context, self.device)]
            for layer in range(1, architecture.num_decoder_layers):
                with scope(f"multi_rnn_cell/cell_{layer}"):
                    self.cells.append(make_cell(architecture, units + context, 0, placement.layer(layer)))

    def over(self, memory: Memory) -> BoundDecoder:
        """Return the decoder for this memory."""
        with tf.device(self.device):
            return _BoundGNMT(self, memory)


class _BoundGNMT(BoundDecoder):
    def __init__(self, decoder: GNMTDecoder, memory: Memory) -> None:
        architecture = decoder.architecture
        self._dropout = decoder.dropout
        self._newest = architecture.attention_architecture == "gnmt_v2"
        self._attention = decoder.attention.over(memory.outputs, memory.lengths)
        width = architecture.memory_size
        super().__init__(architecture, decoder.cells, memory, width, decoder.device, self._attention)

    def _all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        below, contexts = self._bottom_layer(embedded)
        if not self._newest:
            contexts = tf.concat([self.initial_state.attention[None], contexts], 0)[:-1]
        for layer in range(1, len(self._cells)):
            inputs = self._dropout(tf.concat([below, contexts], 2))
            outputs = run_layer(self._cells[layer], inputs, self.initial_state.cells[layer])
            below = outputs + below if self._is_residual(layer) else outputs
        return below

    def _bottom_layer(self, embedded: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the bottom cell's outputs [time, batch, num_units] and the contexts [time, batch, memory_size]."""
        steps, batch = tf.unstack(tf.shape(embedded)[:2])
        cell = self._cells[0].in_loop(self._cells[0].project(self._dropout(embedded)))
        attention = self._attention.in_loop(steps)
        start = DecoderState(self.initial_state.cells[:1], self.initial_state.attention)
        width = start.attention.shape[1]
        masks = []
        if self._dropout.active:
            masks = [self._dropout.mask(tf.stack([steps, batch, width]), embedded.dtype)]
            masks[0].set_shape([None, None, width])

        def step(now: Any, state: DecoderState) -> tuple[Any, DecoderState]:
            outside, zeros, projected, dropped = now
            inside = state.attention * dropped[0] if dropped else state.attention
            after, fed = cell.step(projected, inside, state.cells[0])
            context, weights = attention.step(after.h, outside, zeros)
            return (after.h, context, weights, fed), DecoderState((after,), context)

        read = (attention.outside, attention.zeros, cell.projected, masks)
        widths = (self._cells[0].num_units, width, None, cell.fed_sizes)
        (queries, contexts, weights, fed), _ = over_time(step, read, start, widths)
        attention.close(queries, weights)
        cell.close(fed)
        return queries, contexts

    def _step(
        self, embedded: tf.Tensor, state: DecoderState, sources: Any
    ) -> tuple[tf.Tensor, DecoderState, tf.Tensor]:
        cells: list[CellState] = []
        cells.append(self._cells[0].step(self._cells[0].project(embedded), state.attention, state.cells[0]))
        below = cells[0].h
        context, weights = self._attention(below, sources)
        attention = context if self._newest else state.attention
        for layer in range(1, len(self._cells)):
            cell = self._cells[layer]
            inputs = tf.concat([below, attention], 1)
            cells.append(cell.step(cell.project(inputs), None, state.cells[layer]))
            below = cells[-1].h + below if self._is_residual(layer) else cells[-1].h
        return below, DecoderState(tuple(cells), context), weights
