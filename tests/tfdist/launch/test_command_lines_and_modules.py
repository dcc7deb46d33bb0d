"""Safety of the start on shared machines: modules in the current folder, and secrets in command lines."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil  # runpy imports it, which must happen before a test empties the path
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT
from tfdist.launch import host_check, script
from tfdist.launch.host_check import Needs

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
        text = f'__version__ = "7.7"\n{text}'
        (folder / f"{name}.py").write_text(text)
    metadata = folder / "numpy-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
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
    facts = host_check.facts_here(sys.executable, Needs(sys.executable, str(tmp_path), module="theirs.main"))
    assert imported(tmp_path) == imported(tmp_path / "src") == ""
    assert facts["mpi"], facts["error"]
    # The probe still reports about the ranks' folder.
    assert facts["module"] and facts["folder"]
    assert (facts["tfdist"], facts["numpy"]) == ("7.7", "0.1")


def test_entries_of_the_path_are_the_ranks_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path / "src")
    monkeypatch.setenv("PYTHONPATH", "src")
    facts = host_check.facts_here(sys.executable, Needs(sys.executable, str(tmp_path), module="theirs"))
    assert facts["module"] and (facts["tfdist"], facts["numpy"]) == ("7.7", "0.1")
    monkeypatch.delenv("PYTHONPATH")
    facts = host_check.facts_here(sys.executable, Needs(sys.executable, str(tmp_path), module="theirs"))
    assert not facts["module"] and facts["tfdist"] not in ("7.7", "none") and facts["numpy"] != "0.1"
    assert imported(tmp_path / "src") == ""


# Runs the command as sshd does, by a shell in the user's home. While the command runs, it records all command lines.
SSH = r"""#!/bin/bash
printf '%s\n' "$@" >> {folder}/seen
while [ "$1" = -o ]; do shift 2; done
cd {folder}/home
bash -c "$2" <&0 &
while kill -0 $! 2> /dev/null; do cat /proc/[0-9]*/cmdline >> {folder}/seen 2> /dev/null; done
wait $!
"""
# Imitates a Python that only runs if LD_LIBRARY_PATH names its library.
PYTHON = r"""#!/bin/sh
cat /proc/$$/cmdline >> {folder}/seen
cat /proc/$$/environ > {folder}/environment
[ "$LD_LIBRARY_PATH" = {folder}/lib ] || exit 9
unset LD_LIBRARY_PATH
exec {python} "$@"
"""


def program(file: Path, text: str, **words: object) -> str:
    file.write_text(text.format(folder=file.parent, **words))
    file.chmod(0o755)
    return str(file)


def test_another_machine_is_asked_by_standard_input_alone(tmp_path: Path) -> None:
    """The probe imports nothing from the home or the job's folder, and no command line contains a value."""
    plant(tmp_path / "home")
    secret = f"secret-{secrets.token_hex(8)}"
    given = {
        "LD_LIBRARY_PATH": str(tmp_path / "lib"),
        "PYTHONPATH": f":{secret}",
        "TF_QUOTES": f'{secret} it\'s "$HOME" `id` \\ \\n # ; & ',
        "TFDIST_LINES": f"{secret}\nexit 5\n\n  {{}}\n",
        "TF_BYTES": f"{secret} \udcff \N{SNOWMAN}",
        "TF_NOT A-NAME": "a shell can set no such",
    }
    ssh, python = (
        program(tmp_path / "ssh", SSH),
        program(tmp_path / "python", PYTHON, python=sys.executable),
    )
    needs = Needs(python, str(tmp_path / "home"), module="theirs", variables=given)
    here = host_check.facts_here(sys.executable, Needs(sys.executable, str(tmp_path / "home"), module="theirs"))
    known, wrong = host_check.ask(["far"], here, needs, [ssh], 60)
    assert not wrong and known["far"]["folder"] and known["far"]["module"]
    assert known["far"]["tfdist"] == "7.7"
    assert imported(tmp_path / "home") == ""
    environment = dict(entry.partition(b"=")[::2] for entry in (tmp_path / "environment").read_bytes().split(b"\0"))
    for name, value in list(given.items())[:-1]:
        assert environment[os.fsencode(name)] == os.fsencode(value)
    seen = (tmp_path / "seen").read_text(errors="replace")
    assert f"{python}\0-\0" in seen and "\nfar\n" in seen
    for value in (secret, str(tmp_path / "home"), "theirs", str(tmp_path / "lib")):
        assert value not in seen


@pytest.mark.parametrize(
    ("folder", "python", "said"),
    [
        ("missing", sys.executable, "far: .*/missing is not there; start where all machines have the same folder"),
        ("home", "/missing/python", r"far: /missing/python is not there \(.*not found\); install the same environment"),
        ("home", "/bin/false", r"far: /bin/false does not run there \(exit code 1: it said nothing\); try "),
    ],
)
def test_what_is_missing_there_is_told(tmp_path: Path, folder: str, python: str, said: str) -> None:
    (tmp_path / "home").mkdir()
    ssh = program(tmp_path / "ssh", SSH)
    here = host_check.facts_here(sys.executable, Needs(sys.executable, str(tmp_path)))
    _, wrong = host_check.ask(["far"], here, Needs(python, str(tmp_path / folder)), [ssh], 60)
    assert re.match(said, wrong["far"][0].text), wrong


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
