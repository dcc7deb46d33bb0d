"""A second implementation of the model in NumPy and float64, one sentence at a time: no batch, no padding, no graph.

It follows the formulas: Luong et al. 2015; Bahdanau et al. 2015; Wu et al. 2016; each cell's paper; the tutorial's
wiring. It shares no code with `nmt.model`. Weights are looked up by their full names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nmt.model.lstm.architecture import LSTMArchitecture
from tests.nmt.model.oracle_embeddings import source_vectors, target_vector

Array = np.ndarray
# Layer: (c, h) of one layer, or (h,) for a GRU. State: the layers' states, bottom layer first.
Layer = tuple[Array, ...]
State = list[Layer]


def sigmoid(x: Array) -> Array:
    """Return the logistic function."""
    return 1.0 / (1.0 + np.exp(-x))


def log_softmax(x: Array) -> Array:
    """Return the logarithms of the softmax of a vector."""
    shifted = x - x.max()
    return shifted - np.log(np.exp(shifted).sum())


def layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    """Normalise a vector to mean 0 and variance 1, then scale and shift it."""
    return gamma * (x - x.mean()) / np.sqrt(x.var() + 1e-12) + beta


@dataclass
class GivenWeights:
    """What all oracles share: a model's architecture and its weights by name.

    Attributes:
      architecture: architecture of the model.
      weights: full variable name -> value.
    """

    architecture: Any
    weights: Mapping[str, Array]

    def weight(self, name: str) -> Array:
        """Return the variable with this name below `dynamic_seq2seq`."""
        return np.asarray(self.weights[f"dynamic_seq2seq/{name}"], np.float64)

    def output_layer(self) -> Array:
        """Return the output layer's kernel [units, words]."""
        if self.architecture.tie_embeddings == "none":
            return self.weight("decoder/output_projection/kernel")
        table = self.weights[self.architecture.target_embedding].astype(np.float64).T
        narrowed = self.architecture.target_size != self.architecture.num_units
        return self.weight("decoder/output_projection/kernel") @ table if narrowed else table


@dataclass
class OracleModel(GivenWeights):
    """A recurrent model with given weights."""

    architecture: LSTMArchitecture

    def cell(self, scope: str, x: Array, state: Layer) -> Layer:
        """Return one layer's state after it has read x."""
        kinds = {"lstm": self.lstm, "layer_norm_lstm": self.layer_norm_lstm, "gru": self.gru, "nas": self.nas}
        return kinds[self.architecture.unit_type](scope, x, state)

    def lstm(self, scope: str, x: Array, state: Layer) -> Layer:
        """LSTM cell of Zaremba et al. 2014."""
        c, h = state
        w = self.below(f"{scope}/basic_lstm_cell")
        i, j, f, o = np.split(np.concatenate([x, h]) @ w("kernel") + w("bias"), 4)
        c = sigmoid(f + self.architecture.forget_bias) * c + sigmoid(i) * np.tanh(j)
        return c, sigmoid(o) * np.tanh(c)

    def layer_norm_lstm(self, scope: str, x: Array, state: Layer) -> Layer:
        """LSTM cell of Ba et al. 2016; the state keeps the normalised memory."""
        c, h = state
        w = self.below(f"{scope}/layer_norm_basic_lstm_cell")
        gates = np.split(np.concatenate([x, h]) @ w("kernel"), 4)
        names = ("input", "transform", "forget", "output")
        i, j, f, o = (
            layer_norm(gate, w(f"{name}/gamma"), w(f"{name}/beta")) for gate, name in zip(gates, names, strict=True)
        )
        c = sigmoid(f + self.architecture.forget_bias) * c + sigmoid(i) * np.tanh(j)
        c = layer_norm(c, w("state/gamma"), w("state/beta"))
        return c, sigmoid(o) * np.tanh(c)

    def gru(self, scope: str, x: Array, state: Layer) -> Layer:
        """GRU cell of Cho et al. 2014."""
        (h,) = state
        w = self.below(f"{scope}/gru_cell")
        r, u = np.split(sigmoid(np.concatenate([x, h]) @ w("gates/kernel") + w("gates/bias")), 2)
        n = np.tanh(np.concatenate([x, r * h]) @ w("candidate/kernel") + w("candidate/bias"))
        return (u * h + (1 - u) * n,)

    def nas(self, scope: str, x: Array, state: Layer) -> Layer:
        """NAS cell of Zoph & Le 2017."""
        c, h = state
        w = self.below(f"{scope}/nas_cell")
        a, m = np.split(x @ w("kernel"), 8), np.split(h @ w("recurrent_kernel"), 8)
        first = np.tanh(sigmoid(a[0] + m[0]) * np.maximum(a[1] + m[1], 0))
        second = np.tanh(sigmoid(a[2] + m[2]) + np.maximum(a[3] * m[3], 0))
        third = np.tanh(np.tanh(a[4] + m[4]) * sigmoid(a[5] + m[5]))
        fourth = sigmoid(np.tanh(a[6] + m[6]) + sigmoid(a[7] + m[7]))
        c = np.tanh(first + c) * second
        return c, np.tanh(c * np.tanh(third + fourth))

    def below(self, scope: str) -> Callable[[str], Array]:
        """Return a function from the rest of a name to the weight in this scope."""
        return lambda name: self.weight(f"{scope}/{name}")

    def stack(self, scope: str, depth: int, residual: int, x: Array, states: State) -> tuple[Array, State]:
        """Run one step of a stack whose top `residual` layers add their inputs; return the output and the states."""
        after = []
        for layer in range(depth):
            name = scope if depth == 1 else f"{scope}/multi_rnn_cell/cell_{layer}"
            after.append(self.cell(name, x, states[layer]))
            x = after[-1][-1] + (x if layer >= depth - residual else 0.0)
        return x, after

    def zeros(self, depth: int) -> State:
        """Return the initial state of a stack."""
        parts = 1 if self.architecture.unit_type == "gru" else 2
        return [(np.zeros(self.architecture.num_units),) * parts] * depth

    def encode(self, source: Sequence[int]) -> tuple[Array, State]:
        """Return the memory [words, memory_size] and the last states."""
        a = self.architecture
        if a.language_model:
            return np.zeros((0, a.num_units)), []
        words = source_vectors(a, self.weights, source)
        if a.encoder_type == "uni":
            return self._read("encoder/rnn", a.num_encoder_layers, a.num_encoder_residual_layers, words)
        if a.encoder_type == "gnmt":
            ahead, _ = self._read("encoder/bidirectional_rnn/fw", 1, 0, words)
            back, bottom = self._read("encoder/bidirectional_rnn/bw", 1, 0, words[::-1])
            both = [np.concatenate(pair) for pair in zip(ahead, back[::-1], strict=True)]
            top, upper = self._read("encoder/rnn", a.num_encoder_layers - 1, a.num_encoder_residual_layers, both)
            return top, bottom + upper
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
        """Return the attention's context and weights."""
        gnmt = self.architecture.attention_architecture != "standard"
        wrapper = "decoder/multi_rnn_cell/cell_0_attention/attention" if gnmt else "decoder/attention"
        kind, keys = self.architecture.attention, memory @ self.weight("decoder/memory_layer/kernel")
        if kind.endswith("luong"):
            scores = keys @ query
            if kind == "scaled_luong":
                scores = scores * self.weight(f"{wrapper}/luong_attention/attention_g")
        else:
            scope = f"{wrapper}/bahdanau_attention"
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
        """Return a decoder that has written no word yet."""
        a = self.architecture
        memory, states = self.encode(source)
        if not a.pass_hidden_state:
            states = self.zeros(a.num_decoder_layers)
        width = a.num_units if a.attention_architecture == "standard" else memory.shape[1]
        return OracleDecoding(self, memory, states, np.zeros(width))

    def loss(self, source: Sequence[int], target_in: Sequence[int], target_out: Sequence[int]) -> float:
        """Return the cross-entropy of one sentence, in nats."""
        total, decoding = 0.0, self.start(source)
        for given, wanted in zip(target_in, target_out, strict=True):
            logits, decoding = decoding.step(given)
            total -= log_softmax(logits)[wanted]
        return float(total)


