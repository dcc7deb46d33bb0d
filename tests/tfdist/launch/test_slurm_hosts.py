"""What ``tfdist-run`` reads from a Slurm job; ``tests/cluster/test_slurm.py`` runs in a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.core import environment
from tfdist.launch import hosts, launchers
from tfdist.launch.command import main
from tfdist.launch.hosts import LaunchError
from tfdist.launch.launchers import Launcher


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of a job on two hosts, and install a ``scontrol`` that lists these hosts."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostnames big[1,7]" ] && printf "big1\\nbig7\\n"\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return {"SLURM_JOB_ID": "3", "SLURM_JOB_NODELIST": "big[1,7]", "SLURM_TASKS_PER_NODE": "64(x2)"}


def ranks(variables: dict[str, str]) -> str:
    machines, reason = hosts.slurm_hosts(variables)
    return ",".join(f"{host.name}:{host.ranks}" for host in machines) + f" {reason}"


def test_ranks(job: dict[str, str]) -> None:
    assert ranks({**job, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}) == "big1:2,big7:1 Slurm's tasks"
    assert ranks({**job, "SLURM_NTASKS": "8", "SLURM_TASKS_PER_NODE": "4(x2)"}) == "big1:4,big7:4 Slurm's tasks"
    assert ranks({**job, "SLURM_GPUS_ON_NODE": "4"}) == "big1:4,big7:4 one per GPU"
    assert ranks(job).startswith("big1:1,big7:1 one per host")
    assert hosts.counts_of_nodes("2(x3),1,4(x2)") == [2, 2, 2, 1, 4, 4]


def test_hosts_that_are_not_told(job: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LaunchError, match=r"hosts big1,big7 and ranks for 1 of them .*PER_NODE=2\); write .*-H"):
        hosts.slurm_hosts({**job, "SLURM_NTASKS": "2", "SLURM_TASKS_PER_NODE": "2"})
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match=r"big\[1,7\]: scontrol .*scontrol.*-H"):
        hosts.slurm_hosts(job)


def test_the_command_line(
    job: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slurm's hosts are not tested through ssh, and mpirun's srun gets no arguments of ssh."""
    for name, value in {**job, "SLURM_NTASKS": "3", "SLURM_TASKS_PER_NODE": "2,1"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--dry-run", "--no-prefix", "python", "x.py"]) == 0
    said = capsys.readouterr().err
    assert "3 ranks on 2 of Slurm's hosts, Slurm's tasks" in said
    assert " -n 3 " in said and "big1:2,big7:1" in said
    assert launchers.keep_alive(Launcher("mpirun", "MPICH", 5), ()) == ()
    assert "HYDRA_LAUNCHER_EXTRA_ARGS" not in environment.variables()
