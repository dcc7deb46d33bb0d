"""nmt.text.compressed: text in blocks of gzip, of which any line can be read."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.prepare import main as prepare
from nmt.prepare import prepare as prepared
from nmt.text import compressed
from nmt.text.compressed import BlockWriter
from nmt.text.lines import TextFile


def packed(text: str) -> bytes:
    file = io.BytesIO()
    writer = BlockWriter(file)
    for start in range(0, len(text), 1000):
        writer.write(text[start : start + 1000])
    writer.close()
    return file.getvalue()


@pytest.fixture
def text() -> str:
    random = np.random.default_rng(1)
    words = ["α", "dog", "東京", "", "\u2028", "a" * 50]
    return "".join(" ".join(random.choice(words, random.integers(0, 40))) + "\n" for _ in range(300)) + "last"


def test_lines_are_those_of_the_plain_file(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks of any size, also across the pieces in which a file is read; gzip reads it, too."""
    monkeypatch.setattr("nmt.text.lines.CHUNK_BYTES", 5000)
    (tmp_path / "plain").write_text(text)
    plain = TextFile(tmp_path / "plain")
    for size in (7, 1 << 14):
        monkeypatch.setattr(compressed, "_BLOCK_BYTES", size)
        (tmp_path / "a.gz").write_bytes(packed(text))
        assert gzip.decompress((tmp_path / "a.gz").read_bytes()).decode() == text
        for name in ("a", "a.gz"):
            found = TextFile(tmp_path / name)
            assert list(found) == list(plain) and found.checksum == plain.checksum
            np.testing.assert_array_equal(found.lengths, plain.lengths)
        assert [found.line(n) for n in (299, 0, 300, 17)] == [plain.line(n) for n in (299, 0, 300, 17)]


def test_blocks_of_the_format_are_read(tmp_path: Path) -> None:
    """A file as the tool bgzip writes it: with its empty block at the end, and a mark of UTF-8."""
    data = packed("\ufeffa b\r\nc\n")
    assert data.endswith(bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000"))
    (tmp_path / "a.gz").write_bytes(data)
    found = TextFile(tmp_path / "a")
    assert list(found) == ["a b", "c"] and found.lengths.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"a\nb\n", mtime=0), "compressed by gzip as a whole, .*gunzip.*compress it with bgzip"),
        (packed("a\nb\n")[:-5], "is cut off in the midst of a block"),
        (packed("a\nb\n")[:30], "is cut off in the midst of a block"),
        (packed("a\nb\n" * 99).replace(b"\xff\x06", b"\xff\x07"), "as a whole"),
        (packed(""), "the file is empty"),
        (packed("a\n") + b"x" * 40, "as a whole"),
        (packed("\0a\n"), "has bytes of zero"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(InputError, match=message):
        TextFile(tmp_path / "a")


def test_a_damaged_block(tmp_path: Path, text: str) -> None:
    data = bytearray(packed(text))
    data[40:60] = bytes(20)
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(InputError, match=r"a.gz is damaged .*: make it again"):
        TextFile(tmp_path / "a")


def test_prepared_text_in_blocks(tmp_path: Path) -> None:
    """It replaces the other form, and is not replaced by it."""
    for name in ("train", "dev"):
        for language in ("en", "de"):
            (tmp_path / f"{name}.{language}").write_text("a man sees a dog\n" * 20)
    flags = [f"--train_prefix={tmp_path}/train", "--src=en", "--tgt=de", f"--out_dir={tmp_path}/out", "--bpe=5"]
    assert prepare(["prepare", *flags]) == 0
    plain = list(TextFile(tmp_path / "out/train.en"))
    flags += [f"--apply={tmp_path}/dev"]
    assert prepare(["prepare", *flags, "--compress"]) == 0
    assert not (tmp_path / "out/train.en").exists() and (tmp_path / "out/dev.de.gz").exists()
    assert list(TextFile(tmp_path / "out/train.en")) == plain
    assert prepare(["prepare", *flags]) == 0
    assert not list((tmp_path / "out").glob("*.gz")) and list(TextFile(tmp_path / "out/train.en")) == plain
    again = prepared(f"{tmp_path}/out/train", "en", "de", tmp_path / "again", apply=[f"{tmp_path}/out/dev"])
    assert [file.lines for file in again.files] == [20] * 4, "compressed text is read, too"
