"""``scripts/environment.sh`` empties only what it has made."""

from __future__ import annotations

import subprocess
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
FOREIGN = {
    "an environment": "mkdir .venv && touch .venv/mine",
    "one with a Makefile's stamp": "mkdir .venv && touch .venv/mine .venv/.installed",
    "one with another stamp": "mkdir .venv && echo '2024-05-01 requirements.txt' >.venv/.installed",
    "a link to that of another checkout": "mkdir other && echo 'plot  1 2' >other/.installed && ln -s other .venv",
    "a link to nothing": "ln -s absent .venv",
    "a file": "echo name >.venv",
}


def environment(folder: Path, script: str = "environment .venv tensorflow,plot; echo made") -> tuple[int, str, str]:
    """Make an environment ``.venv`` in a folder, as ``scripts/demo`` does; return the exit code, output and errors."""
    (folder / "setup.cfg").write_text("[metadata]\n")
    (folder / "python").write_text(PYTHON)
    (folder / "python").chmod(0o755)
    command = ["bash", "-c", f"set -e; . {ROOT}/scripts/environment.sh; {script}"]
    path = {"PATH": "/usr/bin:/bin", "PYTHON": str(folder / "python")}
    done = subprocess.run(command, cwd=folder, env=path, capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("what", FOREIGN)
def test_what_it_has_not_made_stays(tmp_path: Path, what: str) -> None:
    subprocess.run(["sh", "-ec", FOREIGN[what]], cwd=tmp_path, check=True)
    before = set(tmp_path.rglob("*"))
    said = ".venv: this script has not made it, and would empty it. Move it away, or remove it\n"
    assert environment(tmp_path) == (1, "", said)
    assert before == set(tmp_path.rglob("*")) - {tmp_path / "setup.cfg", tmp_path / "python"}


def test_the_demo_takes_another_folder(tmp_path: Path) -> None:
    subprocess.run(["sh", "-ec", FOREIGN["an environment"]], cwd=tmp_path, check=True)
    code, _, said = environment(tmp_path, f"mkdir scripts; cp {ROOT}/scripts/{{demo,*.sh}} scripts; bash scripts/demo")
    assert code == 1 and said.endswith("\nor: VENV=.venv-demo scripts/demo\n")
    assert (tmp_path / ".venv" / "mine").exists() and not (tmp_path / "demo_output").exists()


def test_its_own_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    assert environment(tmp_path)[0] == 1, "the installation fails"
    (tmp_path / "broken").unlink()
    (tmp_path / ".venv" / "half").touch()
    assert environment(tmp_path)[1].endswith("made\n") and not (tmp_path / ".venv" / "half").exists()
    (tmp_path / ".venv" / "later").touch()
    assert environment(tmp_path) == (0, "made\n", "") and (tmp_path / ".venv" / "later").exists()
    assert "installing" in environment(tmp_path, "environment .venv plot")[1]
    assert not (tmp_path / ".venv" / "later").exists()
