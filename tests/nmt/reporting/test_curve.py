"""The history, which later runs continue, and its picture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nmt.reporting.curve import History, draw


def test_a_run_that_continues_has_one_curve(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    first = History(path, 0)
    for step in (10, 20, 30):
        first.record(step, {"train_ppl": 100.0 / step})
    first.record(20, {"dev_bleu": 5.0})
    with open(path, "a") as file:
        file.write('{"step": 30, "dev_')  # as if the process was killed while writing
    second = History(path, 20)
    second.record(30, {"train_ppl": 1.0})
    assert second.points("train_ppl") == [(10, 10.0), (20, 5.0), (30, 1.0)]
    assert History(path, 99).points("train_ppl") == second.points("train_ppl")
    assert second.points("dev_bleu") == [(20, 5.0)]
    assert second.points("nothing") == []


def test_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    history = History(tmp_path / "history.jsonl", 0)
    assert draw(history)
    for step in (1, 2):
        history.record(step, {"train_ppl": 9.0 / step, "dev_ppl": 10.0 / step, "dev_bleu": 3.0 * step})
    picture = draw(history, ["bleu", "rouge"])
    assert picture is not None and picture.startswith(b"\x89PNG")


def test_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw(History(tmp_path / "history.jsonl", 0)) is None
