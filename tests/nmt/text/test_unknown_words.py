"""nmt.text.unknown_words: the part of a text that its vocabulary lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.text import unknown_words
from nmt.text.lines import TextFile
from nmt.text.unknown_words import count_unknown
from nmt.text.vocabulary import Vocabulary, write_vocabulary


def test_share(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b x\n\n<unk> a </s> a\n x\n")
    found = count_unknown(TextFile(tmp_path / "text"), write_vocabulary(tmp_path / "vocab", ["a", "b"]))
    assert (found.tokens, found.unknown, found.share, found.lines) == (8, 4, 0.5, None)
    said = f"{tmp_path}/text: 50.00 % of its tokens are not in {tmp_path}/vocab"
    assert str(found) == f"{said}. The marks of sentences in it, </s>, are read as <unk>"


def test_the_first_word_is_known_where_it_stands_for_unknown_ones(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("first other\n")
    vocabulary = Vocabulary("v", ("first", "<s>", "</s>"), specials_first=False)
    assert count_unknown(TextFile(tmp_path / "text"), vocabulary).unknown == 1


def test_a_long_text_is_counted_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unknown_words, "MOST_LINES", 10)
    (tmp_path / "text").write_text("".join("x a\n" if n % 2 else "a\n" for n in range(99)))
    found = count_unknown(TextFile(tmp_path / "text"), write_vocabulary(tmp_path / "vocab", ["a"]))
    assert (found.lines, found.tokens, found.unknown) == (10, 10, 0)  # every tenth line
    assert "(of 10 lines)" in str(found)


def test_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(" \n")
    assert count_unknown(TextFile(tmp_path / "text"), write_vocabulary(tmp_path / "vocab", ["a"])).share == 0
