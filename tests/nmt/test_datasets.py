"""Datasets, from files and archives that the tests make: nothing is downloaded."""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import io
import re
import tarfile
import threading
from pathlib import Path

import pytest

from nmt import datasets
from nmt.core.errors import InputError
from nmt.datasets import DATASETS, Dataset, Part, fetch


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def archive(path: Path, members: dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))


def test_plain_files_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mirror = tmp_path / "mirror"
    for part in DATASETS["iwslt15"].parts:
        put(mirror / part.path, f"{part.name}\nsecond\u2028line\n")
    out = tmp_path / "out"
    arguments = ["datasets", "--dataset=iwslt15", f"--out_dir={out}", f"--address=file://{mirror}"]
    assert datasets.main(arguments) == 0
    assert (out / "train.vi").read_text(encoding="utf-8") == "train.vi\nsecond\u2028line\n"
    said = capsys.readouterr().out
    assert f"--train_prefix={out}/train" in said and "Published: 23.8" in said
    for part in DATASETS["iwslt15"].parts:
        (mirror / part.path).unlink()
    assert datasets.main(arguments) == 0  # existing files are not downloaded again


def test_archives_pieces_segments_and_lengths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = tmp_path / "mirror"
    archive(mirror / "a.tgz", {"a.en": "one\n" + "w " * 81 + "\n\nlast\n", "a.de": "eins\nlang\nleer\nletztes\n"})
    archive(mirror / "b.tgz", {"b.en": "two\n", "b.de": "zwei\n"})
    segments = '<doc>\n<seg id="1">A &amp; B</seg>\n</doc>\n'
    archive(mirror / "d.tgz", {"d/dev-src.en.sgm": segments, "d/dev-ref.de.sgm": segments})
    parts = [Part(f"train.{x}", f"{a}.tgz", f"{a}.{x}") for a in "ab" for x in ("en", "de")]
    parts += [Part("dev.en", "d.tgz", "d/dev-src.en.sgm"), Part("dev.de", "d.tgz", "d/dev-ref.de.sgm")]
    dataset = Dataset(f"file://{mirror}", parts, ("en", "de"), True, "")
    monkeypatch.setattr(datasets, "tokenizer", lambda language, escape: str.strip)
    fetch(dataset, str(tmp_path / "out"))
    assert (tmp_path / "out/train.en").read_text() == "one\nlast\ntwo\n"
    assert (tmp_path / "out/train.de").read_text() == "eins\nletztes\nzwei\n"
    assert (tmp_path / "out/dev.en").read_text() == "A & B\n"


def test_refusals(tmp_path: Path) -> None:
    mirror = tmp_path / "mirror"
    parts = [Part("t.en", "t.en"), Part("t.de", "t.de")]
    dataset = Dataset(f"file://{mirror}", parts, ("en", "de"), False, "")
    with pytest.raises(InputError, match="t.en cannot be read .*: try again, or give a mirror"):
        fetch(dataset, str(tmp_path / "out"))
    put(mirror / "t.en", "a\nb\n")
    put(mirror / "t.de", "a\n")
    with pytest.raises(InputError, match="t.en and t.de have different numbers of lines"):
        fetch(dataset, str(tmp_path / "out"))
    assert not (tmp_path / "out" / "t.en").exists()
    archive(mirror / "x.tgz", {"other": ""})
    missing = dataclasses.replace(dataset, parts=[Part("u.en", "x.tgz", "u"), Part("u.de", "x.tgz", "v")])
    with pytest.raises(InputError, match="has no u"):
        fetch(missing, str(tmp_path / "out"))


class Server(http.server.BaseHTTPRequestHandler):
    """Sends a text, but its connection ends early, or says nothing of its length, as the path asks."""

    def do_GET(self) -> None:
        kind = self.path.rpartition("/")[2]
        self.send_response(200)
        if kind == "chunked.en":
            self.protocol_version = "HTTP/1.1"
            self.send_header("Transfer-Encoding", "chunked")
        elif kind != "silent.en":
            self.send_header("Content-Length", "99" if kind == "half.en" else "4")
        self.end_headers()
        self.wfile.write(b"4\r\nab\n" if kind == "chunked.en" else b"a\nb\n")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half.en", "half.en ended after 4 of 99 bytes: try again"),
        ("silent.en", "silent.en has no length, so a part of it would pass for all"),
        ("chunked.en", "chunked.en cannot be read .IncompleteRead.*: try again"),
        ("known.en", "known.en is not the published file: its SHA-256 is 9111.*, not 0000.*Delete it"),
        ("whole.en", ""),
    ],
)
def test_half_a_file_does_not_count_as_whole(tmp_path: Path, name: str, message: str) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    parts = [Part("vocab.en", name), Part("vocab.de", "whole.de")]
    address = f"http://127.0.0.1:{server.server_address[1]}"
    dataset = Dataset(address, parts, ("en", "de"), False, "", {"known.en": "0" * 64})
    try:
        with pytest.raises(InputError, match=message) if message else contextlib.nullcontext():
            fetch(dataset, str(tmp_path))
    finally:
        server.shutdown()
        server.server_close()
    assert (tmp_path / "vocab.en").exists() == (not message)
    assert [path.name for path in (tmp_path / "downloads").iterdir() if name in path.name] == [name] * (
        name in ("known.en", "whole.en")
    )


def test_the_published_files_are_known() -> None:
    """Those of Multi30k, at a commit, are the ones that results were measured with."""
    dataset = DATASETS["multi30k"]
    assert set(dataset.digests) == {part.path for part in dataset.parts} and len(set(dataset.digests.values())) == 6
    assert re.search(r"/[0-9a-f]{40}$", dataset.address)


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_has_both_sides_and_a_command(name: str) -> None:
    dataset = DATASETS[name]
    names = {part.name for part in dataset.parts}
    texts = {n.rsplit(".", 1)[0] for n in names}
    assert names == {f"{text}.{language}" for text in texts for language in dataset.languages}
    assert "nmt.nmt" in dataset.commands and dataset.address.startswith("https://")
