"""Torch peer of scripts/bench/train_nmt: the same translator in plain PyTorch, trained data-parallel by DDP over gloo.

One rank trains without DDP. A GPU is used if there is one.

`train_nmt --peer torch` starts it once per rank, in a separate environment with torch and NumPy. The model is a
bidirectional LSTM encoder and an LSTM decoder with Luong's attention and input feeding, or PyTorch's Transformer. It
trains with a softmax over the vocabulary, gradients clipped to a norm of 5, and SGD. `train_nmt` passes sizes, batch
and dropout, and words are counted in the same way.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed import barrier, destroy_process_group, get_world_size, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


class Translator(nn.Module):
    """The LSTM translator: source and target words -> mean loss of a sentence."""

    def __init__(self, units: int, source_words: int, target_words: int, dropout: float) -> None:
        super().__init__()
        self.units, self.dropout = units, dropout
        self.source_table = nn.Embedding(source_words, units)
        self.target_table = nn.Embedding(target_words, units)
        self.encoder = nn.LSTM(units, units, bidirectional=True)
        self.memory_layer = nn.Linear(2 * units, units, bias=False)
        self.cells = nn.ModuleList([nn.LSTMCell(2 * units, units), nn.LSTMCell(units, units)])
        self.attention_layer = nn.Linear(3 * units, units, bias=False)
        self.output_layer = nn.Linear(units, target_words, bias=False)

    def drop(self, values: torch.Tensor) -> torch.Tensor:
        """Apply dropout to a layer's input."""
        return functional.dropout(values, self.dropout, self.training) if self.dropout else values

    def forward(
        self, source: torch.Tensor, lengths: torch.Tensor, target_in: torch.Tensor, target_out: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of ids [time, batch]; lengths [batch] hold for both sides."""
        time_steps, batch = source.shape
        outside = torch.arange(time_steps)[:, None] >= lengths
        embedded = self.drop(self.source_table(source))
        if int(lengths.min()) == time_steps:
            outputs, (h, c) = self.encoder(embedded)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths.cpu(), enforce_sorted=False)
            outputs, (h, c) = self.encoder(packed)
            outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, total_length=time_steps)
        memory = outputs.transpose(0, 1).contiguous()
        keys = self.memory_layer(memory).transpose(1, 2).contiguous()
        bias = outside.T[:, None] * -1e9
        state = [(h[layer], c[layer]) for layer in range(2)]
        attention = embedded.new_zeros(batch, self.units)
        vectors = []
        for word in self.drop(self.target_table(target_in)).unbind(0):
            below = torch.cat([word, self.drop(attention)], 1)
            for layer, cell in enumerate(self.cells):
                state[layer] = cell(self.drop(below) if layer else below, state[layer])
                below = state[layer][0]
            weights = torch.softmax(torch.bmm(below[:, None], keys) + bias, -1)
            context = torch.bmm(weights, memory)[:, 0]
            attention = self.attention_layer(torch.cat([below, context], 1))
            vectors.append(attention)
        return sentence_loss(torch.stack(vectors), target_out, outside, self.output_layer)


class Transformer(nn.Module):
    """The Transformer translator: embeddings times the root of their width, plus sines and cosines of positions."""

    def __init__(self, sizes: list[int], longest: int, dropout: float) -> None:
        super().__init__()
        self.units, source_words, target_words, layers, heads, inner = sizes
        self.source_table = nn.Embedding(source_words, self.units)
        self.target_table = nn.Embedding(target_words, self.units)
        self.transformer = nn.Transformer(self.units, heads, layers, layers, inner, dropout)
        for layer in [*self.transformer.encoder.layers, *self.transformer.decoder.layers]:
            layer.dropout = nn.Identity()  # train_nmt drops neither activations nor weights of attention
            layer.self_attn.dropout = 0.0
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = 0.0
        # nn.Transformer normalizes the last layer's output once more; the paper does not.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.output_layer = nn.Linear(self.units, target_words, bias=False)
        self.dropout = nn.Dropout(dropout)
        pace = 10000.0 ** -(torch.arange(0, self.units, 2) / self.units)
        angles = torch.arange(longest)[:, None] * pace
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], 2).reshape(longest, 1, self.units))
        later = nn.Transformer.generate_square_subsequent_mask(longest)
        self.register_buffer("later", later)

    def forward(
        self, source: torch.Tensor, lengths: torch.Tensor, target_in: torch.Tensor, target_out: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of ids [time, batch]; lengths [batch] hold for both sides."""
        outside = torch.arange(source.shape[0])[:, None] >= lengths
        read, written = (
            self.dropout(table(ids) * self.units**0.5 + self.positions)
            for table, ids in ((self.source_table, source), (self.target_table, target_in))
        )
        padding = outside.T if bool(outside.any()) else None
        found = self.transformer(
            read,
            written,
            tgt_mask=self.later,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return sentence_loss(found, target_out, outside, self.output_layer)


def sentence_loss(
    vectors: torch.Tensor, labels: torch.Tensor, outside: torch.Tensor, output_layer: nn.Module
) -> torch.Tensor:
    """Return the mean loss of a sentence; vectors [time, batch, units]; labels, outside (padding) [time, batch]."""
    rows, words = vectors.reshape(-1, vectors.shape[2]), labels.reshape(-1)
    if bool(outside.any()):
        real = ~outside.reshape(-1)
        rows, words = rows[real], words[real]
    return functional.cross_entropy(output_layer(rows).float(), words, reduction="sum") / labels.shape[1]


def main() -> None:
    """Train on random words on one rank, and write its speed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs=6, required=True, help="the fields of nmt_step.Size")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--lengths", type=int, nargs=2, required=True, help="words of the shortest, longest sentence")
    parser.add_argument("--dropout", type=float, required=True)
    parser.add_argument("--precision", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--report", type=Path, required=True)
    options = parser.parse_args()
    rank = int(os.environ["RANK"])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_default_device(device)
    if device == "cpu":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    init_process_group("gloo")
    own: nn.Module
    if options.sizes[3]:
        own = Transformer(options.sizes, options.lengths[1], options.dropout)
    else:
        own = Translator(*options.sizes[:3], options.dropout)
    model = DistributedDataParallel(own) if get_world_size() > 1 else own
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    batches = [random_batch(options) for _ in range(4)]
    seconds, processor_seconds, words = [], [], []
    for number in range(options.steps + 3):
        source, lengths, target_in, target_out = batches[number % len(batches)]
        begin, processor_begin = time.perf_counter(), time.process_time()
        bfloat16 = options.precision == "bfloat16"
        with torch.autocast(device, torch.bfloat16) if bfloat16 else contextlib.nullcontext():
            loss = model(source, lengths, target_in, target_out)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        loss.item()  # waits for a GPU, as a program that prints its loss does
        seconds.append(time.perf_counter() - begin)
        processor_seconds.append(time.process_time() - processor_begin)
        words.append(2 * int(lengths.sum()))
    barrier()
    found = {
        "words": statistics.mean(words[3:]),
        "seconds": statistics.median(seconds[3:]),
        "processor_seconds": statistics.median(processor_seconds[3:]),
    }
    options.report.write_text(json.dumps(found))
    destroy_process_group()


def random_batch(options: argparse.Namespace) -> tuple[torch.Tensor, ...]:
    """Return a batch of random words; sentences have random lengths, and the first one the greatest length."""
    shortest, longest = options.lengths
    lengths = torch.randint(shortest, longest + 1, [options.batch])
    lengths[0] = longest
    shape = [longest, options.batch]
    source, target_in, target_out = (torch.randint(3, size, shape) for size in [*options.sizes[1:3], options.sizes[2]])
    return source, lengths, target_in, target_out


if __name__ == "__main__":
    main()
