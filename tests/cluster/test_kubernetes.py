"""An MPIJob on hosts that are made like its pods: user, keys, ports, hostfile, and names that come up late.

The files are those of ``scripts/examples/kubernetes``. The operator's part (pkg/controller/mpi_job_controller.go of
kubeflow/mpi-operator) is made by hand: the variables, the hostfile, and a secret whose files belong to root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import hosts
from tests.cluster.hosts import Hosts, address
from tests.launch import ROOT, TFDIST_RUN, Finished
from tfdist.launch import launchers

pytestmark = [pytest.mark.long("several hosts"), pytest.mark.skipif(bool(hosts.obstacle()), reason=hosts.obstacle())]

FILES = ROOT / "scripts" / "examples" / "kubernetes"
NAMES = {"node1": "train-launcher", "node2": "train-worker-0", "node3": "train-worker-1"}
DOMAIN = "train.default.svc"
USER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--")
PROGRAM = """
import socket, tfdist
import numpy as np
total = tfdist.all_reduce(np.full(3, tfdist.rank() + 1.0), "sum")
print(socket.gethostname(), tfdist.rank(), total.tolist(), flush=True)
"""


class Pods:
    """The pods of the MPIJob in mpijob.yaml: node1 is the launcher's, the others are the workers'."""

    def __init__(self, made: Hosts, folder: Path) -> None:
        self.job: dict[str, Any] = yaml.safe_load((FILES / "mpijob.yaml").read_text())
        self._made = made
        self._secret = folder / "secret"
        self._secret.mkdir()
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(self._secret / "id_rsa")], check=True, timeout=60
        )
        shutil.copy(self._secret / "id_rsa.pub", self._secret / "authorized_keys")
        for name in NAMES:
            self._prepare(name, folder)
        slots = self.job["spec"]["slotsPerWorker"]
        library = launchers.facts_here(sys.executable)["mpi"]
        self.open_mpi = launchers.family_of(library) == "Open MPI"
        line = "{}.{} slots={}\n" if self.open_mpi else "{}.{}:{}\n"
        self.hostfile = folder / "hostfile"
        self.hostfile.write_text("".join(line.format(NAMES[n], DOMAIN, slots) for n in ("node2", "node3")))

    def _prepare(self, name: str, folder: Path) -> None:
        """Give a host the image's user and ssh files, the secret, and a name; it knows only its own name."""
        users = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[2] != "1000"]
        (folder / "passwd").write_text("\n".join([*users, "mpiuser:x:1000:1000::/home/mpiuser:/bin/sh\n"]))
        names = folder / f"hosts-{name}"
        names.write_text(f"127.0.0.1 localhost\n{address(int(name[-1]))} {NAMES[name]}\n")
        home = Path.home()  # Python may be below it, where others may not enter
        self.shell(
            name,
            f"""
            hostname {NAMES[name]}
            mount --bind {folder}/passwd /etc/passwd
            mount --bind {names} /etc/hosts
            mount --bind {FILES}/ssh_config /etc/ssh/ssh_config
            mount --bind {FILES}/sshd_config /etc/ssh/sshd_config
            mount -t tmpfs -o mode=755 tmpfs /home
            chmod 755 {self._made.folder} && chmod 1777 {self._made.folder}/daemons  # for Open MPI
            mkdir -p /home/mpiuser/.ssh && chown 1000:1000 /home/mpiuser
            cp {self._secret}/* /home/mpiuser/.ssh && chmod 644 /home/mpiuser/.ssh/*
            if [ -d {home}/.pyenv ]; then
                mkdir /home/pyenv && mount --bind {home}/.pyenv /home/pyenv
                mount -t tmpfs -o mode=755 tmpfs {home}
                mkdir {home}/.pyenv && mount --bind /home/pyenv {home}/.pyenv
            fi
            test -x {os.path.realpath(sys.executable)}
            """,
        )

    def shell(self, name: str, text: str) -> None:
        """Run a shell script on a host as root."""
        done = self._made.run(name, ["sh", "-ec", text], 30)
        assert done.code == 0, done.errors

    def start_worker(self, name: str) -> None:
        """Start a worker's container, and let the cluster's DNS know all names."""
        names = "".join(f"{address(int(n[-1]))} {pod} {pod}.{DOMAIN}\n" for n, pod in NAMES.items())
        for host in ("node1", name):
            self.shell(host, f"cat >> /etc/hosts <<'END'\n{names}END\n")
        sshd = self.job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["command"]
        self.shell(name, f"cd /home/mpiuser; {' '.join(USER)} {' '.join(sshd)} >/dev/null 2>&1 </dev/null &")

    def launch(self, *options: str) -> Finished:
        """Run the launcher's container with another program, and with further options of ``tfdist-run``."""
        command = self.job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"]
        assert command[0] == TFDIST_RUN.name and command[-2:] == ["python", "train.py"]
        variables = (
            [f"OMPI_MCA_orte_default_hostfile={self.hostfile}", "OMPI_MCA_orte_keep_fqdn_hostnames=true"]
            if self.open_mpi
            else [f"HYDRA_HOST_FILE={self.hostfile}", "HYDRA_LAUNCH_EXTRA_ARGS=-o ConnectionAttempts=10"]
        )
        path = f"{sysconfig.get_path('scripts')}:/usr/bin:/bin:/usr/sbin:/sbin"
        environment = [
            "env",
            "HOME=/home/mpiuser",
            "USER=mpiuser",
            f"PATH={path}",
            "K_MPI_JOB_ROLE=launcher",
            *variables,
        ]
        program = ["python", "-c", PROGRAM]
        line = [*USER, *environment, str(TFDIST_RUN), *command[1:-2], *options, *program]
        return self._made.run("node1", line, 150)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    # pytest's folder belongs to root alone, and the pods' user reads the hostfile.
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:2]:
        parent.chmod(0o755)
    with Hosts(3) as made:
        yield Pods(made, tmp_path)


def test_the_launcher_waits_for_its_workers(pods: Pods) -> None:
    def start_late() -> None:
        for name in ("node2", "node3"):
            time.sleep(4)
            pods.start_worker(name)

    thread = threading.Thread(target=start_late)
    thread.start()
    finished = pods.launch()
    thread.join()
    assert finished.code == 0, finished.errors
    told = finished.errors
    assert (
        "2 hosts from" in told and "waiting for 2 of 2 hosts, 600 s at most: train-worker-0.train.default.svc" in told
    )
    assert "Could not resolve hostname" in told and "all hosts answer after" in told
    lines = sorted(line.split(maxsplit=1)[1] for line in finished.output.splitlines() if "train-worker" in line)
    assert lines == [f"train-worker-{rank // 2} {rank} [10.0, 10.0, 10.0]" for rank in range(4)], finished.output


def test_workers_that_never_come(pods: Pods) -> None:
    pods.start_worker("node2")
    finished = pods.launch("--start-timeout", "6")
    assert finished.code == 2
    assert "waiting for 1 of 2 hosts" in finished.errors
    last = finished.errors.splitlines()[-1]
    assert "train-worker-1.train.default.svc: cannot be reached" in last and "(waited" in last
