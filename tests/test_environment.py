"""``scripts/environment.sh`` empties only what it has made."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import ROOT

# In place of Python: it makes an environment, whose pip fails in a folder with the file ``broken``.
PYTHON = """#!/bin/sh
case "$2" in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
pip) [ ! -e broken ] ;;
*) echo "$0" ;;
esac
"""


def environment(folder: Path) -> subprocess.CompletedProcess[str]:
    """Make an environment ``.venv`` in a folder, as ``scripts/demo`` does."""
    (folder / "setup.cfg").write_text("[metadata]\n")
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    command = f'set -e; . {ROOT}/scripts/environment.sh; environment .venv "tensorflow,plot"; echo made'
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(folder / "python")},
        capture_output=True,
        text=True,
        timeout=30,
    )


def linked(folder: Path) -> None:
    """Make a link to an environment that this script has made for another checkout."""
    (folder / "other").mkdir()
    (folder / "other" / "mine").touch()
    (folder / "other" / ".installed").write_text("tensorflow,plot  123 456\n")
    (folder / ".venv").symlink_to("other")


def of_user(folder: Path, stamp: str | None = None) -> None:
    (folder / ".venv").mkdir()
    (folder / ".venv" / "mine").touch()
    if stamp is not None:
        (folder / ".venv" / ".installed").write_text(stamp)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "an environment": of_user,
    "one with the stamp of a Makefile": lambda folder: of_user(folder, ""),
    "one with another stamp": lambda folder: of_user(folder, "2024-05-01 requirements.txt\n"),
    "a link": linked,
    "a link to nothing": lambda folder: (folder / ".venv").symlink_to("absent"),
    "a file": lambda folder: (folder / ".venv").write_text("pyenv-name\n"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_it_has_not_made_stays(tmp_path: Path, what: str) -> None:
    FOREIGN[what](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = environment(tmp_path)
    assert done.returncode == 1 and "made" not in done.stdout
    assert done.stderr == ".venv: this script has not made it, and would empty it. Move it away, or remove it\n"
    assert set(before) == set(tmp_path.rglob("*")) - {tmp_path / "setup.cfg", tmp_path / "python"}


def test_the_demo_takes_another_folder(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    for name in ("demo", "environment.sh"):
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    (tmp_path / "setup.cfg").touch()
    of_user(tmp_path)
    done = subprocess.run(["bash", "scripts/demo"], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and done.stderr.endswith("\nor: VENV=.venv-demo scripts/demo\n")
    assert [path.name for path in (tmp_path / ".venv").iterdir()] == ["mine"]
    assert not (tmp_path / "demo_output").exists()


def test_its_own_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / "broken").touch()
    assert environment(tmp_path).returncode == 1, "the installation fails"
    (tmp_path / "broken").unlink()
    (tmp_path / ".venv" / "half").touch()
    assert environment(tmp_path).stdout.endswith("made\n") and not (tmp_path / ".venv" / "half").exists()
    (tmp_path / ".venv" / "later").touch()
    assert environment(tmp_path).stdout == "made\n" and (tmp_path / ".venv" / "later").exists()
    stamp = tmp_path / ".venv" / ".installed"
    stamp.write_text(stamp.read_text().replace("plot", "plot,mpich"))
    assert "installing" in environment(tmp_path).stdout and not (tmp_path / ".venv" / "later").exists()
