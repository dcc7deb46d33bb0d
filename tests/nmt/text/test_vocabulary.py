"""nmt.text.vocabulary: words and ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.text.vocabulary import Vocabulary, complete_vocabulary, read_vocabulary, write_vocabulary


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


def test_a_byte_order_mark_is_no_part_of_a_word(tmp_path: Path) -> None:
    path = tmp_path / "vocab"
    path.write_text("\ufeff<unk>\n<s>\n</s>\na\n", encoding="utf-8")
    assert read_vocabulary(path).words == ("<unk>", "<s>", "</s>", "a")


def test_a_difference_that_cannot_be_seen_is_shown(tmp_path: Path) -> None:
    (tmp_path / "vocab").write_text("<unk>\n<s> \n</s>\n")
    with pytest.raises(InputError, match="and are '<unk>' '<s> ' '</s>'"):
        read_vocabulary(tmp_path / "vocab")


def test_missing_special_words_are_put_first_in_a_copy(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab.de", "a b c")
    vocabulary = complete_vocabulary(path, tmp_path / "new" / "out")
    copy = tmp_path / "new" / "out" / "vocab.de"
    assert copy.read_text() == "<unk>\n<s>\n</s>\na\nb\nc\n"
    assert path.read_text() == "a\nb\nc\n"
    assert (vocabulary.size, vocabulary.path) == (6, str(copy))
    assert read_vocabulary(copy) == vocabulary
    # Processes that do not write the copy have the same words.
    assert complete_vocabulary(path, None).words == vocabulary.words
    # A complete vocabulary is used unchanged; a run that continues makes the same copy.
    assert complete_vocabulary(copy, tmp_path / "unused") == vocabulary
    assert not (tmp_path / "unused").exists()
    assert complete_vocabulary(path, tmp_path / "new" / "out") == vocabulary


def test_one_word_is_a_vocabulary(tmp_path: Path) -> None:
    assert complete_vocabulary(write(tmp_path / "vocab", "a"), None, "<a>", "<z>").words == ("<unk>", "<a>", "<z>", "a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<s>\n</s>\na\n", "has '<s>' in line 1, '</s>' in line 2: the first three lines must be '<unk>' '<s>' '</s>'"),
        ("<unk>\n<a>\n</a>\nb\n", "has '<unk>' in line 1: .* set --sos and --eos to the file's marks"),
        ("a\n<unk>\n", "has '<unk>' in line 2"),
        ("<unk>\n<s> \n</s>\n", "line 2: '<s> ' is empty or has a space"),
        ("a\nb \n", "line 2: 'b ' is empty or has a space"),
        ("a\n\n", "line 2: '' is empty"),
        ("a\nb\na\n", "lines 1 and 3: both are 'a'"),
        ("a\r\nb\r\na\r\n", "lines 1 and 3: both are 'a'"),
        ("", "the file is empty"),
    ],
)
def test_what_cannot_be_completed(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "vocab").write_bytes(content.encode())
    with pytest.raises(InputError, match=message):
        complete_vocabulary(tmp_path / "vocab", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_does_not_replace_its_original(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab", "a b")
    with pytest.raises(InputError, match="lacks the lines .* choose another out_dir"):
        complete_vocabulary(path, tmp_path)
    assert path.read_text() == "a\nb\n"


def test_carriage_returns_and_line_separators(tmp_path: Path) -> None:
    """Lines end where those of other text files end, so that each word of a text is found."""
    (tmp_path / "vocab").write_bytes("a\r\nb\u2028c\r\n\u00a0\r\n".encode())
    assert complete_vocabulary(tmp_path / "vocab", tmp_path / "out").words[3:] == ("a", "b\u2028c", "\u00a0")
    assert read_vocabulary(tmp_path / "out" / "vocab").encode(["b\u2028c", "a", "b"]).tolist() == [4, 3, 0]


def test_a_mark_in_a_text_is_an_unknown_word(tmp_path: Path) -> None:
    """Else it would end a sentence in its midst."""
    vocabulary = write_vocabulary(tmp_path / "vocab", ["a"])
    assert vocabulary.encode(["a", "</s>", "<s>", "<unk>", "a"]).tolist() == [3, 0, 0, 0, 3]
    assert vocabulary.count_unknown(["a", "</s>", "<s>", "<unk>"]) == 3
    assert (vocabulary.sos_id, vocabulary.eos_id, vocabulary.decode([1, 2])) == (1, 2, ["<s>", "</s>"])
    assert Vocabulary("v", ("<unk>", "|", "|x"), "|", "|", False).encode(["|x", "|"]).tolist() == [2, 0]


def test_the_first_line_is_unknown_where_no_special_words_are_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "vocab", "a b c </s> <s>")
    vocabulary = read_vocabulary(path, specials_first=False)
    assert (vocabulary.size, vocabulary.unk_id, vocabulary.eos_id, vocabulary.sos_id) == (5, 0, 3, 4)
    assert vocabulary.padding_id == 3
    assert vocabulary.encode(["c", "f", "a", "<s>"]).tolist() == [2, 0, 0, 0]
    assert vocabulary.decode([0, 9]) == ["a", "<unk>"]
    with pytest.raises(InputError, match="has no line '<go>', which marks sentences; add it, or set --sos to a word"):
        read_vocabulary(path, "<go>", specials_first=False)
    with pytest.raises(InputError, match="has no line '</go>', .* set --eos"):
        read_vocabulary(path, eos="</go>", specials_first=False)
