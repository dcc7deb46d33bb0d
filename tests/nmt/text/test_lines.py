"""nmt.text.lines and nmt.text.corpus: files of lines and pairs of files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.text import lines
from nmt.text.corpus import TextFile, open_parallel
from nmt.text.tokens import split


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a b\nc\n", ["a b", "c"]),
        ("a b\nc", ["a b", "c"]),
        ("\n\n", ["", ""]),
        ("a\r\n\r\nb \r\r\n", ["a", "", "b \r"]),
        ("a\u2028b\x0bc\rd\n", ["a\u2028b\x0bc\rd"]),
        ("grün 東京\n", ["grün 東京"]),
        ("a \r", ["a "]),
        ("\ufeffa b\n\ufeffc\n", ["a b", "\ufeffc"]),  # a byte order mark counts as text, except at a file's beginning
        ("\ufeff\na\n", ["", "a"]),
        ("\ufeff a", [" a"]),
    ],
)
def test_lines_and_lengths(tmp_path: Path, content: str, expected: list[str]) -> None:
    file = TextFile(write(tmp_path / "text", content))
    assert list(file) == expected
    assert len(file) == len(expected)
    assert file.lengths.tolist() == [len(split(line)) for line in expected]
    assert file.lengths.dtype == "int32"


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 64])
def test_chunks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    generator = random.Random(chunk_bytes)
    content = "".join(generator.choice(["a", "ü", "東", " ", " ", "\n", "\r", "\r\n"]) for _ in range(400))
    path = write(tmp_path / "text", content)
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    file = TextFile(path)
    expected = [line.removesuffix("\r") for line in content.split("\n")]
    if expected[-1] == "" and content.endswith("\n"):
        expected.pop()
    assert list(file) == expected
    assert file.lengths.tolist() == [len(split(line)) for line in expected]


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 20])
def test_bad_encoding_is_found_at_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk_bytes)
    path = write(tmp_path / "text", "eins\nzwei ü\n".encode() + b"gr\xfcn\nvier\n")
    with pytest.raises(InputError, match=r"text, line 3: not UTF-8 text .*iconv"):
        TextFile(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a b\n".encode("utf-16"), "UTF-16; convert it: iconv -f utf-16 -t utf-8"),
        ("a b\n".encode("utf-32"), "UTF-32; convert it: iconv -f utf-32"),
        ("a b\n".encode("utf-16-le"), "bytes of zero, .* iconv -f utf-16le"),
        (gzip.compress(b"a b\n", mtime=0), "compressed by gzip; uncompress it: gunzip"),
        (bz2.compress(b"a b\n"), "bunzip2"),
        (lzma.compress(b"a b\n"), "unxz"),
        (b"PK\x03\x04 a document", "save it as plain text"),
        ("\ufeff".encode(), "the file is empty"),
    ],
)
def test_other_kinds_of_files_are_known_by_their_first_bytes(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        TextFile(write(tmp_path / "text", content))


def test_unusable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="missing: cannot be read .*No such file"):
        TextFile(tmp_path / "missing")
    with pytest.raises(InputError, match="cannot be read"):
        TextFile(tmp_path)
    with pytest.raises(InputError, match="text: the file is empty"):
        TextFile(write(tmp_path / "text", ""))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="the superuser may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path / "text", "a\n")
    path.chmod(0)
    with pytest.raises(InputError, match="Permission denied"):
        TextFile(path)


def test_line_numbers_are_checked(tmp_path: Path) -> None:
    file = TextFile(write(tmp_path / "text", "a\nb\n"))
    for number in (-1, 2):
        with pytest.raises(IndexError):
            file.line(number)


def test_replacing_the_file_does_not_change_an_open_one(tmp_path: Path) -> None:
    path = write(tmp_path / "text", "old line\n")
    file = TextFile(path)
    write(tmp_path / "new", "n\n").replace(path)
    assert file.line(0) == "old line"


def test_parallel_files(tmp_path: Path) -> None:
    src, tgt = write(tmp_path / "t.en", "a\nb b\n"), write(tmp_path / "t.de", "x x\ny\n")
    corpus = open_parallel(src, tgt)
    assert len(corpus) == 2
    assert (corpus.src.line(1), corpus.tgt.line(1)) == ("b b", "y")


def test_unequal_parallel_files_name_both_counts(tmp_path: Path) -> None:
    src, tgt = write(tmp_path / "t.en", "a\nb\n"), write(tmp_path / "t.de", "x\n")
    with pytest.raises(InputError, match=r"t\.en has 2 lines and .*t\.de has 1"):
        open_parallel(src, tgt)


def test_a_pipe_is_no_text_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer, which never comes
    with pytest.raises(InputError, match="pipe: is not a regular file"):
        TextFile(tmp_path / "pipe")


def test_checksum_tells_contents_apart(tmp_path: Path) -> None:
    found = []
    for name, text in (("one", "a b\nc\n"), ("two", "a b\nc\n"), ("other", "b a\nc\n")):
        (tmp_path / name).write_text(text)
        found.append(TextFile(tmp_path / name).checksum)
    assert found[0] == found[1] != found[2]
