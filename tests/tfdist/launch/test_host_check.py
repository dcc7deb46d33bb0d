"""Questions to hosts, and messages about their answers. On hosts: ``tests/cluster/test_hosts_differ.py``."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tfdist.launch import host_check, probe, script
from tfdist.launch.host_check import Needs, needs_of, problems

PYTHON = "/env/bin/python"
NEEDS = Needs(PYTHON, "/work", "/work/x.py", interfaces={"ib0": "UCX_NET_DEVICES"})
HERE = {
    "python": "3.12", "tfdist": "1", "tensorflow": "2", "numpy": "2", "mpi4py": "4", "mpi": "MPICH 5", "error": "",
    "folder": True, "program": "abc", "module": False, "full": {}, "network": "here", "names": {"me": ["10.0.0.1"]},
    "interfaces": ["lo", "ib0"], "unreachable": {},
}  # fmt: skip


def said(needs: Needs = NEEDS, silent: tuple[str, ...] = (), **facts: Any) -> list[str]:
    return [p.text for p in problems("far", {**HERE, "network": "there", **facts}, HERE, needs, silent)]


def test_a_host_that_is_like_this_one_has_no_problems() -> None:
    assert said() == []
    assert said(program="") == ["far: /work/x.py is not there; copy it, or put it into a folder that all share"]


def test_several_problems_are_a_line_each() -> None:
    lines = said(folder=False, program="d", numpy="1", mpi="", error="no libmpi", full={"/tmp": "No space left"})
    assert [line.partition(";")[0] for line in lines] == [
        "far: /work is not there",
        "far: /work/x.py is not the same there as here",
        "far: /env/bin/python has NumPy 1 (here: 2), MPI library none: no libmpi (here: MPICH 5) there",
        "far: nothing can be written to /tmp (No space left)",
    ]


def test_names_and_ways() -> None:
    assert "does not know the name me" in said(names={"me": []})[0]
    assert "takes me for itself (127.0.1.1)" in said(names={"me": ["127.0.1.1"]})[0]
    assert said(names={"me": ["127.0.1.1"]}, network="here") == [], "another name of this machine"
    assert "has no network interface ib0 (UCX_NET_DEVICES), but lo, eth0" in said(interfaces=["lo", "eth0"])[0]
    lost = {"b": "10.0.0.2: No route to host", "c": "10.0.0.3: timed out"}
    assert "no way to c" in said(silent=("b",), unreachable=lost)[0] and len(said(silent=("b",), unreachable=lost)) == 1


@pytest.mark.parametrize(
    ("command", "program", "module"),
    [
        ([PYTHON, "-u", "train.py", "other.py"], "train.py", ""),
        ([PYTHON, "-m", "nmt.nmt", "x.py"], "", "nmt.nmt"),
        ([PYTHON, script.FILE, "train.py", "-m", "x"], "train.py", ""),
        ([PYTHON, script.FILE, "-m", "package.module"], "", "package.module"),
        ([PYTHON, "-c", "x.py"], "", ""),
        (["/bin/program", "x.py"], "/bin/program", ""),
    ],
)
def test_what_is_to_be_there(command: list[str], program: str, module: str) -> None:
    needs = needs_of(command, PYTHON, {}, {})
    assert needs.program == (str(Path(program).absolute()) if program else "") and needs.module == module


def test_interfaces_of_the_environment() -> None:
    given = {"UCX_NET_DEVICES": "mlx5_0:1,ib0", "FI_TCP_IFACE": "eth1", "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/8"}
    assert needs_of([PYTHON, "x.py"], PYTHON, {}, given).interfaces == {
        "eth1": "FI_TCP_IFACE",
        "ib0": "UCX_NET_DEVICES",
    }


SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
[ -n "{words}" ] && echo "{words}" >&2
exit {code}
"""


@pytest.mark.parametrize(
    ("code", "words", "expected"),
    [
        (255, "Host key verification failed.", "its host key is not known here"),
        (255, "ssh: Could not resolve hostname far: Name or service not known", "this name does not resolve here"),
        (255, "ssh: connect to host far port 22: No route to host", "there is no way to it"),
        (255, "ssh: connect to host far port 22: Connection refused", "no ssh server listens there"),
        (255, "root@far: Permission denied (publickey).", r"it refuses this user's key \(.*\); 'ssh-copy-id far'"),
        (
            255,
            "kex_exchange_identification: read",
            r"cannot be reached \(kex_exchange.*by hand, or leave far out",
        ),
        (127, "env: '/env/bin/python': No such file or directory", "/env/bin/python is not there"),
        (1, "", r"/env/bin/python does not run there \(exit code 1: it said nothing\)"),
    ],
)
def test_what_ssh_says(tmp_path: Path, code: int, words: str, expected: str) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(words=words, code=code))
    ssh.chmod(0o755)
    for versions in (True, False):
        needs = dataclasses.replace(NEEDS, versions=versions)
        known, wrong = host_check.ask(["far"], HERE, needs, [str(ssh)], 20)
        assert known == {} and len(wrong["far"]) == 1
        assert re.search(f"far: .*{expected}", wrong["far"][0].text), wrong


