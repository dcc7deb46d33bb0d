"""nmt.text.vocabulary: words and ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.errors import InputError
from nmt.text.vocabulary import Vocabulary, read_vocabulary, write_vocabulary


def write(path: Path, words: str) -> Path:
    path.write_text(words.replace(" ", "\n") + "\n", encoding="utf-8")
    return path


def test_words_and_ids(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(write(tmp_path / "vocab.de", "<unk> <s> </s> ein grüner baum"))
    assert vocabulary.words == ("<unk>", "<s>", "</s>", "ein", "grüner", "baum")
    assert (vocabulary.size, vocabulary.unk_id, vocabulary.sos_id, vocabulary.eos_id) == (6, 0, 1, 2)
    ids = vocabulary.encode(["baum", "x", "ein"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [5, 0, 3]
    assert vocabulary.decode(ids) == ["baum", "<unk>", "ein"]
    assert vocabulary.decode([6, -1, 2]) == ["<unk>", "<unk>", "</s>"]
    assert vocabulary.encode([]).shape == (0,)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = write_vocabulary(tmp_path / "vocab", ["b", "ü"], sos="<a>", eos="<z>")
    assert (tmp_path / "vocab").read_text(encoding="utf-8") == "<unk>\n<a>\n<z>\nb\nü\n"
    assert read_vocabulary(tmp_path / "vocab", "<a>", "<z>") == written


def test_other_marks_of_start_and_end(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab", "<unk> <a> <z> b")
    with pytest.raises(InputError, match=r"must be '<unk>' '<s>' '</s>' and are '<unk>' '<a>' '<z>'; .*nmt\.prepare"):
        read_vocabulary(path)
    assert read_vocabulary(path, "<a>", "<z>").sos == "<a>"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("ein baum", r"vocab: the first three lines must be '<unk>' '<s>' '</s>'"),
        ("<s> <unk> </s> ein", "first three lines"),
        ("<unk> <s> </s> a b a", "vocab, lines 4 and 6: both are 'a'"),
        ("<unk> <s> </s> a </s>", "lines 3 and 5"),
        ("<unk> <s> </s> a  b", "vocab, line 5: '' is empty"),
    ],
)
def test_unusable_vocabularies(tmp_path: Path, words: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_vocabulary(write(tmp_path / "vocab", words))


def test_trailing_blanks_are_found(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_text("<unk>\n<s>\n</s>\na\nb \n")
    with pytest.raises(InputError, match="line 5: 'b ' is empty or has a space"):
        read_vocabulary(tmp_path / "vocab")


def test_nothing_is_written_when_words_are_bad(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        write_vocabulary(tmp_path / "vocab", ["a", "a"])
    assert not (tmp_path / "vocab").exists()


def test_two_vocabularies_of_the_same_words_are_equal() -> None:
    words = ("<unk>", "<s>", "</s>", "a")
    assert Vocabulary("p", words) == Vocabulary("p", words)


def test_a_byte_order_mark_is_named(tmp_path: Path) -> None:
    path = tmp_path / "vocab"
    path.write_text("\ufeff<unk>\n<s>\n</s>\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"and are '\\ufeff<unk>' '<s>' '</s>' \(it begins with a byte order mark\)"):
        read_vocabulary(path)


def test_a_difference_that_cannot_be_seen_is_shown(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_text("<unk>\n<s> \n</s>\n")
    with pytest.raises(InputError, match="and are '<unk>' '<s> ' '</s>'"):
        read_vocabulary(tmp_path / "vocab")
