"""Sequence-level distillation: the commands of nmt/docs/training.md, with small models."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from nmt.checkpoints.checkpoint import latest
from nmt.nmt import main
from nmt.prepare import main as prepare
from tests.nmt.runs.test_long_runs import in_subwords

README = Path(__file__).parents[3] / "nmt/docs/training.md"


def commands() -> dict[str, list[list[str]]]:
    """Return the arguments of the commands, by program."""
    section = README.read_text().split("\n### Distillation\n")[1].split("\n## ")[0]
    found: dict[str, list[list[str]]] = {"nmt": [], "prepare": []}
    for program, flags in re.findall(r"python -m nmt\.(nmt|prepare) (--.+?)\n", section.replace("\\\n", " ")):
        found[program].append(shlex.split(flags))
    return found


@pytest.mark.long("ensembles, and training on files, are in other tests")
def test_a_student_learns_from_two_teachers(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    in_subwords(toy.directory)
    monkeypatch.chdir(toy.directory)
    small = ["--num_units=8", "--batch_size=8", "--num_train_steps=3", "--warmup_steps=1"]
    text = ["--src=en", "--tgt=de", "--train_prefix=data/train", "--dev_prefix=data/dev", "--vocab_prefix=data/vocab"]
    teachers = []
    for seed in (1, 2):
        out = f"teacher{seed}"
        assert main(["--preset=small", *text, *small, f"--out_dir={out}", f"--random_seed={seed}"]) == 0
        teachers.append(str(latest(out)))
    shutil.copy("train.en", "distilled.en")
    found = commands()
    (translate, train), (again,) = found["nmt"], found["prepare"]
    shown = next(one for one in translate if one.startswith("--ckpt="))
    assert main([f"--ckpt={','.join(teachers)}" if one == shown else one for one in translate]) == 0
    lines = Path("distilled.de").read_text().splitlines()
    assert len(lines) == len(Path("train.en").read_text().splitlines())
    assert not any("@@" in line for line in lines), "words"
    Path("distilled.de").write_text("".join(f"{line or 'aaaxa'}\n" for line in lines))  # may write empty lines
    assert prepare(["prepare", *again]) == 0
    words = set(Path("data/vocab.de").read_text().splitlines())
    prepared = Path("distilled/distilled.de").read_text().splitlines()
    assert all(token in words for line in prepared for token in line.split()), "in subwords"
    assert Path("distilled/distilled.en").read_bytes() == Path("data/train.en").read_bytes()
    assert main([*train, *small]) == 0
    assert latest("student")
