"""The model again, in NumPy and float64, one sentence at a time: no batch, no padding, no graph.

Written from the formulas (Luong et al. 2015; Bahdanau et al. 2015; the tutorial's wiring), sharing no code
with `nmt.model`. Weights are looked up by their full names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nmt.model.architecture import Architecture

Array = np.ndarray
State = list[tuple[Array, Array]]


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def log_softmax(x: Array) -> Array:
    """Logarithms of the softmax of a vector."""
    shifted = x - x.max()
    return shifted - np.log(np.exp(shifted).sum())


@dataclass
class OracleModel:
    """A model with given weights.

    Attributes:
        architecture: how they are wired.
        weights: full variable name -> value.
    """

    architecture: Architecture
    weights: Mapping[str, Array]

    def weight(self, name: str) -> Array:
        """The variable below `dynamic_seq2seq`."""
        return np.asarray(self.weights[f"dynamic_seq2seq/{name}"], np.float64)

    def cell(self, scope: str, x: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        """One LSTM step: (c, h) after reading x."""
        c, h = state
        kernel, bias = (
            self.weight(f"{scope}/basic_lstm_cell/kernel"),
            self.weight(f"{scope}/basic_lstm_cell/bias"),
        )
        i, j, f, o = np.split(np.concatenate([x, h]) @ kernel + bias, 4)
        c = sigmoid(f + self.architecture.forget_bias) * c + sigmoid(i) * np.tanh(j)
        return c, sigmoid(o) * np.tanh(c)

    def stack(self, scope: str, depth: int, residual: int, x: Array, states: State) -> tuple[Array, State]:
        """One step of a stack whose top `residual` layers add their inputs."""
        after = []
        for layer in range(depth):
            name = scope if depth == 1 else f"{scope}/multi_rnn_cell/cell_{layer}"
            after.append(self.cell(name, x, states[layer]))
            x = after[-1][1] + (x if layer >= depth - residual else 0.0)
        return x, after

    def zeros(self, depth: int) -> State:
        """The start of a stack."""
        zero = np.zeros(self.architecture.num_units)
        return [(zero, zero)] * depth

    def encode(self, source: Sequence[int]) -> tuple[Array, State]:
        """The memory [words, memory_size] and the last states."""
        a = self.architecture
        embedding = np.asarray(self.weights["embeddings/encoder/embedding_encoder"], np.float64)
        words = [embedding[i] for i in source]
        if a.encoder_type == "uni":
            return self._read("encoder/rnn", a.num_encoder_layers, a.num_encoder_residual_layers, words)
        depth, residual = a.num_encoder_layers // 2, a.num_encoder_residual_layers // 2
        ahead, forward = self._read("encoder/bidirectional_rnn/fw", depth, residual, words)
        back, backward = self._read("encoder/bidirectional_rnn/bw", depth, residual, words[::-1])
        states = [state for pair in zip(forward, backward, strict=True) for state in pair]
        return np.concatenate([ahead, back[::-1]], 1), states

    def _read(self, scope: str, depth: int, residual: int, words: list[Array]) -> tuple[Array, State]:
        states, outputs = self.zeros(depth), []
        for word in words:
            output, states = self.stack(scope, depth, residual, word, states)
            outputs.append(output)
        return np.array(outputs), states

    def attend(self, memory: Array, query: Array) -> tuple[Array, Array]:
        """The context and the weights."""
        kind, keys = self.architecture.attention, memory @ self.weight("decoder/memory_layer/kernel")
        if kind.endswith("luong"):
            scores = keys @ query
            if kind == "scaled_luong":
                scores = scores * self.weight("decoder/attention/luong_attention/attention_g")
        else:
            scope = "decoder/attention/bahdanau_attention"
            hidden, v = (
                keys + query @ self.weight(f"{scope}/query_layer/kernel"),
                self.weight(f"{scope}/attention_v"),
            )
            if kind == "normed_bahdanau":
                hidden = hidden + self.weight(f"{scope}/attention_b")
                v = self.weight(f"{scope}/attention_g") * v / np.linalg.norm(v)
            scores = np.tanh(hidden) @ v
        weights = np.exp(log_softmax(scores))
        return weights @ memory, weights

    def start(self, source: Sequence[int]) -> OracleDecoding:
        """A decoder that has written nothing yet."""
        a = self.architecture
        memory, states = self.encode(source)
        if not a.pass_hidden_state:
            states = self.zeros(a.num_decoder_layers)
        return OracleDecoding(self, memory, states, np.zeros(a.num_units))

    def loss(self, source: Sequence[int], target_in: Sequence[int], target_out: Sequence[int]) -> float:
        """Cross-entropy of one sentence, in nats."""
        total, decoding = 0.0, self.start(source)
        for given, wanted in zip(target_in, target_out, strict=True):
            logits, decoding = decoding.step(given)
            total -= log_softmax(logits)[wanted]
        return float(total)


@dataclass
class OracleDecoding:
    """A decoder between two words; `step` makes a new one and leaves this one as it is."""

    model: OracleModel
    memory: Array
    states: State
    attention: Array
    weights: Array | None = None

    def step(self, word: int) -> tuple[Array, OracleDecoding]:
        """Logits of the next word after this one."""
        model, a = self.model, self.model.architecture
        x = np.asarray(model.weights["embeddings/decoder/embedding_decoder"], np.float64)[word]
        depth, residual = a.num_decoder_layers, a.num_decoder_residual_layers
        attention, weights = self.attention, None
        if a.attention:
            fed = np.concatenate([x, attention])
            query, states = model.stack("decoder/attention", depth, residual, fed, self.states)
            context, weights = model.attend(self.memory, query)
            attention = np.concatenate([query, context]) @ model.weight(
                "decoder/attention/attention_layer/kernel",
            )
            output = attention if a.output_attention else query
        else:
            output, states = model.stack("decoder", depth, residual, x, self.states)
        logits = output @ model.weight("decoder/output_projection/kernel")
        return logits, OracleDecoding(model, self.memory, states, attention, weights)
