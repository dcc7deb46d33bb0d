"""BPE dropout: words cut with merges left out, and the agreement between the feed and its files."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.nmt import main
from nmt.options.config import Config
from nmt.prepare import prepare
from nmt.text.batches import Batch
from nmt.text.bpe_dropout import BPEDropoutText, Merges, check_fit, read_merges
from nmt.text.corpus import open_parallel
from nmt.text.lines import TextFile
from nmt.text.subwords import BytePairs, dropout_units, learn_byte_pairs
from nmt.text.tokens import join, split
from nmt.text.vocabulary import read_vocabulary
from nmt.train.feed import Feed


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """Prepare 40 sentence pairs of short words, with all subwords in `data`, and without them in `plain`."""
    draw = random.Random(2)
    for side in ("en", "de"):
        words = ["".join(draw.choices("abcd", k=draw.randint(1, 7))) for _ in range(30)]
        lines = (" ".join(draw.choices(words, k=draw.randint(1, 6))) for _ in range(40))
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    prepare(f"{tmp_path}/train", "en", "de", tmp_path / "data", bpe=30, share_vocab=True, all_subwords=True)
    prepare(f"{tmp_path}/train", "en", "de", tmp_path / "plain", bpe=30)
    return tmp_path


def test_without_dropout_words_are_cut_as_the_library_does() -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abc", k=draw.randint(1, 9))) for _ in range(300)]
    model = learn_byte_pairs(Counter(words).items(), 40).model
    library = BytePairs(model)
    merges = Merges(model.decode().rstrip("\n").split("\n"), "codes")
    for word in [*words, "aaaaaaa", "xay"]:
        assert merges.cut(word) == split(library.segment(word)), word
    for word in words:
        assert merges.cut(word, lambda: True) == [*(f"{letter}@@" for letter in word[:-1]), word[-1]]
        drawn = merges.cut(word, lambda: draw.random() < 0.5)
        assert join(drawn, "bpe", "") == word and set(drawn) <= dropout_units(model, words)


def test_a_joint_is_left_out_as_often_as_is_asked() -> None:
    merges, draw = Merges(["#version: 0.2", "a b</w>"], "codes"), random.Random(5)
    whole = sum(merges.cut("ab", lambda: draw.random() < 0.1) == ["ab"] for _ in range(2000))
    assert whole / 2000 == pytest.approx(0.9, abs=0.03)


def feeds(prepared: Path, size: int, rate: float = 0.3) -> list[Feed]:
    corpus = open_parallel(prepared / "data/train.en", prepared / "data/train.de")
    words = read_vocabulary(prepared / "data/vocab.en")
    settings = Config(
        batch_size=8 // size,
        num_buckets=3,
        tgt_max_len=9,
        random_seed=1,
        loss_normalization="words",
        tgt_bpe_dropout=rate,
    )
    merges = read_merges(prepared / "data/bpe.codes")
    return [Feed(corpus, words, words, settings, rank, size, merges) for rank in range(size)]


def test_words_are_cut_anew_in_each_epoch(prepared: Path) -> None:
    """One side's words are cut anew and keep their text. Two ranks cut as one process does, and divide the loss by the
    number of words before the new cuts."""
    words = read_vocabulary(prepared / "data/vocab.en")
    (alone,), ranks = feeds(prepared, 1), feeds(prepared, 2)
    standing = sum(min(len(split(line)), 9) + 1 for line in (prepared / "data/train.de").read_text().splitlines())
    seen: list[dict[str, set[str]]] = []
    for epoch in range(2):
        counted = 0.0
        cuts: dict[str, set[str]] = {"source": set(), "target": set(), "text": set()}
        for step in range(epoch * alone.steps_per_epoch, (epoch + 1) * alone.steps_per_epoch):
            whole, parts = alone.batch(step), [one.batch(step) for one in ranks]
            columns: list[set[str]] = []
            for batches in ([whole], parts):
                pairs: set[str] = set()
                for batch in batches:
                    for k in np.flatnonzero(batch.target_lengths):
                        length = batch.target_lengths[k]
                        target = words.decode(batch.target_out[: length - 1, k])
                        source = words.decode(batch.source[: batch.source_lengths[k], k])
                        assert "<unk>" not in target
                        pairs.add(f"{' '.join(source)}|{' '.join(target)}")
                columns.append(pairs)
            assert columns[0] == columns[1]
            assert {2 * part.divisor for part in parts} == {whole.divisor}
            counted += whole.divisor
            for pair in columns[0]:
                source_line, _, target_line = pair.partition("|")
                cuts["source"].add(source_line)
                cuts["target"].add(target_line)
                if len(split(target_line)) < 9:  # not truncated
                    cuts["text"].add(join(split(target_line), "bpe", ""))
        assert counted == standing
        seen.append(cuts)
    assert seen[0]["source"] == seen[1]["source"] and seen[0]["target"] != seen[1]["target"]
    original = set(Path(prepared / "train.de").read_text().splitlines())
    assert all(one["text"] <= original and one["text"] for one in seen)
    np.testing.assert_array_equal(feeds(prepared, 1)[0].batch(7).target_out, alone.batch(7).target_out)
    record = alone.record()
    (other,) = feeds(prepared, 1, rate=0.2)
    assert "tgt_bpe_dropout changed since" in other.continue_after(3, record)


@pytest.mark.long("the tests above have the words that are fed")
def test_the_program_trains_on_words_that_are_cut_anew(prepared: Path) -> None:
    out = prepared / "out"
    flags = [f"--train_prefix={prepared}/data/train", f"--dev_prefix={prepared}/data/train", f"--out_dir={out}"]
    flags += ["--src=en", "--tgt=de", f"--vocab_prefix={prepared}/data/vocab", "--share_vocab", "--num_units=8"]
    flags += ["--num_layers=1", "--attention=luong", "--num_train_steps=2", "--noevaluate_epochs", "--batch_size=8"]
    drawn = ["--subword_option=bpe", f"--bpe_codes={prepared}/data/bpe.codes", "--src_bpe_dropout=0.9"]
    assert main([*flags, *drawn, "--random_seed=1"]) == 0
    plan = json.loads((out / "hparams").read_text())["data"]["plan"]
    assert plan["src_bpe_dropout"] == 0.9 and plan["bpe_codes"]
    shutil.rmtree(out)
    seen: list[int] = []
    batch = Feed.batch

    def noting(self: Feed, step: int, part: int = 0) -> Batch:
        found = batch(self, step, part)
        seen.append(int(found.source_lengths.sum()))
        return found

    with mock.patch.object(Feed, "batch", noting):
        assert main([*flags, *drawn, "--random_seed=1"]) == 0
        often = seen[:2]
        shutil.rmtree(out)
        seen.clear()
        assert main([*flags, "--subword_option=bpe", "--random_seed=1"]) == 0
    assert sum(often) > 1.5 * sum(seen[:2])


@pytest.mark.parametrize(
    ("codes", "text", "vocabulary", "message"),
    [
        ("none", "data", "data", "none cannot be read .*nmt.prepare wrote"),
        ("train.en", "data", "data", "is no file of byte pair codes of version 0.2"),
        ("few.codes", "data", "data", r"does not cut .*data/train.en as it is cut \(line 1: "),
        (
            "data/bpe.codes",
            "plain",
            "plain",
            r"vocab.en lacks \d+ of the subwords .*nmt.prepare --bpe=N --all_subwords",
        ),
    ],
)
def test_what_does_not_fit_is_told(prepared: Path, codes: str, text: str, vocabulary: str, message: str) -> None:
    lines = (prepared / "data/bpe.codes").read_text().splitlines()
    (prepared / "few.codes").write_text("\n".join(lines[:9]) + "\n")
    corpus: Any = open_parallel(prepared / text / "train.en", prepared / text / "train.de")
    with pytest.raises(InputError, match=message):
        check_fit(read_merges(prepared / codes), corpus.src, read_vocabulary(prepared / vocabulary / "vocab.en"))
    # Without a vocabulary the text is read as characters, but the codes must still fit the text.
    with contextlib.nullcontext() if text == "plain" else pytest.raises(InputError, match=message):
        check_fit(read_merges(prepared / codes), corpus.src, None)
    fits = open_parallel(prepared / "data/train.en", prepared / "data/train.de")
    check_fit(read_merges(prepared / "data/bpe.codes"), fits.src, read_vocabulary(prepared / "data/vocab.en"))


def test_an_unknown_word_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab <unk> ab\n")
    merges, text = Merges(["#version: 0.2", "a b</w>"], "codes"), TextFile(tmp_path / "text")
    assert BPEDropoutText(text, merges, 0.99, (1, 0, 0)).line(0).count("<unk>") == 1
    assert BPEDropoutText(text, merges, 0.0, ()).line(0) == "ab <unk> ab"


def test_all_subwords_are_those_of_byte_pairs(prepared: Path) -> None:
    with pytest.raises(InputError, match="--all_subwords applies to byte pair encoding only: give --bpe"):
        prepare(f"{prepared}/train", "en", "de", prepared / "x", all_subwords=True)
    plain = read_vocabulary(prepared / "plain/vocab.en").words
    assert set(plain) < set(read_vocabulary(prepared / "data/vocab.en").words)
