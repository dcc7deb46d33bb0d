"""A toy language pair for tests of training: the target has the source's words in reverse order and upper case."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from nmt.model.lstm.architecture import LSTMArchitecture
from nmt.nmt import main as program
from nmt.prepare import prepare
from nmt.reporting.heatmap import heatmap
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.vocabulary import Vocabulary, write_vocabulary
from scripts.examples.demo.phrasebook import phrasebook

WORDS = list("abcdefg")


@dataclasses.dataclass(frozen=True)
class Toy:
    """Opened files `<directory>/{train,dev}.{en,de}` and `vocab.{en,de}`, and a small model for them."""

    directory: Path
    train: ParallelCorpus
    dev: ParallelCorpus
    src_vocab: Vocabulary
    tgt_vocab: Vocabulary
    architecture: LSTMArchitecture

    def flags(self, *more: str) -> list[str]:
        """Return the command line for training on these files, with the options of `more` added."""
        prefix = self.directory
        return [
            "--src=en", "--tgt=de", f"--train_prefix={prefix}/train", f"--dev_prefix={prefix}/dev",
            f"--vocab_prefix={prefix}/vocab", f"--out_dir={prefix}/out", "--num_units=8", "--num_layers=1",
            "--attention=luong", "--batch_size=8", "--num_train_steps=6", "--steps_per_stats=2",
            "--random_seed=1", *more,
        ]  # fmt: skip


@pytest.fixture(autouse=True)
def float32_again() -> Iterator[None]:
    """Reset mixed precision and loss scale after each test, because programs run in the tests' process."""
    yield
    tfdist.configure(mixed_precision="none", loss_scale="none")


@pytest.fixture(scope="module", autouse=True)
def graphs_as_built(request: pytest.FixtureRequest) -> Iterator[None]:
    """Execute graphs as they are built, except with ``--every-case``: optimizing them took a quarter of the time.

    Programs that tests start as processes, and all multi-rank cases, have their graphs optimized.
    """
    optimizer = tf.config.optimizer
    optimizer.set_experimental_options({"disable_meta_optimizer": not request.config.getoption("every_case")})
    yield
    optimizer.set_experimental_options({"disable_meta_optimizer": False})


@pytest.fixture(autouse=True)
def few_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no attention and one curve, a quarter of the tests' time, except in tests marked `pictures`."""
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr("nmt.train.evaluation.heatmap", lambda *_: None)
        monkeypatch.setattr("nmt.reporting.outputs.draw", lambda *_: _curve())


@functools.cache
def _curve() -> bytes | None:
    return heatmap(["a"], ["b"], np.ones([1, 1]))


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    """Return 37 pairs to train on (an odd number: batches and slices are uneven) and 5 to evaluate."""
    generator = np.random.default_rng(3)
    corpora = {}
    for name, pairs in (("train", 37), ("dev", 5)):
        sources = [[str(word) for word in generator.choice(WORDS, size=generator.integers(1, 9))] for _ in range(pairs)]
        paths = [tmp_path / f"{name}.{suffix}" for suffix in ("en", "de")]
        paths[0].write_text("".join(" ".join(words) + "\n" for words in sources))
        paths[1].write_text("".join(" ".join(words[::-1]).upper() + "\n" for words in sources))
        corpora[name] = open_parallel(*paths)
    src_vocab = write_vocabulary(tmp_path / "vocab.en", WORDS)
    tgt_vocab = write_vocabulary(tmp_path / "vocab.de", [word.upper() for word in WORDS])
    architecture = LSTMArchitecture(src_vocab.size, tgt_vocab.size, 8, 1, 1, attention="luong")
    return Toy(tmp_path, corpora["train"], corpora["dev"], src_vocab, tgt_vocab, architecture)


@pytest.fixture(scope="session")
def raw_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with raw texts {train,dev}.{en,de}, their prepared text `data/`, and a trained `run/`."""
    folder = tmp_path_factory.mktemp("raw_run")
    for name, pairs in phrasebook(pairs=400, held_out_pairs=40).items():
        for language in ("en", "de"):
            lines = [pair.english if language == "en" else pair.german for pair in pairs]
            text = "".join(f"{line[0].upper()}{line[1:]}, {line.split()[0].upper()}.\n" for line in lines)
            (folder / f"{name}.{language}").write_text(text)
    prepare(
        f"{folder}/train", "en", "de", folder / "data", apply=[f"{folder}/dev"], bpe=120, tokenizer="moses",
        casing="marked", share_vocab=True,
    )  # fmt: skip
    flags = [
        f"--train_prefix={folder}/data/train", f"--dev_prefix={folder}/data/dev", f"--vocab_prefix={folder}/data/vocab",
        f"--out_dir={folder}/run", "--num_units=32", "--num_layers=1", "--attention=luong", "--batch_size=32",
        "--num_train_steps=80", "--random_seed=1", "--optimizer=adam", "--learning_rate=0.01", "--noevaluate_epochs",
        "--steps_per_external_eval=40", "--steps_per_stats=20",
    ]  # fmt: skip
    assert program(flags) == 0
    return folder