@dataclass
class OracleDecoding:
    """A decoder's state between two words; `step` returns a new state and does not change this one."""

    model: OracleModel
    memory: Array
    states: State
    attention: Array
    weights: Array | None = None

    def step(self, word: int) -> tuple[Array, OracleDecoding]:
        """Return the logits after this word, and the new state."""
        model, a = self.model, self.model.architecture
        x = target_vector(a, model.weights, word)
        depth, residual = a.num_decoder_layers, a.num_decoder_residual_layers
        attention, weights = self.attention, None
        if a.attention_architecture != "standard":
            output, states, attention, weights = self._gnmt(x)
        elif a.attention:
            fed = np.concatenate([x, attention])
            query, states = model.stack("decoder/attention", depth, residual, fed, self.states)
            context, weights = model.attend(self.memory, query)
            attention = np.concatenate([query, context]) @ model.weight(
                "decoder/attention/attention_layer/kernel",
            )
            output = attention if a.output_attention else query
        else:
            output, states = model.stack("decoder", depth, residual, x, self.states)
        logits = output @ model.output_layer()
        return logits, OracleDecoding(model, self.memory, states, attention, weights)

    def _gnmt(self, x: Array) -> tuple[Array, State, Array, Array]:
        """Return top output, states, context and weights after reading the embedded word x."""
        model, a = self.model, self.model.architecture
        scope = "decoder/multi_rnn_cell"
        bottom = f"{scope}/cell_0_attention/attention"
        states = [model.cell(bottom, np.concatenate([x, self.attention]), self.states[0])]
        output = states[0][-1]
        context, weights = model.attend(self.memory, output)
        seen = {"gnmt": self.attention, "gnmt_v2": context}[a.attention_architecture]
        for layer in range(1, a.num_decoder_layers):
            states.append(model.cell(f"{scope}/cell_{layer}", np.concatenate([output, seen]), self.states[layer]))
            adds = layer >= a.num_decoder_layers - a.num_decoder_residual_layers
            output = states[-1][-1] + (output if adds else 0.0)
        return output, states, context, weights
