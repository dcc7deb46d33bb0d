"""Hosts that do not answer, and what the probe finds on this one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tfdist.launch import launchers, probe, reach

SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
echo "welcome to $1"
[ -n "{words}" ] && echo "{words}" >&2
exit {code}
"""


def answer(tmp_path: Path, text: str, seconds: float = 20) -> reach.Answer:
    ssh = tmp_path / "ssh"
    ssh.write_text(text)
    ssh.chmod(0o755)
    return reach.ask(["far"], "true", [str(ssh)], seconds)["far"]


@pytest.mark.parametrize(
    ("words", "passes"),
    [
        ("ssh: Could not resolve hostname far: Name or service not known", True),
        ("ssh: connect to host far port 22: Connection refused", True),
        ("kex_exchange_identification: Connection closed by remote host", True),
        ("root@far: Permission denied (publickey).", False),
        ("Host key verification failed.", False),
    ],
)
def test_what_ssh_says(tmp_path: Path, words: str, passes: bool) -> None:
    found = answer(tmp_path, SSH.format(words=words, code=255))
    assert found.problem.startswith(f"far: cannot be reached ({words}); try '") and found.passes == passes
    assert found.problem.endswith("far true' by hand, or leave far out")


def test_a_host_that_answers(tmp_path: Path) -> None:
    found = answer(tmp_path, SSH.format(words="no such program", code=127))
    assert found == reach.Answer(code=127, output=("welcome to far",), errors=("no such program",))
    (silent,) = reach.silent(["far"], [str(tmp_path / "ssh")], 20).values()
    assert silent.problem.startswith("far: runs no command (exit code 127: no such program); try '") and silent.passes
    assert silent.problem.endswith("far true' by hand, or leave far out")
    answer(tmp_path, SSH.format(words="", code=0))
    assert reach.silent(["far"], [str(tmp_path / "ssh")], 20) == {}


def test_no_answer_in_time(tmp_path: Path) -> None:
    found = answer(tmp_path, "#!/bin/sh\nexec sleep 60\n", 0.2)
    assert found.problem.startswith("far: no answer in 0.2 s; try ") and found.passes
    assert "cannot be started (No such file" in reach.ask(["far"], "true", ["/absent"], 1)["far"].problem


def test_a_machine_without_proc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(probe, "FOLDERS", ("/nowhere", "/"))
    assert launchers.facts_here(sys.executable)["cores"], "another folder takes its place"
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(probe, "_text", lambda file: "")
    probe.main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores"] and facts["all_cores"] and facts["mpi_file"] == ""
