"""nmt.translate: from standard input to standard output; and training with a record of raw text."""

from __future__ import annotations

import bz2
import contextlib
import fcntl
import gzip
import io
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from nmt.core.errors import InputError
from nmt.core.standard_output import as_json
from nmt.nmt import main as nmt
from nmt.runs.configure import recorded_directory
from nmt.text.lines import MARK, TextFile
from nmt.text.raw_lines import read_lines
from nmt.translate import Lines, main
from tests.launch import ROOT, mpirun


def translated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: bytes | str, *flags: str
) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of standard output, and what was printed to standard error."""
    raw = data.encode() if isinstance(data, str) else data
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
    capsys.readouterr()
    code = main(["translate", *flags])
    said = capsys.readouterr()
    return code, said.out.split("\n")[:-1], said.err


@pytest.fixture(scope="module")
def expected(raw_run: Path) -> list[str]:
    """Return the translations of the development text that nmt.nmt writes."""
    out = raw_run / "expected"
    texts = raw_run / "data/dev"
    files = [f"--inference_input_file={texts}.en", f"--inference_output_file={out}"]
    assert nmt([f"--out_dir={raw_run}/run", *files]) == 0
    return out.read_text().splitlines()


def test_raw_text_in_and_out(
    raw_run: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As nmt.nmt translates the prepared text; a blank line stays, and an unusual one has some translation."""
    text = (raw_run / "dev.en").read_text()
    code, lines, _ = translated(monkeypatch, capsys, f"\n{text} \n👩\u200d🔬 \0 שלום\n", f"--model={raw_run}/run")
    assert code == 0 and len(lines) == len(expected) + 3
    assert lines[1:-2] == expected and (lines[0], lines[-2]) == ("", "")
    assert any(line.endswith(".") and line[0].isupper() for line in expected) and not any("@@" in x for x in expected)
    assert (raw_run / "run/output_dev").read_text().splitlines() == expected


def test_scores_of_raw_text(raw_run: Path) -> None:
    """Training compares text with the raw references, and names the figures of words tokenised."""
    log = "".join(path.read_text() for path in (raw_run / "run").glob("log_*"))
    assert "tokenised bleu dev: " in log and "tok:13a" in log and "dev sacrebleu " in log and "tok:none" not in log
    history = [json.loads(line) for line in (raw_run / "run/history.jsonl").read_text().splitlines()]
    assert any("dev_sacrebleu" in str(one) for one in history)


