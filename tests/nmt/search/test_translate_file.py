"""Translation of files and of listed lines, and pictures of attention."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nmt.core.errors import InputError
from nmt.core.lock import hold
from nmt.core.ranks import CollectiveError, Ranks
from nmt.search.translate_file import draw_attention, parse_list, picked_lines, translate_file
from tests.nmt.core.thread_ranks import outcomes
from tests.nmt.search.test_translation_model import LINES, model_of


@pytest.fixture
def paths(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of an input of five lines and of an output that does not exist yet."""
    (tmp_path / "in").write_text("\n".join(LINES[:5]))
    return str(tmp_path / "in"), str(tmp_path / "out")


def test_file(toy: Any, paths: tuple[str, str]) -> None:
    model = model_of(toy)
    assert translate_file(model, *paths) == 5
    assert Path(paths[1]).read_text() == "".join(best + "\n" for (best,) in model.translate(LINES[:5]))
    assert {path.name for path in Path(paths[1]).parent.iterdir() if path.name.startswith(".")} == set()


@pytest.mark.parametrize("size", [1, 3, 7])
def test_several_translations_are_consecutive_lines(toy: Any, paths: tuple[str, str], size: int) -> None:
    model = model_of(toy, beam_width=2, num_translations_per_input=2)
    assert outcomes(size, lambda ranks: translate_file(model, *paths, ranks)) == [5] * size
    assert Path(paths[1]).read_text().split("\n") == [*sum(model.translate(LINES[:5]), []), ""]
    assert len(Path(paths[1]).read_text().splitlines()) == 10


def test_lines_end_at_newlines_only(toy: Any, tmp_path: Path) -> None:
    content = "a b\r\n\r\n \na \u2028 b\nunknown \U0001f600 a \x0b\nd"
    (tmp_path / "in").write_bytes(content.encode())
    model = model_of(toy)
    assert translate_file(model, str(tmp_path / "in"), str(tmp_path / "out")) == 6
    plain = model.translate(["a b", "", "", "a x b", "x x a x", "d"])
    assert (tmp_path / "out").read_bytes().decode() == "".join(best + "\n" for (best,) in plain)


@pytest.mark.parametrize("mode", [{}, {"sampling_temperature": 1.0}])
def test_lines_on_a_list(toy: Any, paths: tuple[str, str], mode: dict[str, float]) -> None:
    """Lines are in the order of the list and equal those of the whole file, also with random draws."""
    model = model_of(toy, **mode)
    translate_file(model, *paths)
    everything = Path(paths[1]).read_text().split("\n")
    assert translate_file(model, *paths, inference_list="4, 0,4,2") == 4
    assert Path(paths[1]).read_text().split("\n") == [everything[i] for i in (4, 0, 4, 2)] + [""]


def test_a_missing_directory_is_made(toy: Any, paths: tuple[str, str], tmp_path: Path) -> None:
    assert translate_file(model_of(toy), paths[0], str(tmp_path / "new" / "deep" / "out")) == 5
    assert len((tmp_path / "new" / "deep" / "out").read_text().splitlines()) == 5


def test_a_translation_that_was_interrupted_leaves_nothing(
    toy: Any, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only one piece at a time is in memory; an output that was there before stays as it was."""
    model, calls = model_of(toy), []
    monkeypatch.setattr("nmt.search.translate_file.LINES_PER_RANK", 1)

    def translate(lines: Sequence[str]) -> list[list[str]]:
        calls.append(len(lines))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return model.translate(lines)

    before = sorted(Path(paths[0]).parent.iterdir())
    with pytest.raises(KeyboardInterrupt):
        translate_file(types.SimpleNamespace(translate=translate), *paths)  # type: ignore[arg-type]
    assert calls == [1, 1, 1] and sorted(Path(paths[0]).parent.iterdir()) == before
    for name in ("out", "other"):  # what processes that were killed have left
        Path(paths[1]).with_name(f".{name}.{'0' * 32}.tmp").write_text("a")
    with hold(f"{paths[1]}.lock", "a", "b"), pytest.raises(CollectiveError, match="out is in use by process"):
        translate_file(model, *paths)
    assert translate_file(model, *paths) == 5 and len(list(Path(paths[0]).parent.iterdir())) == len(before) + 2
    assert "5/5 lines, lines/s" in capsys.readouterr().err


def test_a_pipe_gets_each_piece(toy: Any, paths: tuple[str, str]) -> None:
    reader, writer = os.pipe()
    model = model_of(toy)
    translate_file(model, paths[0], f"/dev/fd/{writer}")
    assert os.read(reader, 9999).decode() == "".join(best + "\n" for (best,) in model.translate(LINES[:5]))
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_each_piece(toy: Any, paths: tuple[str, str], size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(toy)
    monkeypatch.setattr("nmt.search.translate_file.LINES_PER_RANK", 1)
    assert outcomes(size, lambda ranks: translate_file(model, *paths, ranks)) == [5] * size
    assert Path(paths[1]).read_text() == "".join(best + "\n" for (best,) in model.translate(LINES[:5]))


@pytest.mark.parametrize("wrong", ["", "1,", "1,x", "-1", "1.0", "٣", "1_0", "0x1"])
def test_what_is_no_list(wrong: str) -> None:
    with pytest.raises(InputError, match="is no line number"):
        parse_list(wrong)


def test_a_number_that_is_no_line(paths: tuple[str, str]) -> None:
    assert picked_lines(paths[0], "4,0") == ([4, 0], [LINES[4], LINES[0]])
    assert picked_lines(paths[0], None) == ([0, 1, 2, 3, 4], LINES[:5])
    with pytest.raises(InputError, match="has no line 5; it has 5, numbered 0 to 4"):
        picked_lines(paths[0], "0,5,6")


def test_pictures(toy: Any, paths: tuple[str, str]) -> None:
    pytest.importorskip("matplotlib")
    model = model_of(toy)
    assert draw_attention(model, *paths, "2,1,4") == [f"{paths[1]}2.png", f"{paths[1]}4.png"]  # line 1 is blank
    assert Path(f"{paths[1]}4.png").read_bytes().startswith(b"\x89PNG")


def test_no_pictures_without_matplotlib(toy: Any, paths: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert draw_attention(model_of(toy), *paths, "2") == []
    assert not Path(f"{paths[1]}2.png").exists()


def test_a_mistake_is_told_once_and_leaves_the_output(toy: Any, paths: tuple[str, str], tmp_path: Path) -> None:
    model = model_of(toy)
    (tmp_path / "out").write_text("before")
    (tmp_path / "bad").write_bytes(b"a b\n\xff\n")
    cases: list[tuple[tuple[str, str], str]] = [
        ((str(tmp_path / "bad"), paths[1]), "line 2: not UTF-8"),
        ((str(tmp_path / "missing"), paths[1]), "missing: cannot be read"),
        ((paths[0], str(tmp_path / "bad" / "out")), "bad: the directory cannot be made"),
        ((paths[0], str(tmp_path)), "Is a directory"),
    ]
    for arguments, message in cases:

        def body(ranks: Ranks, paths: tuple[str, str] = arguments) -> int:
            return translate_file(model, *paths, ranks)

        errors = outcomes(2, body)
        assert all(isinstance(error, CollectiveError) for error in errors), arguments
        assert message in str(errors[0]), arguments
        assert [error.is_mine for error in errors] == [True, False], arguments
    assert (tmp_path / "out").read_text() == "before"
