"""Progress on a terminal and in a file."""

from __future__ import annotations

import io

import pytest

from nmt.reporting.progress import Bar, Lines, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_lines_are_few_and_tell_the_time_left() -> None:
    stream = io.StringIO()
    shown = progress(100, 300, stream)
    assert isinstance(shown, Lines)
    for step in range(101, 301):
        shown.advance(step, {"ppl": f"{step / 100:.2f}"} if step % 2 == 0 else {})
    shown.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "110/300 steps, ppl 1.10, ETA 00:00"
    assert lines[-1].startswith("300/300 steps, ppl 3.00")


def test_bar(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    shown = progress(5, 10, stream)
    assert isinstance(shown, Bar)
    shown.advance(9, {"wps": "1.50K"})
    shown.say("a line")
    shown.advance(10, {})
    shown.close()
    assert "10/10" in stream.getvalue()
    assert "wps=1.50K" in stream.getvalue()
    assert capsys.readouterr().out == "a line\n"
