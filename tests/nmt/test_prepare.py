"""nmt.prepare and nmt.text.subwords: from parallel text to vocabularies and subword text."""

from __future__ import annotations

import errno
import gzip
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import nmt.prepare
from nmt.core.errors import InputError
from nmt.prepare import main, prepare
from nmt.text.preparation import recorded_texts
from nmt.text.subwords import BytePairs, SentencePieces, learn_byte_pairs, learn_pieces
from nmt.text.tokens import join, split
from nmt.text.vocabulary import read_vocabulary
from scripts.examples.demo.phrasebook import phrasebook
from tests.launch import ROOT


def write(directory: Path, texts: dict[str, str]) -> None:
    directory.mkdir(exist_ok=True)
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")


def read(directory: Path) -> dict[str, bytes]:
    return {path.name: b"" if path.is_dir() else path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    write(
        tmp_path / "in",
        {
            "train.en": "b a c a\n</s> a b\n",
            "train.de": "x\ny x\n",
            "dev.en": "a d\nd\n",
            "dev.de": "x\nz\n",
            "new.en": "a\n",
        },
    )
    return tmp_path


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    for part, pairs in phrasebook(pairs=300, held_out_pairs=50).items():
        write(
            tmp_path / "in",
            {
                f"{part}.en": "".join(pair.english + "\n" for pair in pairs),
                f"{part}.de": "".join(pair.german + "\n" for pair in pairs),
            },
        )
    return tmp_path


def test_words_by_frequency_then_by_name(toy: Path) -> None:
    summary = prepare(f"{toy}/in/train", "en", "de", toy / "out", apply=[f"{toy}/in/dev", f"{toy}/in/new"])
    assert read_vocabulary(toy / "out/vocab.en").words == ("<unk>", "<s>", "</s>", "a", "b", "c")
    assert read_vocabulary(toy / "out/vocab.de").words == ("<unk>", "<s>", "</s>", "x", "y")
    assert sorted(read(toy / "out")) == ["preparation.json", "vocab.de", "vocab.en"]
    assert {(file.name, file.lines, file.tokens, file.unknown) for file in summary.files} == {
        ("train.en", 2, 7, 1),
        ("train.de", 2, 3, 0),
        ("dev.en", 2, 3, 2),
        ("dev.de", 2, 2, 1),
        ("new.en", 1, 1, 0),
    }


def test_marks_of_sentences_in_the_text_are_told(numbers: Path) -> None:
    """Words and subwords alike: the model reads an unknown word there."""
    path = numbers / "in/train.de"
    path.write_text(path.read_text().replace(" ", " </s> ", 200))
    several: list[dict[str, Any]] = [{}, {"bpe": 150}, {"bpe": 150, "all_subwords": True}, {"spm": 150}]
    for options in several:
        told = str(prepare(f"{numbers}/in/train", "en", "de", numbers / "out", **options))
        assert ("train.de has </s> 200 times as words. The model marks" in told) == ("spm" not in options), options
        assert "train.en has" not in told


def test_one_vocabulary_of_both_languages(toy: Path) -> None:
    prefix = f"{toy}/in/train"
    summary = prepare(prefix, "en", "de", toy / "out", apply=[f"{toy}/in/dev"], min_count=2, share_vocab=True)
    assert read_vocabulary(toy / "out/vocab.en").words[3:] == ("a", "b", "x")
    assert (toy / "out/vocab.de").read_bytes() == (toy / "out/vocab.en").read_bytes()
    assert [file.unknown for file in summary.files] == [2, 1, 2, 1]
    flags = [f"--train_prefix={prefix}", "--src=en", "--tgt=de", f"--out_dir={toy}/again", "--share_vocab"]
    assert main(["prepare", *flags]) == 0
    assert read_vocabulary(toy / "again/vocab.en").words[3:] == ("a", "b", "x", "c", "y")


def test_rare_words_are_left_out(toy: Path) -> None:
    summary = prepare(f"{toy}/in/train", "en", "de", toy / "out", min_count=2)
    assert read_vocabulary(toy / "out/vocab.en").words[3:] == ("a", "b")
    assert summary.files[0].unknown == 2


@pytest.mark.parametrize(("option", "units"), [("bpe", "bpe.codes"), ("spm", "spm.model")])
def test_subword_text_joins_to_the_original(numbers: Path, option: str, units: str) -> None:
    options: dict[str, Any] = {option: 150}
    apply = [f"{numbers}/in/dev", f"{numbers}/in/test"]
    prepare(f"{numbers}/in/train", "en", "de", numbers / "out", apply=apply, **options)
    original, segmented = read(numbers / "in"), read(numbers / "out")
    assert set(segmented) == set(original) | {units, "vocab.en", "vocab.de", "preparation.json"}
    for name, content in original.items():
        lines = segmented[name].decode().splitlines()
        assert [join(split(line), option, "</s>") for line in lines] == content.decode().splitlines(), name
        assert segmented[name] != content, name


@pytest.mark.parametrize("option", ["bpe", "spm"])
def test_the_same_input_gives_the_same_output(numbers: Path, option: str) -> None:
    options: dict[str, Any] = {option: 150}
    for out in ("out1", "out2"):
        prepare(f"{numbers}/in/train", "en", "de", numbers / out, **options)
    assert read(numbers / "out1") == read(numbers / "out2")


def test_byte_pairs_by_hand() -> None:
    # "a b" occurs five times, and then "ab c" at the end of a word three times.
    model, _ = learn_byte_pairs([("abc", 3), ("abd", 2)], merges=2)
    assert BytePairs(model).segment("abc  abcab abd") == "abc ab@@ c@@ a@@ b ab@@ d"
    assert model.decode().splitlines()[1:] == ["a b", "ab c</w>"]


def test_subwords_keep_unusual_characters() -> None:
    line = "ﬁve\u00a0½ ⅷ 東京"
    pieces = SentencePieces(learn_pieces([line, "abc abd abe"] * 5, 18).model)
    assert join(split(pieces.segment(line)), "spm", "</s>") == line
    assert join(split(BytePairs(learn_byte_pairs([("ab", 2)], 1).model).segment(line)), "bpe", "</s>") == line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bpe": 10, "spm": 10}, "--bpe and --spm"),
        ({"bpe": 0}, "--bpe=0"),
        ({"min_count": 0}, "--min_count=0"),
        ({"tgt": "en"}, "--src and --tgt are both en"),
        ({"spm": 5000}, "--spm=5000: sentencepiece cannot learn"),
        ({"bpe": 5}, "--bpe=5: the training text has no word of two characters"),
        ({"train_prefix": "in/none"}, "in/none.en: cannot be read"),
        ({"apply": ["in/none"]}, "in/none.en: cannot be read"),
        ({"bpe": 3, "train_prefix": "in/long", "out_dir": "in"}, "would be overwritten"),
        ({"bpe": 3, "train_prefix": "in/long", "apply": ["in/dev", "in/../in/dev"]}, "would both be written"),
        ({"out_dir": "in/train.en"}, "the directory cannot be made"),
        ({"tokenizer": "sentencepiece"}, "give their number by --spm"),
        ({"tokenizer": "moses", "spm": 9}, "--spm does not need --tokenizer=moses"),
        ({"tokenizer": "sentencepiece", "spm": 9, "casing": "marked"}, "--casing=marked marks words"),
        ({"train_prefix": " , "}, "names no text"),
    ],
)
def test_errors_name_the_cause_and_change_nothing(
    toy: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(toy)
    write(Path("in"), {"long.en": "aab aab\n", "long.de": "aab\n"})
    if "spm" not in options:
        write(Path("in"), {"train.en": "a b\n", "train.de": "b\n"})
    before = read(Path("in"))
    arguments: dict[str, Any] = {"train_prefix": "in/train", "src": "en", "tgt": "de", "out_dir": "out", **options}
    with pytest.raises(InputError, match=message):
        prepare(**arguments)
    assert read(Path("in")) == before
    assert not Path("out").exists()


def test_command(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [f"--train_prefix={toy}/in/train", "--src=en", "--tgt=de", f"--out_dir={toy}/out"]
    assert main(["prepare", *arguments, f"--apply={toy}/in/dev,{toy}/in/new"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{toy}/out/vocab.en: 6 words"
    assert "dev.en: 2 lines, 3 tokens, 66.67 % of them unknown" in lines
    assert main(["prepare", *arguments, "--bpe=1", "--spm=1"]) == 1
    assert capsys.readouterr().err.startswith("--bpe and --spm")
    assert main(["prepare"]) == 1
    assert "Missing --train_prefix, --src, --tgt, --out_dir" in capsys.readouterr().err


def test_a_carriage_return_in_a_line(toy: Path) -> None:
    write(toy / "in", {"dev.de": "x\nz \ry\n"})
    with pytest.raises(InputError, match="dev.de, line 2: has a carriage return .* with tr '.*r' ' '"):
        prepare(f"{toy}/in/train", "en", "de", toy / "out", apply=[f"{toy}/in/dev"])
    with pytest.raises(InputError, match="dev.de, line 2: has a carriage return"):
        prepare(f"{toy}/in/train", "en", "de", toy / "out", apply=[f"{toy}/in/dev"], tokenizer="moses")
    write(toy / "in", {"new.en": "x\rz\ry\r"})  # one long line, if carriage returns end no lines
    with pytest.raises(InputError, match=r"new.en, line 1: .* with tr '\\r' '\\n'"):
        prepare(f"{toy}/in/train", "en", "de", toy / "out", apply=[f"{toy}/in/new"])
    assert not (toy / "out").exists()


def test_a_text_without_a_word(toy: Path) -> None:
    write(toy / "in", {"train.de": "\n" * len(read(toy / "in")["train.de"].splitlines())})
    with pytest.raises(InputError, match=r"train\.de has no word in any of its"):
        prepare(f"{toy}/in/train", "en", "de", toy / "out")


@pytest.mark.parametrize(
    ("train", "apply", "options", "message"),
    [
        (
            "other/train",
            ["in/raw/dev"],
            {"tokenizer": "moses"},
            "in/raw/dev.en would be overwritten by the output in/raw/dev.en",
        ),
        ("link/train", [], {"casing": "lower"}, "link/train.en would be overwritten by the output in/train.en"),
        ("in/vocab", [], {}, "in/vocab.en and the files of the preparation would both be written to in/vocab.en"),
        ("vocab", [], {}, "vocab.en and the files of the preparation would both be"),
        ("in/train", ["in/dev", "in/raw/dev"], {}, "in/raw/dev.en and in/dev.en would both be written to in/dev.en"),
        ("in/a", ["in/a.x"], {"tgt": "x.en"}, "in/a.x.en and in/a.x.en would both be written to in/a.x.en"),
    ],
)
def test_no_output_is_an_input(
    toy: Path, monkeypatch: pytest.MonkeyPatch, train: str, apply: list[str], options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(toy)
    Path("link").symlink_to("in")
    write(Path("other"), {"train.en": "a\n", "train.de": "x\n"})
    write(Path("in/raw"), {"dev.en": "a\n", "dev.de": "x\n"})
    for name in ("in/vocab.en", "in/vocab.de", "vocab.en", "vocab.de", "in/a.en", "in/a.x.en", "in/a.x.x.en"):
        Path(name).write_text("a\n")
    before = {path: path.read_bytes() for path in Path().rglob("*.*")}
    arguments: dict[str, Any] = {"src": "en", "tgt": "de", "out_dir": "in", "apply": apply, **options}
    with pytest.raises(InputError, match=re.escape(message)):
        prepare(train, **arguments)
    assert {path: path.read_bytes() for path in Path().rglob("*.*")} == before


def test_vocabularies_beside_the_text_that_they_are_of(toy: Path) -> None:
    prepare(f"{toy}/in/train", "en", "de", toy / "in", apply=[f"{toy}/in/dev"])
    assert (toy / "in/vocab.en").exists()


def test_a_text_that_would_not_be_made_again(toy: Path) -> None:
    """It would not fit the new vocabulary. Texts that are made again are replaced."""
    arguments = f"{toy}/in/train", "en", "de", toy / "out"
    prepare(*arguments, apply=[f"{toy}/in/dev"], casing="lower")
    with pytest.raises(InputError, match="out/dev.en was prepared before .* name its text in --apply, remove it, or"):
        prepare(*arguments, casing="lower")
    with pytest.raises(InputError, match="out/train.en was prepared before and the new record would not name it: name"):
        prepare(f"{toy}/in/dev", "en", "de", toy / "out", like=f"{toy}/out")
    both = {"apply": [f"{toy}/in/dev"], "like": f"{toy}/out"}
    assert "looks raw" not in str(prepare(*arguments, **both))  # type: ignore[arg-type]
    prepare(*arguments, apply=[f"{toy}/in/dev", f"{toy}/in/new"], casing="lower")
    for path in (toy / "out").glob("dev.*"):
        path.unlink()
    (toy / "out/new.en").unlink()
    prepare(*arguments, casing="lower")
    assert recorded_texts(toy / "out") == ["train.en", "train.de"]
    (toy / "out/preparation.json").write_text("{}")
    prepare(*arguments, casing="lower", apply=[f"{toy}/in/new"])


def test_languages_whose_suffixes_end_alike(toy: Path) -> None:
    """Each text is counted by the vocabulary of its own language."""
    for name in ("train", "dev"):
        (toy / f"in/{name}.en").rename(toy / f"in/{name}.x.de")
    summary = prepare(f"{toy}/in/train", "x.de", "de", toy / "out", apply=[f"{toy}/in/dev"])
    assert [file.unknown for file in summary.files] == [1, 0, 2, 1]


def test_termination_and_a_full_disk_leave_nothing(toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The message names the directory of the user, and not a temporary file."""
    flags = [f"--train_prefix={toy}/in/train", "--src=en", "--tgt=de", f"--out_dir={toy}/out", "--casing=lower"]

    def full(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nmt.prepare._words_of", full)
    assert main(["prepare", *flags]) == 1
    assert capsys.readouterr().err.startswith(f"{toy}/out: cannot be written (No space left on device); free or")
    monkeypatch.setattr("nmt.prepare._words_of", lambda *_: signal.raise_signal(signal.SIGTERM))
    with pytest.raises(SystemExit, match="143"):
        main(["prepare", *flags])
    assert [path.name for path in toy.iterdir()] == ["in"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert main(["prepare", *flags, "--processes=0"]) == 1
    assert "--processes=0 is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize("subwords", ["bpe", "spm"])
def test_ctrl_c_ends_it_at_any_moment(tmp_path: Path, subwords: str) -> None:
    """The whole group gets the signal, as from a terminal; nothing stays."""
    pairs = phrasebook(pairs=4000, held_out_pairs=1)["train"]
    for language in ("english", "german"):
        text = "".join(getattr(pair, language) + "\n" for pair in pairs)
        (tmp_path / f"train.{language}").write_text(text * 40, encoding="utf-8")
    command = [sys.executable, "-m", "nmt.prepare", f"--train_prefix={tmp_path}/train", "--src=english"]
    command += ["--tgt=german", f"--out_dir={tmp_path}/out", f"--{subwords}=150", "--processes=2"]
    for seconds in (0.0, 0.4, 1.0):
        program = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".nmt-prepare-*/*.english")) and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(seconds)
        os.killpg(program.pid, signal.SIGINT)
        said = program.communicate(timeout=20)[1]
        assert (program.returncode, said) == (130, "interrupted\n"), (seconds, said)
        assert {path.name for path in tmp_path.iterdir()} == {"train.english", "train.german"}, seconds


def test_fewer_joints_than_were_asked_for_are_told(numbers: Path) -> None:
    told = str(prepare(f"{numbers}/in/train", "en", "de", numbers / "out", bpe=1_000_000)).splitlines()[-1]
    assert told.startswith("bpe.codes: ") and "not the 1000000 of --bpe" in told
    assert "of --bpe" not in str(prepare(f"{numbers}/in/train", "en", "de", numbers / "out", bpe=10))


def test_words_that_subword_nmt_ends_the_process_for() -> None:
    with pytest.raises(InputError, match=r"--bpe=3: subword-nmt cannot use this text \(Failed .* line 0: a b 2\)"):
        learn_byte_pairs([("a b", 2)], 3)


def test_several_compressed_files_with_any_number_of_processes(numbers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nmt.prepare, "_ONE_PROCESS_BYTES", 0)
    monkeypatch.setattr(nmt.prepare, "_PIECE_LINES", 7)
    for side in ("en", "de"):
        (numbers / f"in/dev.{side}.gz").write_bytes(gzip.compress((numbers / f"in/dev.{side}").read_bytes()))
        (numbers / f"in/dev.{side}").unlink()
    both = f"{numbers}/in/train,{numbers}/in/dev"
    options: dict[str, Any] = {"apply": [f"{numbers}/in/test"], "bpe": 100, "tokenizer": "moses", "casing": "marked"}
    for processes in (1, 3):
        prepare(both, "en", "de", numbers / f"out{processes}", processes=processes, **options)
    for path in (numbers / "out1").glob("**/*.*"):
        assert path.read_bytes() == (numbers / "out3" / path.relative_to(numbers / "out1")).read_bytes(), path
    lines = len((numbers / "in/train.en").read_text().splitlines())
    assert len((numbers / "out1/train.en").read_text().splitlines()) == lines + 50


def test_each_pair_of_files_is_compared(toy: Path) -> None:
    """The sums of the lines are equal here: a line was lost on either side."""
    write(toy / "in", {"more.en": "a\nb\n", "more.de": "x\n", "third.en": "a\n", "third.de": "x\ny\n"})
    three = ",".join(f"{toy}/in/{name}" for name in ("train", "more", "third"))
    for options in ({}, {"bpe": 1}, {"tokenizer": "moses"}):
        with pytest.raises(InputError, match="more.en has 2 lines and .*more.de has 1. Parallel files need"):
            prepare(three, "en", "de", toy / "out", **options)  # type: ignore[arg-type]
    assert sorted(path.name for path in toy.iterdir()) == ["in"]


def test_texts_of_other_lengths_leave_nothing(toy: Path) -> None:
    write(toy / "in", {"dev.de": "x\n"})
    with pytest.raises(InputError, match="dev.en has 2 lines and .*dev.de has 1"):
        prepare(f"{toy}/in/train", "en", "de", toy / "out", apply=[f"{toy}/in/dev"], bpe=1, tokenizer="moses")
    assert sorted(path.name for path in toy.iterdir()) == ["in"]


def test_raw_text_without_a_tokenizer_is_told(toy: Path) -> None:
    write(toy / "in", {"train.en": "A dog, a cat.\nTwo dogs.\n"})
    told = str(prepare(f"{toy}/in/train", "en", "de", toy / "out")).splitlines()
    assert told[-1].startswith("train.en looks raw: 2 of 2 lines") and "--tokenizer=moses" in told[-1]
    assert "looks raw" not in str(prepare(f"{toy}/in/train", "en", "de", toy / "raw", tokenizer="moses"))


def test_pieces_of_raw_text(numbers: Path) -> None:
    prepare(f"{numbers}/in/train", "en", "de", numbers / "out", spm=150, tokenizer="sentencepiece", casing="lower")
    lines = (numbers / "out/train.en").read_text().splitlines()
    original = (numbers / "in/train.en").read_text().splitlines()
    assert [join(split(line), "spm", "</s>") for line in lines] == [line.lower() for line in original]


def test_other_text_like_that_of_a_directory(numbers: Path) -> None:
    """Vocabulary and subwords are the same, so that a trained model can read the text."""
    prepare(f"{numbers}/in/train", "en", "de", numbers / "out", bpe=80, tokenizer="moses", share_vocab=True)
    summary = prepare(
        f"{numbers}/in/dev", "en", "de", numbers / "new", apply=[f"{numbers}/in/test"], like=f"{numbers}/out"
    )
    first, then = read(numbers / "out"), read(numbers / "new")
    assert set(then) == {"raw", "preparation.json", "bpe.codes", "vocab.en", "vocab.de"} | {
        f"{name}.{language}" for name in ("dev", "test") for language in ("en", "de")
    }
    assert all(then[name] == first[name] for name in ("bpe.codes", "vocab.en", "vocab.de"))
    again = prepare(f"{numbers}/in/train", "en", "de", numbers / "all", like=f"{numbers}/out")
    assert read(numbers / "all")["train.en"] == first["train.en"] and "raw" not in read(numbers / "all")
    assert summary.vocabularies[0].words == again.vocabularies[0].words


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"like": "in"}, "--like=in has no record of a preparation"),
        ({"like": "none"}, "--like=none does not exist: give an out_dir of nmt.prepare, or the directory preparation"),
        ({"src": "de", "tgt": "en"}, "are not the languages of --like=out, which are en and de"),
        ({"bpe": 5}, "takes everything from there: leave --bpe or --spm out"),
        ({"casing": "lower"}, "leave --casing out"),
        ({"min_count": 2}, "leave --min_count out"),
    ],
)
def test_options_that_contradict_a_directory(
    toy: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(toy)
    prepare("in/train", "en", "de", "out")
    arguments: dict[str, Any] = {"src": "en", "tgt": "de", "out_dir": "new", "like": "out", **options}
    with pytest.raises(InputError, match=message):
        prepare("in/dev", **arguments)
    assert not Path("new").exists()
