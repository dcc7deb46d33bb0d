"""HDF5 files in the making: they get their names once, and not after an error."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from typing import Any

import pytest

from tfdist.core.files import whole
from tfdist.hooks.saves import drop
from tfdist.hooks.saving_calls import ending


class Save:
    """What the ranks hear of a save."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def failed(self, error: Any) -> None:
        self.heard.append(f"failed: {error}")

    def done(self) -> None:
        self.heard.append("done")


def making(path: Path) -> tuple[contextlib.ExitStack, Save, Path]:
    with contextlib.ExitStack() as stack:
        save: Any = Save()
        stack.enter_context(ending(save))
        made = Path(stack.enter_context(whole(str(path))))
        made.write_text("new")
        return stack.pop_all(), save, made


@pytest.mark.parametrize("error", [None, OSError("No space left on device")])
def test_a_file_gets_its_name_once_and_not_after_an_error(tmp_path: Path, error: OSError | None) -> None:
    (tmp_path / "a.h5").write_text("old")
    one, save, _ = making(tmp_path / "a.h5")
    with pytest.raises(OSError, match="No space") if error else contextlib.nullcontext(), one.pop_all():
        if error:
            raise error
    with one.pop_all():  # a second close
        pass
    drop(one, None)
    gc.collect()
    assert (tmp_path / "a.h5").read_text() == ("old" if error else "new")
    assert save.heard == (["failed: No space left on device"] if error else ["done"])
    assert len(list(tmp_path.iterdir())) == 1


def test_what_is_dropped_is_closed_before_it_gets_its_name(tmp_path: Path) -> None:
    one, save, made = making(tmp_path / "a.h5")

    class Identifier:
        def close(self) -> None:
            made.write_text("closed")

    drop(one, Identifier())
    assert (tmp_path / "a.h5").read_text() == "closed" and save.heard == ["done"]
