"""Safety of the start on shared machines: modules in the current folder."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil  # runpy imports it, which must happen before a test empties the path
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT
from tfdist.launch import launchers, script

# Modules that the probe imports, directly or indirectly, or that Python imports at its start.
PLANTED = (
    *("json", "platform", "socket", "tempfile", "mpi4py", "numpy", "re", "hashlib", "concurrent", "importlib"),
    *("encodings", "sitecustomize", "usercustomize", "random", "zipfile", "email", "csv", "errno", "tfdist", "theirs"),
)
IMPORTED = "imported-by-somebody"


def plant(folder: Path) -> Path:
    """Write modules that record their import and fail; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PLANTED:
        text = f"open({str(folder / IMPORTED)!r}, 'a').write({name!r} + ' ')\nraise ImportError('planted')\n"
        (folder / f"{name}.py").write_text(text)
    return folder


def imported(folder: Path) -> str:
    file = folder / IMPORTED
    return file.read_text() if file.exists() else ""


@pytest.mark.parametrize("path", ["", ":", ".:src", "{ROOT}:"])
def test_the_probe_imports_nothing_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    plant(tmp_path)
    plant(tmp_path / "src")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", path.format(ROOT=ROOT))
    facts = launchers.facts_here(sys.executable)
    assert imported(tmp_path) == imported(tmp_path / "src") == ""
    assert facts["mpi"], facts["error"]


def rank(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in one process what each rank of ``tfdist-run script.py`` or ``-m module`` runs."""
    command = [sys.executable, script.FILE, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=90
    )


TRAIN = """
import os, sys
import numpy, theirs
print(sys.modules["tfdist"].size(), sys.path[0], sys.argv[1:], theirs.__file__)
"""


def test_a_rank_imports_what_python_would(tmp_path: Path) -> None:
    """A script's modules come from the script's folder; only ``-m`` imports from the current folder."""
    plant(tmp_path / "current")
    own = tmp_path / "own"
    own.mkdir()
    (own / "train.py").write_text(TRAIN)
    (own / "theirs.py").write_text("")
    done = rank(tmp_path / "current", str(own / "train.py"), "--flag")
    assert done.returncode == 0 and imported(tmp_path / "current") == "", done.stderr
    assert done.stdout == f"1 {own} ['--flag'] {own / 'theirs.py'}\n"
    done = rank(own, "-m", "train", "--flag")
    assert done.stdout == f"1 {own} ['--flag'] {own / 'theirs.py'}\n", done.stderr


def test_a_checkout_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("import sys\nprint(sys.path[-1])")
    begun: list[str] = []
    assert pkgutil
    monkeypatch.setattr(sys, "path", ["", "/usr/lib"])
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(importlib, "import_module", begun.append)
    script.main([str(tmp_path / "train.py")])
    assert begun == ["tfdist"] and sys.path == [str(tmp_path), "/usr/lib", str(ROOT)]