@pytest.mark.parametrize(
    ("code", "words", "passes"),
    [
        (255, "ssh: Could not resolve hostname far: Name or service not known", True),
        (255, "ssh: connect to host far port 22: Connection refused", True),
        (255, "kex_exchange_identification: Connection closed by remote host", True),
        (255, "root@far: Permission denied (publickey).", False),
        (255, "Host key verification failed.", False),
        (127, "env: '/env/bin/python': No such file or directory", False),
    ],
)
def test_which_problems_may_pass(tmp_path: Path, code: int, words: str, passes: bool) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH.format(words=words, code=code))
    ssh.chmod(0o755)
    _, wrong = host_check.ask(["far"], HERE, NEEDS, [str(ssh)], 20)
    assert [problem.passes for problem in wrong["far"]] == [passes]


def test_problems_of_a_machine_that_starts_may_pass() -> None:
    facts = {**HERE, "network": "there", "names": {"me": []}, "unreachable": {"c": "timed out"}, "numpy": "1"}
    assert [(p.text.split()[1], p.passes) for p in problems("far", facts, HERE, NEEDS)] == [
        ("/env/bin/python", False),
        ("does", True),
        ("there", True),
    ]


def machine(**facts: Any) -> dict[str, Any]:
    return {"processor": "A", "cores": 8, "memory_gib": 64.0, "gpus": [], **facts}


def test_differences_that_cost_speed_are_told() -> None:
    def told(**machines: tuple[dict[str, Any], int]) -> list[str]:
        return list(host_check.remarks_on_speed(machines))

    assert told(a=(machine(), 4), b=(machine(memory_gib=60.0), 4)) == []
    assert told(a=(machine(), 4)) == []
    cores, memory = told(a=(machine(), 4), b=(machine(), 2))
    assert "different cores for each rank (a: 2.0; b: 4.0)" in cores and "the slowest rank" in cores
    assert "different GiB of memory for each rank (a: 16.0; b: 32.0)" in memory
    assert (
        "different processors (a, c: A; b: B)"
        in told(a=(machine(), 4), b=(machine(processor="B"), 4), c=(machine(), 4))[0]
    )
    assert "different GPUs (a: none; b: H100, H100)" in told(a=(machine(), 2), b=(machine(gpus=["H100"] * 2), 2))[0]
    many = {f"n{number}": (machine(processor="B" * (number > 5)), 4) for number in range(8)}
    assert "(n0, n1, n2 and 3 more: ; n6, n7: B)" in told(**many)[0]


def test_a_shell_that_goes_on_does_not_run_the_probe(tmp_path: Path) -> None:
    lines = f"{host_check._start_of('/absent/python', {})}touch {tmp_path}/run\n"
    command = ["bash", "-O", "execfail", "-c", 'while IFS= read -r line; do eval "$line"; done']
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 127 and not (tmp_path / "run").exists()


def test_no_answer_in_time(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 60\n")
    ssh.chmod(0o755)
    _, wrong = host_check.ask(["far"], HERE, NEEDS, [str(ssh)], 0.2)
    assert wrong["far"][0].text.startswith("far: no answer in 0.2 s; try ")


def test_a_machine_without_proc(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(probe, "FOLDERS", ("/nowhere", "/"))
    assert host_check.facts_here(sys.executable)["cores"], "another folder takes its place"
    assert "cd /nowhere || cd /" in host_check._start_of(sys.executable, {})
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(probe, "_text", lambda file: "")
    probe.main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores"] and facts["all_cores"] and facts["mpi_file"] == ""


def test_this_machine() -> None:
    facts = host_check.facts_here(sys.executable, Needs(sys.executable, str(Path.cwd()), __file__, "tests.launch"))
    assert facts["folder"] and facts["program"] and facts["module"] and facts["full"] == {} == facts["unreachable"]