def test_a_reference_for_a_translation(raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The raw text of a prepared reference is found, or its preparation undone; another reference is text itself."""
    said = []
    shutil.copytree(raw_run / "data", tmp_path / "data")
    shutil.rmtree(tmp_path / "data/raw")
    for reference in (f"{raw_run}/data/dev.de", f"{raw_run}/dev.de", f"{tmp_path}/data/dev.de"):
        files = [f"--inference_input_file={raw_run}/data/dev.en", f"--inference_output_file={tmp_path}/out"]
        assert nmt([f"--out_dir={raw_run}/run", *files, f"--inference_ref_file={reference}"]) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if "bleu" in line])
    assert said[0] == said[1] == said[2] and "tok:13a" in said[0][1]
    log = "".join(path.read_text() for path in (raw_run / "run").glob("log_*"))
    figure = said[0][1].split()[1]
    assert f"  sacrebleu dev: {figure} " in log


@pytest.mark.parametrize(
    ("output", "reference"),
    [("dev.en", ""), ("dev.de", "dev.de"), ("raw/dev.de", "dev.de"), ("vocab.de", ""), ("link.de", "dev.de")],
)
def test_no_output_is_an_input(
    raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str, reference: str
) -> None:
    data = shutil.copytree(raw_run / "data", tmp_path / "data")
    (data / "link.de").symlink_to("dev.de")
    before = (data / output).read_bytes()
    files = [f"--inference_input_file={data}/dev.en", f"--inference_output_file={data / output}"]
    files += [f"--inference_ref_file={data / reference}"] if reference else []
    assert nmt([f"--out_dir={raw_run}/run", f"--vocab_prefix={data}/vocab", *files]) == 1
    assert f"--inference_output_file={data / output} is also an input and would be lost" in capsys.readouterr().err
    assert (data / output).read_bytes() == before


def test_a_moved_directory_is_enough(
    raw_run: Path,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(raw_run / "run", tmp_path / "copy")
    monkeypatch.setattr(
        os.path, "exists", lambda path, known=os.path.exists: f"{raw_run}" not in str(path) and known(path)
    )
    line = (raw_run / "dev.en").read_text().splitlines()[0]
    for model in ("copy", "copy/translate.ckpt-80"):
        code, lines, _ = translated(monkeypatch, capsys, line, f"--model={tmp_path}/{model}")
        assert (code, lines) == (0, expected[:1])
    best = tmp_path / "copy/best_bleu"
    shutil.rmtree(best, ignore_errors=True)
    best.mkdir()
    for path in (path for path in (tmp_path / "copy").iterdir() if path.is_file()):
        shutil.copy(path, best)
    (best / "preparation").mkdir()  # without a record it does not count
    assert translated(monkeypatch, capsys, line, f"--model={best}")[:2] == (0, expected[:1])
    other = shutil.copytree(best, tmp_path / "copy/other")  # only a best model has the record of the directory above
    assert recorded_directory(str(best)) == tmp_path / "copy/preparation" and recorded_directory(str(other)) is None
    alone = shutil.copytree(best, tmp_path / "best_bleu")
    hparams = json.loads((alone / "hparams").read_text())
    (alone / "hparams").write_text(json.dumps(hparams | {"vocab_prefix": "gone/vocab"}))
    code, _, told = translated(monkeypatch, capsys, line, f"--model={alone}")
    assert code == 1 and "best_bleu has no record" in told and "Copy the directory preparation of its run" in told
    (best / "hparams").write_text(json.dumps(hparams | {"vocab_prefix": "gone/vocab"}))  # as seen from elsewhere
    shutil.rmtree(best / "preparation")
    (tmp_path / "in").write_text(TextFile(str(raw_run / "data/dev.en")).line(0) + "\n")
    files = [f"--inference_input_file={tmp_path}/in", f"--inference_output_file={tmp_path}/out"]
    assert nmt([f"--out_dir={best}", *files]) == 0 and (tmp_path / "out").read_text() == f"{expected[0]}\n"


def test_several_translations_with_scores_and_alignments(
    raw_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "\n".join((raw_run / "dev.en").read_text().splitlines()[:3]) + "\n\n"
    flags = [f"--model={raw_run}/run", "--n_best=2", "--scores", "--alignment"]
    code, lines, _ = translated(monkeypatch, capsys, text, *flags)
    rows = [line.split("\t") for line in lines]
    assert code == 0 and [len(row) for row in rows] == [3] * 8 and rows[6:] == [["", "", ""]] * 2
    assert all(float(first[1]) >= float(second[1]) for first, second in zip(rows[0:6:2], rows[1:6:2], strict=True))
    code, lines, _ = translated(monkeypatch, capsys, text, *flags, "--format=json")
    for number, one in enumerate(map(json.loads, lines)):
        assert one["source"] == text.split("\n")[number] and len(one["translations"]) == 2
        for row, found in zip(rows[2 * number :], one["translations"], strict=False):
            assert found["text"] == row[0] and (row[1] == "" or f"{found['score']:.4f}" == row[1])
            assert " ".join(f"{source}-{target}" for source, target in found["alignment"]) == row[2]
            assert len(found["alignment"]) == len(found["words"])
            assert all(source < len(one["words"]) for source, _ in found["alignment"])
    assert not any("⇧" in line or "@@" in line for line in lines)


def test_scores_of_a_run_with_greedy_search(
    raw_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A beam of one is the greedy search, and has scores."""
    shutil.copytree(raw_run / "run", tmp_path / "run")
    hparams = json.loads((tmp_path / "run/hparams").read_text())
    (tmp_path / "run/hparams").write_text(json.dumps(hparams | {"infer_mode": "greedy"}))
    line = (raw_run / "dev.en").read_text().splitlines()[0]
    plain = translated(monkeypatch, capsys, line, f"--model={tmp_path}/run")[1]
    code, lines, _ = translated(monkeypatch, capsys, line, f"--model={tmp_path}/run", "--scores")
    assert code == 0 and lines[0].split("\t")[0] == plain[0] and float(lines[0].split("\t")[1]) < 0


def changed(raw_run: Path, tmp_path: Path, **options: object) -> Path:
    """Return a copy of the run with other options in its `hparams`."""
    run = shutil.copytree(raw_run / "run", tmp_path / "run")
    hparams = json.loads((run / "hparams").read_text())
    (run / "hparams").write_text(json.dumps(hparams | options))
    return run


def test_a_beam_that_is_asked_for_is_searched_with(
    raw_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the run's evaluations search with; nmt.nmt, which has a flag for the kind of search, refuses it."""
    text = (raw_run / "dev.en").read_text()
    wanted = translated(monkeypatch, capsys, text, f"--model={raw_run}/run", "--beam_width=4", "--n_best=4")[1]
    greedy = translated(monkeypatch, capsys, text, f"--model={raw_run}/run")[1]
    run = changed(raw_run, tmp_path, infer_mode="greedy", beam_width=9)
    for flags in (["--beam_width=4", "--n_best=4"], ["--n_best=4"], ["--n_best=4", "--scores"]):
        found = translated(monkeypatch, capsys, text, f"--model={run}", *flags)[1]
        assert [line.split("\t")[0] for line in found] == wanted, flags
    for flags in ([], ["--beam_width=0"]):
        assert translated(monkeypatch, capsys, text, f"--model={run}", *flags)[1] == greedy != wanted[::4]
    _, _, told = translated(monkeypatch, capsys, text, f"--model={run}", "--beam_width=2", "--n_best=3")
    assert "--n_best=3 is more than --beam_width=2 finds: give a wider beam" in told
    files = [f"--inference_input_file={raw_run}/data/dev.en", f"--inference_output_file={tmp_path}/out"]
    assert nmt([f"--out_dir={run}", *files, "--beam_width=4"]) == 1
    assert "--beam_width=4 would have no effect: it needs --infer_mode=beam_search" in capsys.readouterr().err


def test_samples_of_a_line_do_not_depend_on_others(
    raw_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor on the program. A line that comes again has the same samples; --n_best=K draws K."""
    run = changed(raw_run, tmp_path, infer_mode="sample", sampling_temperature=0.9)
    lines = (raw_run / "dev.en").read_text().splitlines()
    found = translated(monkeypatch, capsys, "\n".join(lines), f"--model={run}")[1]
    files = [f"--inference_input_file={raw_run}/data/dev.en", f"--inference_output_file={tmp_path}/out"]
    assert nmt([f"--out_dir={run}", *files]) == 0
    assert (tmp_path / "out").read_text().splitlines() == found and len(set(found)) > 30
    again = translated(monkeypatch, capsys, f"{lines[7]}\nTen.\n{lines[7]}\n{lines[3]}\n", f"--model={run}")[1]
    assert again[0] == again[2] == found[7] and again[3] == found[3]
    two = translated(monkeypatch, capsys, lines[7], f"--model={run}", "--n_best=2")[1]
    assert two[0] == found[7] != two[1]


def test_prepared_text_in_and_tokens_out(
    raw_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = (raw_run / "data/dev.en").read_text().splitlines()[0]
    code, lines, _ = translated(monkeypatch, capsys, line, f"--model={raw_run}/run", "--format=tokens")
    words = (raw_run / "data/vocab.de").read_text().splitlines()
    assert code == 0 and lines[0] and set(lines[0].split(" ")) <= set(words)


def test_a_line_without_an_end_is_cut(
    raw_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its number and length are told, and the other lines are translated as usual."""
    short = (raw_run / "dev.en").read_text().splitlines()[0]
    flags = [f"--model={raw_run}/run", "--src_max_len_infer=40", "--tgt_max_len_infer=5"]
    alone = translated(monkeypatch, capsys, f"{short}\n", *flags)[1]
    code, lines, told = translated(monkeypatch, capsys, f"{short}\n{'a' * 100_000}\n{short}", *flags)
    assert code == 0 and len(lines) == 3 and [lines[0], lines[2]] == alone * 2
    assert "translate: standard input, line 2 has " in told and "tokens and is cut to 40 (--src_max_len_infer)" in told
    code, _, told = translated(
        monkeypatch, capsys, "a " * 1001 + "\n", f"--model={raw_run}/run", "--tgt_max_len_infer=5"
    )
    assert code == 0 and "line 1 has 1001 tokens and is cut to 1000" in told


@pytest.mark.parametrize(
    ("flags", "data", "message"),
    [
        (["--model=none"], b"", "--model=none does not exist"),
        (["--model={run}/none/ckpt"], b"", "none/ckpt"),
        (["--model={run}/.."], b"", "has no checkpoint: give the out_dir of a training"),
        (["--model={run}", "--n_best=0"], b"", "--n_best=0 is not allowed"),
        (["--model={run}", "--format=xml"], b"", "--format=xml is not allowed"),
        (["--model={run}"], b"ten\n\xe4\n", "standard input, line 2: not UTF-8 text"),
        (
            ["--model={run}"],
            "ten".encode("utf-16"),
            "standard input: is no UTF-8 text, it is UTF-16; convert it: iconv",
        ),
        (["--model={run}", "--input={run}/none"], b"", "/none: cannot be read (No such file or directory)"),
        (["--model={run}", "--input={run}"], b"", "/run: cannot be read (Is a directory)"),
        ([], b"", "Missing --model"),
    ],
)
def test_mistakes_are_told(
    raw_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    data: bytes,
    message: str,
) -> None:
    code, _, told = translated(monkeypatch, capsys, data, *(flag.format(run=raw_run / "run") for flag in flags))
    assert code == 1 and told.startswith("translate: ") and message in told and len(told.splitlines()) == 1, told


def test_runs_without_a_usable_record(
    raw_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(raw_run / "run", run)
    (run / "preparation/bpe.codes").unlink()
    code, _, told = translated(monkeypatch, capsys, "a\n", f"--model={run}")
    assert code == 1 and "bpe.codes cannot be read" in told and "copy the whole directory" in told
    shutil.rmtree(run / "preparation")
    vocab = tmp_path / "words"
    for language in ("en", "de"):
        shutil.copy(raw_run / f"data/vocab.{language}", f"{vocab}.{language}")
    hparams = json.loads((run / "hparams").read_text())
    (run / "hparams").write_text(json.dumps(hparams | {"vocab_prefix": f"{vocab}"}))
    code, _, told = translated(monkeypatch, capsys, "a\n", f"--model={run}")
    assert code == 1 and "has no record of how its text was prepared" in told and "--format=tokens" in told
    code, lines, _ = translated(monkeypatch, capsys, "a\n", f"--model={run}", "--format=tokens")
    assert code == 0 and len(lines) == 1


def test_lines_of_a_pipe_are_translated_when_they_arrive(raw_run: Path, expected: list[str]) -> None:
    """The first answer comes before the input ends. A reader that goes away ends the program without a message."""
    first, *rest = (raw_run / "dev.en").read_text().splitlines()
    process = subprocess.Popen(
        [sys.executable, "-m", "nmt.translate", f"--model={raw_run}/run"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    try:
        streams: Any = process
        for line, wanted in ((first, expected[0]), (rest[0], expected[1])):
            streams.stdin.write(line + "\n")
            streams.stdin.flush()
            assert streams.stdout.readline() == wanted + "\n"
        streams.stdout.close()
        streams.stdin.write("".join(f"{line}\n" for line in rest))
        streams.stdin.close()
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert process.poll() == 0
        told = [line for line in streams.stderr.read().splitlines() if "Error" in line or "translate" in line]
        assert told == []
    finally:
        process.kill()


def test_ranks_share_the_lines(raw_run: Path, expected: list[str]) -> None:
    """mpirun gives standard input to rank 0."""
    script = (
        f"import sys; sys.stdin = open({str(raw_run / 'dev.en')!r}); from nmt.translate import main; "
        "sys.exit(main(sys.argv))"
    )
    done = mpirun(2, ["-c", script, f"--model={raw_run}/run"], timeout_seconds=120)
    assert done.code == 0, done.errors
    assert done.output.splitlines() == expected


@pytest.mark.long("test_ranks_share_the_lines")
def test_a_file_with_fewer_lines_than_ranks(raw_run: Path, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "line").write_text((raw_run / "dev.en").read_text().split("\n")[0] + "\n")
    flags = [f"--model={raw_run}/run", f"--input={tmp_path}/line"]
    done = mpirun(2, ["-m", "nmt.translate", *flags], timeout_seconds=120)
    assert (done.code, done.output.splitlines()) == (0, expected[:1]), done.errors


def test_an_input_that_fails_ends_the_program() -> None:
    """What was read before is returned first; a closed input is told at once."""
    lines = Lines(3)
    lines._file = io.BytesIO(b"a")
    lines._file.close()
    with pytest.raises(InputError, match="standard input cannot be read"):
        lines.read()
    lines = Lines(3)
    lines._file = io.BytesIO(MARK + b"a\r\nb\n\xff\nc\nlast")
    assert lines.read() == [(1, "a"), (2, "b")]
    with pytest.raises(InputError, match="standard input, line 3: not UTF-8 text"):
        lines.read()
    lines = Lines(2)
    lines._file = io.BytesIO(b"a\n\nlast")
    assert [lines.read() for _ in range(3)] == [[(1, "a"), (2, "")], [(3, "last")], []]
    command = ["bash", "-c", '"$0" -m nmt.translate --model=none <&-', sys.executable]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    told = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and told.startswith("translate: standard input is closed: redirect a file"), done.stderr


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("Two dogs run.\nTen.\n".encode("utf-16"), "it is UTF-16; convert it: iconv -f utf-16 -t"),
        (
            "Two dogs run.\nTen.\n".encode("utf-16-le"),
            "if it is utf-16le (or utf-16be, utf-32le): iconv -f utf-16le -t",
        ),
        (
            "Two dogs run.\nTen.\n".encode("utf-16-be"),
            "if it is utf-16le (or utf-16be, utf-32le): iconv -f utf-16le -t",
        ),
        ("Две собаки бегут.\n".encode("utf-16-le"), "if it is utf-16le (or utf-16be, utf-32le): iconv -f utf-16le -t"),
        ("Two dogs run.\nTen.\n".encode("utf-32"), "it is UTF-32; convert it: iconv -f utf-32 -t"),
        ("十\nTwo dogs run.\n".encode("utf-32-le"), "if it is utf-16le (or utf-16be, utf-32le): iconv -f utf-16le -t"),
        ("Two dogs run.\n".encode("utf-32-be"), "if it is utf-16le (or utf-16be, utf-32le): iconv -f utf-16le -t"),
        ("Two d\0gs run. – 十\n".encode(), "has bytes of zero, which text in UTF-8 does not have; if it is"),
        (gzip.compress(b"Ten.\n", mtime=0), "it is compressed by gzip; uncompress it: gunzip"),
        (bz2.compress(b"Ten.\n"), "it is compressed by bzip2"),
        (lzma.compress(b"Ten.\n"), "it is compressed by xz"),
        (b"PK\x03\x04ten", "a zip archive"),
        (
            "Zwei Männer.\n".encode("latin1"),
            "line 1: not UTF-8 text (invalid continuation byte); convert it from its encoding, such as latin1",
        ),
        ("两只狗\n".encode("gb18030"), "Europe), gb18030, shift_jis"),
    ],
)
def test_other_kinds_of_text_have_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
) -> None:
    """Each reader has the same, but nmt.prepare reads gzip, and training reads gzip in blocks."""
    (tmp_path / "text").write_bytes(data)
    source = Lines(9, f"{tmp_path}/text")
    source.open()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    standard = Lines(9)
    standard.open()
    packed = data.startswith(b"\x1f")
    told: list[str] = []
    for read in (
        source.read,
        standard.read,
        lambda: TextFile(tmp_path / "text"),
        lambda: [*read_lines(f"{source._path}")],
    ):
        with pytest.raises(InputError) if not (packed and len(told) == 3) else contextlib.nullcontext() as error:
            read()
        told.append(str(error.value) if error else "")
    assert message in told[0] and told[1] == told[0].replace(f"{tmp_path}/text", "standard input")
    assert packed or told[2] == told[3] == told[0]


@pytest.mark.parametrize("terminal", [False, True])
def test_ctrl_c_while_it_waits_for_a_line(raw_run: Path, expected: list[str], terminal: bool) -> None:
    """It ends with 130 and one message. What it writes is UTF-8, whatever the environment says."""
    master, slave = os.openpty() if terminal else os.pipe()[::-1]

    def has_terminal() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-m", "nmt.translate", f"--model={raw_run}/run", "--format=json"],
        stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, preexec_fn=has_terminal,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    streams: Any = process
    try:
        line = f"{(raw_run / 'dev.en').read_text().splitlines()[0]} – “ü”"
        os.write(master, f"{line}\n".encode())
        answer = json.loads(streams.stdout.readline())
        assert answer["source"] == line and answer["translations"][0]["text"]
        if terminal:
            os.write(master, b"\x03")
        else:
            os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=20)[1].decode().splitlines()
        assert process.returncode == 130 and said[-1] == "translate: interrupted", said
        assert ("translate: ready: type a line and Enter; Ctrl-D ends" in said) == terminal
        assert not any("Traceback" in one or "Fatal" in one for one in said)
    finally:
        process.kill()
        os.close(master)
        os.close(slave)


def test_json_of_numbers_that_it_does_not_have() -> None:
    assert as_json({"score": -float("inf"), "each": [float("nan"), 0.1]}) == '{"score": null, "each": [null, 0.1]}'
