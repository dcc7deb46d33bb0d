"""nmt.score: probabilities of pairs by a model, and metrics with intervals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from nmt.nmt import main as nmt
from nmt.score import main
from nmt.scoring.score import figures, sacre_bleu


def scored(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines of standard output, and what was printed to standard error."""
    capsys.readouterr()
    code = main(["score", *flags])
    said = capsys.readouterr()
    return code, said.out.splitlines(), said.err


def pairs(raw_run: Path, *more: str) -> list[str]:
    return [f"--model={raw_run}/run", f"--source={raw_run}/dev.en", f"--target={raw_run}/dev.de", *more]


def test_the_perplexity_is_that_of_training(raw_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Raw text and prepared text have the same probabilities; the sum gives the perplexity in the log."""
    code, lines, told = scored(capsys, *pairs(raw_run))
    log = "".join(path.read_text() for path in (raw_run / "run").glob("log_*"))
    wanted = float(re.findall(r"eval dev: perplexity ([\d.]+)", log)[-1])
    rows = [line.split("\t") for line in lines]
    perplexity = np.exp(-sum(float(row[0]) for row in rows) / sum(int(row[1]) for row in rows))
    assert code == 0 and len(rows) == 40 and perplexity == pytest.approx(wanted, abs=0.006)
    said = next(line for line in told.splitlines() if line.startswith("# 40 pairs, "))
    assert float(said.split()[-1]) == pytest.approx(perplexity, rel=1e-4)
    prepared = [f"--model={raw_run}/run", f"--source={raw_run}/data/dev.en", f"--target={raw_run}/data/dev.de"]
    assert scored(capsys, *prepared, "--format=tokens")[1] == lines


def test_each_token(raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "en").write_text("Ten, TEN.\n\nTen.\n")
    (tmp_path / "de").write_text("Zehn, ZEHN.\nZehn.\n\n")
    files = [f"--model={raw_run}/run", f"--source={tmp_path}/en", f"--target={tmp_path}/de", "--tokens"]
    code, lines, told = scored(capsys, *files)
    total, number, tokens = lines[0].split("\t")
    each = [token.rpartition(":") for token in tokens.split(" ")]
    assert code == 0 and len(each) == int(number) and each[-1][0] == "</s>"
    assert sum(float(value) for _, _, value in each) == pytest.approx(float(total), abs=1e-2)
    assert lines[1].startswith("nan\t") and lines[2].split("\t")[1] == "1", "a blank source; only the end mark"
    objects = [json.loads(line) for line in scored(capsys, *files, "--format=json")[1]]
    assert objects[0]["log_probability"] == pytest.approx(float(total), abs=1e-3)
    assert [token for token, _ in objects[0]["each"]] == [token for token, _, _ in each]
    assert objects[1]["log_probability"] is None


def test_a_source_that_is_cut_is_told(raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(raw_run / "run", tmp_path / "run")
    hparams = json.loads((tmp_path / "run/hparams").read_text())
    (tmp_path / "run/hparams").write_text(json.dumps(hparams | {"src_max_len_infer": 2}))
    (tmp_path / "two").write_text("a\na a a\n")
    files = [f"--source={tmp_path}/two", f"--target={tmp_path}/two", "--format=tokens"]
    code, _, told = scored(capsys, f"--model={tmp_path}/run", *files)
    assert code == 0 and told.startswith(f"score: {tmp_path}/two, line 2 has 3 tokens and is cut to 2 (the run's src_m")


def test_a_run_with_another_search(raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The search of the run's evaluations changes no probability."""
    expected = scored(capsys, *pairs(raw_run))[1]
    shutil.copytree(raw_run / "run", tmp_path / "run")
    hparams = json.loads((tmp_path / "run/hparams").read_text())
    other = {
        "beam_width": 3,
        "num_translations_per_input": 2,
        "infer_mode": "beam_search",
        "length_penalty_weight": 1.0,
    }
    (tmp_path / "run/hparams").write_text(json.dumps(hparams | other))
    files = [f"--source={raw_run}/dev.en", f"--target={raw_run}/dev.de"]
    assert scored(capsys, f"--model={tmp_path}/run", *files)[:2] == (0, expected)


def test_metrics_with_signatures_and_intervals(
    raw_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tmp_path / "found"
    files = [f"--inference_input_file={raw_run}/data/dev.en", f"--inference_output_file={found}"]
    assert nmt([f"--out_dir={raw_run}/run", *files]) == 0
    code, lines, _ = scored(capsys, f"--hypotheses={found}", f"--references={raw_run}/dev.de,{raw_run}/dev.de")
    names = ["BLEU", "chrF2", "chrF2++", "TER", "tokenised bleu", "tokenised rouge", "tokenised accuracy"]
    assert code == 0 and [line[:24].rstrip() for line in lines[:7]] == names
    assert all("nrefs:2" in line and "bs:1000" in line and "[" in line for line in lines[:4])
    code, lines, _ = scored(
        capsys, f"--hypotheses={found}", f"--references={raw_run}/dev.de", "--format=json", "--language=de"
    )
    bleu = json.loads(lines[0])[0]
    mine, wanted = (path.read_text().splitlines() for path in (found, raw_run / "dev.de"))
    assert bleu["score"] == pytest.approx(sacre_bleu(mine, wanted, "de").score)
    assert bleu["interval"][0] < bleu["score"] < bleu["interval"][1]


def test_metrics_of_few_lines() -> None:
    one = figures(["a b c d"], [["a b c d"]])
    assert [figure.score for figure in one[:3]] == pytest.approx([100] * 3) and one[0].interval is None
    assert figures(["我 爱 你", "好"], [["我 爱 你", "好"]], "zh")[0].signature.count("tok:zh") == 1
    with pytest.raises(ValueError, match="1 hypotheses for"):
        figures(["a"], [["a", "b"]])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Missing --model, --source, --target"),
        (["--model=run", "--source=a"], "Missing --target"),
        (["--hypotheses=a"], "Missing --references"),
        (["--hypotheses=a", "--model=run"], "--model and --hypotheses: a model scores"),
        (["--hypotheses=one", "--references=,"], "Missing --references"),
        (["--hypotheses=one", "--references=one", "--tokens"], "--tokens is for a model"),
        (["--hypotheses=one", "--references=one", "--format=tokens"], "--format=tokens is for a model"),
        (["--hypotheses=one", "--references=two"], "one has 1 lines and its reference two has 2"),
        (["--hypotheses=one", "--references=none"], "none: cannot be read"),
        (["--model={run}", "--source=one", "--target=two"], "one has 1 lines and two has 2"),
        (["--model=none", "--source=one", "--target=one"], "--model=none does not exist"),
    ],
)
def test_mistakes_are_told(
    raw_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    code, _, told = scored(capsys, *(flag.format(run=raw_run / "run") for flag in flags))
    assert code == 1 and told.startswith("score: ") and message in told and len(told.splitlines()) == 1, told
