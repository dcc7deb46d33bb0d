"""nmt.text.preparation, normalization, casing and raw_lines: from raw lines to tokens and back, and the record."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.prepare import prepare
from nmt.text.preparation import PREPARATION, RECORD, Preparation, Recipe, copy_preparation, read_preparation
from nmt.text.raw_lines import read_lines
from nmt.text.raw_words import normalized, prepared, restored
from nmt.text.subwords import learn_pieces
from nmt.text.tokens import join, split

SENTENCES = [
    'A man, who isn\'t tall, said: "NASA is in Texas!"',
    "Two dogs (and one cat) run. Really?",
    "It costs $3.50, e.g. in St. Louis.",
    "McDonald is an iPhone user in the USA.",
]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    for name in ("train", "dev"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in SENTENCES * 5))
    prepare(
        f"{tmp_path}/train", "en", "de", tmp_path / "data", apply=[f"{tmp_path}/dev"], bpe=40, tokenizer="moses",
        casing="marked", share_vocab=True,
    )  # fmt: skip
    return tmp_path / "data"


@pytest.mark.parametrize("casing", ["keep", "marked"])
def test_text_comes_back(casing: str) -> None:
    preparation = Preparation(Recipe("en", "de", "moses", "nfc", casing))
    for line in SENTENCES:
        assert preparation.text(preparation.tokens(line, "en"), "en") == line


def test_text_comes_back_from_subwords_of_a_record(made: Path) -> None:
    preparation = read_preparation(made)
    assert preparation is not None and preparation.recipe.raw
    assert (made / "raw/dev.de").read_text() == (made.parent / "dev.de").read_text()
    for line, tokens in zip(SENTENCES, (made / "dev.en").read_text().splitlines(), strict=False):
        assert preparation.tokens(line, "en") == tokens != line
        assert preparation.text(join(split(tokens), "bpe", "</s>"), "en") == line


def test_words_with_capital_letters() -> None:
    line = "NASA Is in A McDonald Straße İstanbul ß STRASSE X"
    marked = prepared(line, "marked")
    assert marked == "⇪ nasa ⇧ is in ⇧ a McDonald ⇧ straße İstanbul ß ⇪ strasse ⇧ x"
    assert restored(marked, "marked") == line
    assert restored("⇧ ⇪ a ⇧", "marked") == "A", "a mark without a word is left out"
    assert prepared("A b", "lower") == "a b" == restored("a b", "lower")
    assert prepared("", "marked") == "" == restored("", "marked")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a\0b\tc\u2028d\x85e\rf", "a b c d e f"),
        (" a  b\u00a0c\u3000d ", "a b c d"),
        ("zero\u200bwidth \ufeffmark so\u00adft \u202bright\u202c", "zerowidth mark soft right"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d🔬 runs", "👩\u200d🔬 runs"),
        ("e\u0301", "é"),
        ("⇧ and ⇪ and \u2581", "and and"),
        ("\u200b\t ", ""),
        ("plain text.", "plain text."),
    ],
)
def test_normal_forms(line: str, expected: str) -> None:
    assert normalized(line, "nfc", "en") == expected
    assert normalized(line, "none", "en") == line


def test_forms_of_compatibility_and_of_moses() -> None:
    assert normalized("ﬁve ½", "nfkc", "en") == "five 1⁄2" and normalized("ﬁve", "nfc", "en") == "ﬁve"
    assert normalized("“a” – b…", "moses", "en") == '"a" - b...'


UNUSUAL = ("", " ", "\0", "שלום, עולם!", "👩\u200d🔬👍🏽!", "a" * 100_000, "a b " * 25_000, "\u202e\u200b", "10:30")


def test_unusual_lines_are_prepared(made: Path) -> None:
    """Moses separates characters that it does not know, so that only the characters come back."""
    preparation = read_preparation(made)
    assert preparation is not None
    for line in UNUSUAL:
        tokens = preparation.tokens(line, "en")
        back = preparation.text(join(split(tokens), "bpe", "</s>"), "en")
        assert "".join(back.split()) == "".join(normalized(line, "nfc", "en").split()), line[:20]


def test_unusual_lines_come_back_from_pieces() -> None:
    model = learn_pieces([*SENTENCES, "xyz abc"] * 9, 60).model
    preparation = Preparation(Recipe("en", "de", "sentencepiece", "nfc", subwords="spm"), model)
    for line in UNUSUAL:
        back = preparation.text(join(split(preparation.tokens(line, "en")), "spm", "</s>"), "en")
        assert back == normalized(line, "nfc", "en"), line[:20]


def test_a_directory_without_a_record(tmp_path: Path) -> None:
    assert read_preparation(tmp_path) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], "is damaged .*: copy it again, or make it again with python -m nmt.prepare"),
        (lambda text: "[]", "is damaged"),
        (lambda text: text.replace('"moses"', '"other"'), "is damaged .tokenizer is 'other'"),
        (lambda text: text.replace('"casing"', '"case"'), "is damaged"),
        (lambda text: text.replace('"en"', '"../en"'), "is damaged .a language has no name"),
        (lambda text: text.replace('"format": 1', '"format": 2'), "newer version of nmt .format 2, this one reads 1."),
    ],
)
def test_records_that_cannot_be_used(made: Path, change: object, message: str) -> None:
    record = made / RECORD
    record.write_text(change(record.read_text()))  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        read_preparation(made)


def test_a_directory_that_was_copied_in_part(made: Path) -> None:
    codes, content = made / "bpe.codes", (made / "bpe.codes").read_bytes()
    codes.write_bytes(content[:-3])
    with pytest.raises(InputError, match=r"bpe.codes is not the file that .* cut off in copying"):
        read_preparation(made)
    codes.unlink()
    with pytest.raises(InputError, match=r"bpe.codes cannot be read .* copy the whole directory"):
        read_preparation(made)


def test_the_record_in_a_runs_directory(made: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run" / PREPARATION
    copy_preparation(made / "vocab", copy)
    copy_preparation(made / "vocab", copy)
    assert sorted(path.name for path in copy.iterdir()) == ["bpe.codes", RECORD, "vocab.de", "vocab.en"]
    found, there = read_preparation(made), read_preparation(copy)
    assert found and there and (found.recipe, found.model) == (there.recipe, there.model)
    contents = json.loads((made / RECORD).read_text())
    contents["recipe"]["casing"] = "keep"
    (made / RECORD).write_text(json.dumps(contents))
    with pytest.raises(InputError, match="has the record of another preparation"):
        copy_preparation(made / "vocab", copy)
    copy_preparation(tmp_path / "vocab", tmp_path / "none")
    copy_preparation(made / "words", tmp_path / "none")
    assert not (tmp_path / "none").exists(), "without a record of these vocabularies nothing is copied"


def test_lines_of_compressed_files(tmp_path: Path) -> None:
    text = "\ufeffa\r\n\u2028b\nc"
    for name, data in (("plain", text.encode()), ("packed.gz", gzip.compress(text.encode()))):
        (tmp_path / name).write_bytes(data)
        assert list(read_lines(f"{tmp_path}/{name}")) == ["a", "\u2028b", "c"], name


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\xef\xbb\xbf", "the file is empty"),
        (b"a\n\xe4\n", "line 2: not UTF-8 text .* iconv -f latin1"),
        ("ab".encode("utf-16"), "is no UTF-8 text, it is UTF-16"),
        (gzip.compress(b"a\n" * 999, mtime=0)[:-12], "cannot be read"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (b"PK\x03\x04", "zip archive"),
    ],
)
def test_raw_files_that_cannot_be_used(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_lines(f"{tmp_path}/a"))
