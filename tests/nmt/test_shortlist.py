"""The command that makes shortlists, and translation with its shortlists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nmt.nmt import main as nmt
from nmt.shortlist import main


def command(toy: Any, *more: str) -> int:
    prefix = toy.directory
    flags = [f"--train_prefix={prefix}/train", "--src=en", "--tgt=de", f"--vocab_prefix={prefix}/vocab"]
    return main(["shortlist", *flags, f"--out_file={prefix}/made/shortlist", *more])


def test_a_language_is_learnt_and_translated_by_it(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Each letter becomes its capital. A translation has words of the list only, and changes with the list."""
    path = toy.directory / "made" / "shortlist"
    assert command(toy, "--candidates=1", "--frequent=2") == 0
    said = f"{path}: 8 words of 10, from 37 sentence pairs; unknown are 0.00 % of {toy.train.src.path} and 0.00 % of "
    assert capsys.readouterr().out == f"{said}{toy.train.tgt.path}\n"
    end, *lines = path.read_text().splitlines()
    assert end.startswith("</s> ") and len(end.split()) == 3
    assert sorted(lines) == [f"{letter} {letter.upper()}" for letter in "abcdefg"]
    before = path.read_bytes()
    assert command(toy, "--candidates=1", "--frequent=2") == 0
    assert path.read_bytes() == before

    assert nmt(toy.flags()) == 0
    text, out = toy.directory / "text", toy.directory / "found"
    text.write_text("a b\nc\n")
    usual = set(end.split()[1:])
    infer = [f"--out_dir={toy.directory}/out", f"--inference_input_file={text}", f"--inference_output_file={out}"]
    assert nmt([*infer, f"--shortlist={path}", "--beam_width=3", "--min_length=2", "--ban_unk_token"]) == 0
    for line, letters in zip(out.read_text().splitlines(), ("AB", "C"), strict=True):
        assert set(line.split()) <= {*letters, *usual, "<s>"} and len(line.split()) >= 2
    path.write_text("</s> G\n")
    assert nmt([*infer, f"--shortlist={path}", "--beam_width=3", "--min_length=2", "--ban_unk_token"]) == 0
    assert set(out.read_text().split()) <= {"G", "<s>"}


def test_few_pairs_and_mistakes(toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(toy, "--pairs=5") == 0
    assert "from 5 sentence pairs" in capsys.readouterr().out
    assert command(toy, "--pairs=0") == 1
    assert "--pairs=0 is not allowed" in capsys.readouterr().err
    (tmp_path / "vocab.de").write_text("<unk>\n<s>\n</s>\nother\n")
    assert command(toy) == 1
    assert f"train.de has no word of {tmp_path}/vocab.de" in capsys.readouterr().err
    for name in ("vocab.en", "train.de"):
        before = (tmp_path / name).read_bytes()
        assert command(toy, f"--out_file={tmp_path}/{name}") == 1
        assert "is also an input and would be lost" in capsys.readouterr().err
        assert (tmp_path / name).read_bytes() == before
    assert command(toy, f"--out_file={tmp_path}") == 1
    assert "cannot be written" in capsys.readouterr().err
    assert main(["shortlist"]) == 1
    assert "--train_prefix" in capsys.readouterr().err


def test_unknown_words_have_a_line(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Vocabularies may have their own sentence marks, in any position."""
    for suffix, words in (("en", "a b c d e f"), ("de", "A B C D E F G")):
        words = f"<unk> {words} END BEGIN" if suffix == "en" else f"nobody BEGIN {words} END"
        (toy.directory / f"vocab.{suffix}").write_text(words.replace(" ", "\n") + "\n")
    marks = ["--sos=BEGIN", "--eos=END", "--check_special_token=false"]
    assert command(toy, "--candidates=1", "--frequent=1", *marks) == 0
    assert re.search(r"[1-9]\d*\.\d\d % of \S+train.en and 0.00 % of", capsys.readouterr().out)
    lines = (toy.directory / "made" / "shortlist").read_text().splitlines()
    assert lines[0].startswith("END ") and "<unk> G" in lines


def test_a_joint_vocabulary_is_the_sources_file(toy: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = toy.directory / "made" / "shortlist"
    words = ["<unk>", "<s>", "</s>", *"abcdefgABCDEFG"]
    (toy.directory / "vocab.en").write_text("\n".join(words) + "\n")
    (toy.directory / "vocab.de").unlink()
    assert command(toy) == 1
    assert "vocab.de: cannot be read" in capsys.readouterr().err
    assert command(toy, "--candidates=1", "--frequent=2", "--share_vocab") == 0
    assert sorted(path.read_text().splitlines()[1:]) == [f"{letter} {letter.upper()}" for letter in "abcdefg"]


@pytest.mark.parametrize("flag", ["--use_char_encode", "--language_model"])
def test_a_source_without_words_has_no_shortlist(toy: Any, flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nmt(toy.flags("--shortlist=s", flag)) == 1
    assert f"which {flag} does not have" in capsys.readouterr().err
