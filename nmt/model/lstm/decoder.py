"""Decoder with attention and input feeding: memory and target words -> one output vector per target position.

With attention (Luong et al. 2015, section 3.3, "input feeding"; linear where they have a tanh):

    q_t         = stack([y_t; attention_{t-1}])
    attention_t = Wa [q_t; context(q_t)]
    output_t    = attention_t, or q_t if output_attention is off

Without attention the decoder is a plain stack of layers that starts from the encoder's last state. Training runs over
all target words in one loop; search runs the same step for one word at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from nmt.model.interface import Decoding, Memory
from nmt.model.lstm import loop_kernel
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.model.lstm.attention import Attention, BoundAttention
from nmt.model.lstm.cell_kinds import make_stack
from nmt.model.lstm.loop_kernel import LoopKernel
from nmt.model.lstm.recurrence import is_residual, over_time, run_layer, run_stack
from nmt.model.lstm.recurrent_cell import Cell, CellState
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.placement import Placement


class DecoderState(NamedTuple):
    """State of the decoder between two target words.

    Attributes:
        cells: state of each layer's cell, bottom first.
        attention: the last step's attention vector (or context), which the next step reads, [batch, width]; width 0
            without attention.
    """

    cells: tuple[CellState, ...]
    attention: tf.Tensor


class BoundDecoder(Decoding):
    """A decoder for one batch of source sentences.

    Args:
        architecture: the model's architecture.
        cells: cells of the layers, bottom first.
        memory: memory of the sentences.
        attention_width: width of `DecoderState.attention`.
        device: name of the device of everything but the cells.
        bound: the attention to this memory; None without attention.

    Attributes:
        initial_state: state before the first target word.
        sources: the memory as attention reads it; () without attention.
    """

    def __init__(
        self,
        architecture: LSTMArchitecture,
        cells: Sequence[Cell],
        memory: Memory,
        attention_width: int,
        device: str,
        bound: BoundAttention | None,
    ) -> None:
        self.sources: Any = bound.memory if bound else ()
        self._cells = cells
        self._device = device
        self._num_residual_layers = architecture.num_decoder_residual_layers
        batch = tf.shape(memory.lengths)[0]
        zeros = tuple(cell.zero_state(batch) for cell in cells)
        attention = tf.zeros(tf.stack([batch, attention_width]), memory.outputs.dtype)
        attention.set_shape([None, attention_width])
        self.initial_state = DecoderState(memory.state if architecture.pass_hidden_state else zeros, attention)

    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        """Return the outputs for given target words, with dropout."""
        with tf.device(self._device):
            return self._all_steps(embedded)

    def step(
        self, embedded: tf.Tensor, state: DecoderState, sources: Any
    ) -> tuple[tf.Tensor, DecoderState, tf.Tensor | None]:
        """Run one step without dropout."""
        with tf.device(self._device):
            return self._step(embedded, state, sources)

    @abstractmethod
    def _all_steps(self, embedded: tf.Tensor) -> tf.Tensor: ...

    @abstractmethod
    def _step(
        self, embedded: tf.Tensor, state: DecoderState, sources: Any
    ) -> tuple[tf.Tensor, DecoderState, tf.Tensor | None]: ...

    def _is_residual(self, layer: int) -> bool:
        return is_residual(layer, len(self._cells), self._num_residual_layers)


class Decoder:
    """The variables of a decoder without attention, or with attention around the whole stack.

    Creates `decoder/...` in the current variable scope. With attention, `decoder/attention` holds the stack and
    `attention_layer/kernel` [num_units + memory_size, num_units].
    """

    def __init__(self, architecture: LSTMArchitecture, dropout: Dropout, placement: Placement) -> None:
        self.architecture = architecture
        self.dropout = dropout
        self.device = placement.layer(architecture.num_decoder_layers - 1)
        units, layers = architecture.num_units, architecture.num_decoder_layers
        self.attention: Attention | None = None
        with tf.device(self.device), tf.compat.v1.variable_scope("decoder"):
            if not architecture.attention:
                self.cells = make_stack(architecture, layers, architecture.target_size, 0, placement)
                return
            self.attention = Attention(architecture, "attention")
            with tf.compat.v1.variable_scope("attention"):
                self.cells = make_stack(architecture, layers, architecture.target_size, units, placement)
                with tf.compat.v1.variable_scope("attention_layer"):
                    shape = [units + architecture.memory_size, units]
                    self.attention_layer = tf.identity(tf.compat.v1.get_variable("kernel", shape))
                    self.attention_layer_for_search = loop_kernel.for_search(self.attention_layer)

    def over(self, memory: Memory) -> BoundDecoder:
        """Return the decoder for this memory."""
        with tf.device(self.device):
            return _BoundStack(self, memory)


class _BoundStack(BoundDecoder):
    def __init__(self, decoder: Decoder, memory: Memory) -> None:
        self._decoder = decoder
        self._attention: BoundAttention | None = None
        if decoder.attention is not None:
            self._attention = decoder.attention.over(memory.outputs, memory.lengths)
        width = decoder.architecture.num_units if decoder.attention else 0
        super().__init__(decoder.architecture, decoder.cells, memory, width, decoder.device, self._attention)

    def _all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        if self._attention is None:
            cells, states = self._cells, self.initial_state.cells

            def run(layer: int, inputs: tf.Tensor) -> tf.Tensor:
                return run_layer(cells[layer], inputs, states[layer])

            return run_stack(cells, embedded, run, self._num_residual_layers, self._decoder.dropout)
        return self._all_steps_with_attention(self._attention, embedded)

    def _all_steps_with_attention(self, bound: BoundAttention, embedded: tf.Tensor) -> tf.Tensor:
        """Run the training loop over all target words: the equations above, in four parts.

        1. Before the loop: the bottom cell's product with the words for all times, dropout masks, and the memory's
           product with its part of Wa. For Wa [q; sum a_s m_s] = Wa_q q + sum a_s (Wa_m m_s).
        2. `step`, the recurrence: the stack reads [y_t; attention_{t-1}], and its top output is the query.
        3. The loop: it reads the products of part 1 and writes the outputs and the factors multiplied inside.
        4. After the loop: the factors are passed on for the gradients (see `nmt.model.lstm.deferred_gradients`).
        """
        dropout, units, depth = self._decoder.dropout, self._decoder.architecture.num_units, len(self._cells)
        # The inputs known before the loop: the embedded words for the bottom cell, nothing (width 0) for the others.
        ahead = [dropout(embedded)] + [embedded[:, :, :0]] * (depth - 1)
        cells = [cell.in_loop(cell.project(x)) for cell, x in zip(self._cells, ahead, strict=True)]
        of_query, of_memory = tf.split(self._decoder.attention_layer, [units, -1])
        of_memory.set_shape([self._decoder.architecture.memory_size, units])
        attention = bound.in_loop(tf.shape(embedded)[0], of_memory)
        query_kernel = LoopKernel(of_query)
        zeros = query_kernel.carry(attention.zeros)
        # One mask for the attention vector that the bottom cell reads, and one for each upper layer's input.
        masks = []
        if dropout.active:
            shape = tf.concat([tf.shape(embedded)[:2], [units]], 0)
            masks = [dropout.mask(shape, embedded.dtype) for _ in self._cells]
            for mask in masks:
                mask.set_shape([None, None, units])

        def step(now: Any, state: DecoderState) -> tuple[Any, DecoderState]:
            outside, zeros, projected, dropped = now
            fed: list[list[tf.Tensor]] = []

            def advance(layer: int, inside: tf.Tensor) -> CellState:
                masked = inside * dropped[layer] if dropped else inside
                after, was_fed = cells[layer].step(projected[layer], masked, state.cells[layer])
                fed.append(was_fed)
                return after

            query, states = self._climb(state.attention, advance)
            projected_context, weights = attention.step(query, outside, zeros)
            vector = query_kernel.times(query) + projected_context
            return (vector, query, weights, fed), DecoderState(states, vector)

        read = (attention.outside, zeros, [cell.projected for cell in cells], masks)
        widths = (units, units, None, [cell.fed_sizes for cell in cells])
        (vectors, queries, weights, fed), _ = over_time(step, read, self.initial_state, widths)
        attention.close(queries, weights)
        query_kernel.fed(queries)
        for cell, was_fed in zip(cells, fed, strict=True):
            cell.close(was_fed)
        return vectors if self._decoder.architecture.output_attention else queries

    def _step(
        self, embedded: tf.Tensor, state: DecoderState, sources: Any
    ) -> tuple[tf.Tensor, DecoderState, tf.Tensor | None]:
        cells = self._cells
        nothing = embedded[:, :0]
        if self._attention is None:

            def alone(layer: int, below: tf.Tensor) -> CellState:
                return cells[layer].step(cells[layer].project(below), None, state.cells[layer])

            output, states = self._climb(embedded, alone)
            return output, DecoderState(states, state.attention), None

        def attended(layer: int, inside: tf.Tensor) -> CellState:
            projected = cells[layer].project(nothing if layer else embedded)
            return cells[layer].step(projected, inside, state.cells[layer])

        query, states = self._climb(state.attention, attended)
        context, weights = self._attention(query, sources)
        vector = self._attend(query, context)
        output = vector if self._decoder.architecture.output_attention else query
        return output, DecoderState(states, vector), weights

    def _climb(
        self, inputs: tf.Tensor, advance: Callable[[int, tf.Tensor], CellState]
    ) -> tuple[tf.Tensor, tuple[CellState, ...]]:
        """Run one step of all layers with residual connections; `advance` runs one layer."""
        states = []
        for layer in range(len(self._cells)):
            after = advance(layer, inputs)
            inputs = after.h + inputs if self._is_residual(layer) else after.h
            states.append(after)
        return inputs, tuple(states)

    def _attend(self, query: tf.Tensor, context: tf.Tensor) -> tf.Tensor:
        return tf.matmul(tf.concat([query, context], 1), self._decoder.attention_layer_for_search)
