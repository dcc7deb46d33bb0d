"""Sequence-level distillation: the two commands of nmt/docs/training.md, with small models."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from nmt.checkpoints.checkpoint import latest
from nmt.nmt import main
from tests.nmt.runs.test_long_runs import in_subwords

README = Path(__file__).parents[3] / "nmt/docs/training.md"


def commands() -> list[list[str]]:
    """Return the arguments of both commands."""
    section = README.read_text().split("\n### Distillation\n")[1].split("\n## ")[0]
    found = re.findall(r"nmt\.nmt (.+?)\n(?:\n|```)", section.replace("\\\n", " "))
    assert len(found) == 2, found
    return [shlex.split(one) for one in found]


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
    shutil.copy("data/train.en", "data/distilled.en")
    translate, train = commands()
    shown = next(one for one in translate if one.startswith("--ckpt="))
    assert main([f"--ckpt={','.join(teachers)}" if one == shown else one for one in translate]) == 0
    words = set(Path("data/vocab.de").read_text().splitlines())
    lines = Path("data/distilled.de").read_text().splitlines()
    assert len(lines) == len(Path("data/train.en").read_text().splitlines())
    assert all(token in words for line in lines for token in line.split()), "in subwords"
    Path("data/distilled.de").write_text("".join(f"{line or 'aaa'}\n" for line in lines))  # may write empty lines
    assert main([*train, *small]) == 0
    assert latest("student")
