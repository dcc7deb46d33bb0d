"""nmt.text.vector_file: files of word vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.text.vector_file import read_embeddings
from nmt.text.vocabulary import Vocabulary

WORDS = Vocabulary("vocab", ("<unk>", "<s>", "</s>", "a", "b\u2028", "ü"))
ROWS = [[1.0, -2.5], [0.001, 4.0], [0.0, 7.0]]
LINES = ["ü 0 7", "other 5 5", "<s> 9 9", "a 1 -2.5", "b\u2028 1e-3 4.0"]


def write(path: Path, *lines: str) -> Path:
    path.write_bytes("".join(line + "\n" for line in lines).encode())
    return path


@pytest.mark.parametrize(
    "lines",
    [
        LINES,
        ["5 2", *LINES],
        [line + " " for line in LINES],  # as fastText ends lines
        [line.replace(" ", "  ") + "\r" for line in LINES],
    ],
)
def test_vectors_are_in_the_order_of_the_vocabulary(tmp_path: Path, lines: list[str]) -> None:
    vectors = read_embeddings(write(tmp_path / "e", *lines), WORDS)
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, np.array(ROWS, np.float32))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([*LINES[:2], "x 1", *LINES[2:]], "e, line 3: has 2 fields and should be a word and 2 numbers"),
        ([*LINES, "c d 1 2"], "line 6: has 4 fields"),
        ([*LINES, ""], "line 6: has 0 fields"),
        (["5 3", *LINES], "line 2: has 3 fields and should be a word and 3 numbers"),
        (["6 2", *LINES], "line 1: promises 6 vectors of 2 numbers and 5 lines follow; get the whole file"),
        (["5 0", *LINES], "line 1: promises 5 vectors of 0 numbers"),
        (["a 1.5", "b 2.5"], "line 1: is 'a 1.5'; a first line of two fields must be the number"),
        (["a\t1\t2"], "line 1: has 1 fields and should be a word and its numbers, with spaces"),
        (LINES[1:], "no vector for 1 of the 3 words of vocab: 'ü'; add the vectors"),
        (["z 1 2"], r"no vector for 3 of the 3 words of vocab: 'a', 'b\\u2028', 'ü'"),
        ([*LINES[:3], "a 1 two", LINES[4]], "line 4: could not convert string to float: 'two'; mend"),
        ([*LINES[:3], "a 1 nan", LINES[4]], "line 4: has a number that is not finite"),
        ([*LINES, "a 3 4"], "lines 4 and 6: both are vectors of 'a'; remove one"),
        ([], "the file is empty"),
    ],
)
def test_bad_files(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_embeddings(write(tmp_path / "e", *lines), WORDS)


def test_many_missing_words_are_counted(tmp_path: Path) -> None:
    words = Vocabulary("vocab", ("<unk>", "<s>", "</s>", *"abcdefgh"))
    with pytest.raises(InputError, match="for 7 of the 8 words of vocab: 'b', 'c', 'd', 'e', 'f', ...; add"):
        read_embeddings(write(tmp_path / "e", "a 1 2"), words)


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_embeddings(tmp_path / "missing", WORDS)
    (tmp_path / "latin").write_bytes(b"\xfc 1 2\n")
    with pytest.raises(InputError, match="line 1: not UTF-8"):
        read_embeddings(tmp_path / "latin", WORDS)
    with pytest.raises(InputError, match="vocab has no words but its first 3"):
        read_embeddings(write(tmp_path / "e", *LINES), Vocabulary("vocab", WORDS.words[:3]))
