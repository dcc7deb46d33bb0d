"""A second model family: one file (this one), a line in the registry and one in the options, and all of nmt has it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import latest
from nmt.model.architecture import Architecture
from nmt.model.interface import Decoding, Memory, Translator
from nmt.model.parts.dropout import Dropout
from nmt.model.parts.placement import Placement
from nmt.model.registry import FAMILIES, Family
from nmt.nmt import main
from nmt.options import model_options


@dataclass(frozen=True)
class BagArchitecture(Architecture):
    """The options that every family has, and no others."""


class BagTranslator(Translator):
    """The next word from the last word and the source's mean: tanh([y_t; mean of x] W)."""

    def _build(self, architecture: BagArchitecture, dropout: Dropout, placement: Placement) -> None:
        size = architecture.source_size + architecture.target_size
        self._dropout = dropout
        self._kernel = tf.identity(tf.compat.v1.get_variable("bag/kernel", [size, architecture.num_units]))

    def _read(self, embedded: tf.Tensor, lengths: tf.Tensor) -> Memory:
        inside = tf.transpose(tf.sequence_mask(lengths, tf.shape(embedded)[0], embedded.dtype))[:, :, None]
        total = tf.reduce_sum(embedded * inside, 0)
        return Memory(embedded * inside, lengths, total / tf.cast(lengths, embedded.dtype)[:, None])

    def _over(self, memory: Memory) -> Decoding:
        return BagDecoding(memory.state, self._kernel, self._dropout)


class BagDecoding(Decoding):
    def __init__(self, mean: tf.Tensor, kernel: tf.Tensor, dropout: Dropout) -> None:
        self.initial_state, self._kernel, self._dropout = mean, kernel, dropout

    def all_steps(self, embedded: tf.Tensor) -> tf.Tensor:
        mean = tf.broadcast_to(self.initial_state, tf.shape(embedded))
        inputs = self._dropout(tf.concat([embedded, mean], 2))
        return tf.tanh(tf.tensordot(inputs, self._kernel, 1))

    def step(self, embedded: tf.Tensor, state: tf.Tensor, sources: Any) -> tuple[tf.Tensor, tf.Tensor, None]:
        return tf.tanh(tf.matmul(tf.concat([embedded, state], 1), self._kernel)), state, None


@pytest.fixture(autouse=True)
def bag(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(FAMILIES, "bag", Family(BagArchitecture, BagTranslator))  # the line in the registry
    model_options.FAMILIES.append("bag")  # and the one in the options
    yield
    model_options.FAMILIES.remove("bag")


def flags(toy: Any, *more: str) -> list[str]:
    return toy.flags("--model_family=bag", "--attention=", *more)


def test_a_toy_family_trains_and_translates(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    training = ["--num_train_steps=100", "--noevaluate_epochs", "--optimizer=adam", "--learning_rate=0.02"]
    assert main(flags(toy, *training)) == 0
    said = capsys.readouterr().out
    perplexities = [float(value) for value in re.findall(r"step \d+ lr .* ppl ([\d.]+) gN", said)]
    assert perplexities[-1] < 0.7 * perplexities[0]
    out = toy.directory / "out"
    assert json.loads((out / "hparams").read_text())["model_family"] == "bag"
    kernel = tf.train.load_checkpoint(str(latest(out))).get_tensor("dynamic_seq2seq/bag/kernel")
    assert kernel.shape == (16, 8) and np.isfinite(kernel).all()
    infer = [f"--out_dir={out}", f"--inference_input_file={toy.directory}/dev.en"]
    for search in (["--infer_mode=greedy"], ["--beam_width=3"], ["--infer_mode=sample", "--sampling_temperature=1"]):
        output = toy.directory / "translated"
        assert main([*infer, f"--inference_output_file={output}", *search]) == 0, search
        lines = output.read_text().splitlines()
        assert len(lines) == 5 and any(lines), search
        assert set(" ".join(lines).split()) <= set(toy.tgt_vocab.words), search


def test_continuing_with_another_family_is_refused(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(toy, "--num_train_steps=1", "--noevaluate_epochs")) == 0
    capsys.readouterr()
    assert main(toy.flags("--attention=", "--model_family=lstm")) == 1
    assert "--model_family=lstm contradicts" in capsys.readouterr().err


def test_options_of_another_family_would_have_no_effect(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(flags(toy, "--unit_type=gru")) == 1
    told = capsys.readouterr().err
    assert "--unit_type=gru would have no effect: it needs another --model_family" in told


def test_an_unknown_family_is_told(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(toy.flags("--model_family=conv")) == 1
    assert "--model_family=conv is not allowed: choose one of 'lstm', " in (told := capsys.readouterr().err)
    assert told.rstrip().endswith("'bag'")
