"""Datasets, from files and archives that the tests make: nothing is downloaded."""

from __future__ import annotations

import dataclasses
import io
import tarfile
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


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_has_both_sides_and_a_command(name: str) -> None:
    dataset = DATASETS[name]
    names = {part.name for part in dataset.parts}
    texts = {n.rsplit(".", 1)[0] for n in names}
    assert names == {f"{text}.{language}" for text in texts for language in dataset.languages}
    assert "nmt.nmt" in dataset.commands and dataset.address.startswith("https://")
