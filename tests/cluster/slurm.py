"""Slurm on hosts that are namespaces: its controller on the first host, slurmd on each, and munge between them.

Configuration, key, sockets and state are in a separate folder, so that a Slurm installation of the machine is neither
used nor changed. The daemons end with the hosts. Needs Debian's packages slurm-wlm and munge, and libpmix-dev for
Open MPI.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.folder import Folder, Service
from tests.cluster.hosts import Hosts
from tests.launch import Finished

_TOOLS = ("srun", "sbatch", "scontrol", "/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged")
_READY_SECONDS = 40.0
_CALL_SECONDS = 30.0
_LOOK_SECONDS = 0.5
# A requeued job waits until the credential expires (cred_expire): after two minutes by default.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={first}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={own}/munge.socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/slurmd.pid
SlurmdSpoolDir={own}/spool
StateSaveLocation={own}/state
SlurmctldLogFile={log}/slurmctld
SlurmdLogFile={log}/slurmd.%n
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=2 PreemptMode=OFF
"""
_OTHERS = {
    "cgroup.conf": "CgroupPlugin=cgroup/v1\n",  # no cgroup is used, but slurmd requires the setting
    "mpi.conf": "PMIxCliTmpDirBase={own}\n",  # the hosts share /tmp
}


def obstacle(pmi: str = "pmi2") -> str:
    """Return the reason why Slurm cannot run on such hosts here; empty if it can.

    Args:
      pmi: interface by which the ranks find each other: ``pmi2`` for MPICH, ``pmix`` for Open MPI.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian's packages slurm-wlm and munge)"
    if pmi == "pmix" and not list(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so")):
        return "Slurm loads pmix by a name that Debian's package libpmix-dev alone has: libpmix.so"
    return ""


class Slurm(Service):
    """A Slurm cluster of hosts, as long as the context is open.

    Jobs of its partition ``urgent`` pre-empt jobs of the default partition ``main``. A pre-empted job gets a SIGTERM
    and is requeued 60 seconds later at the latest.

    Args:
      hosts: the hosts, which must stay open longer than the cluster.
      cpus: number of CPUs of each host in Slurm's configuration.
    """

    def __init__(self, hosts: Hosts, cpus: int = 2) -> None:
        self._hosts = hosts
        self._cpus = cpus
        self._folder = Folder("tfdist-slurm-")
        self._kept = self._folder.path
        self._own = self._kept / "own"  # another file system on each host
        self._variables = {"SLURM_CONF": str(self._kept / "slurm.conf")}

    def start(self) -> None:
        """See ``Service``."""
        first = self._hosts.names[0]
        self._write()
        for name in self._hosts.names:
            self._call(name, "mount -t tmpfs -o mode=755 tmpfs {own}; mkdir {own}/spool {own}/state")
            self._call(
                name,
                "munged --key-file={kept}/key --socket={own}/munge.socket --pid-file={own}/munge.pid "
                "--seed-file={own}/munge.seed --log-file={own}/munge.log",
            )
        self._call(first, "slurmctld -c")
        for name in self._hosts.names:
            self._call(name, f"slurmd -N {name}")
        self._until_idle()

    def close(self) -> None:
        """Remove the folder; the daemons end with their hosts."""
        self._folder.cleanup()

    def run(
        self, command: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a command on the first host, ``srun`` for example, in the project's root."""
        return self._hosts.run(
            self._hosts.names[0], command, timeout_seconds, {**self._variables, **(environment or {})}
        )

    def submit(self, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
        """Submit ``sbatch arguments`` and return the job's number."""
        done = self.run(["sbatch", "--parsable", *arguments], _CALL_SECONDS, environment)
        if done.code != 0:
            raise RuntimeError(f"sbatch {' '.join(arguments)}: {done.errors}")
        return done.output.strip()

    def job(self, number: str) -> dict[str, str]:
        """Return the controller's record of a job, with the field names of ``scontrol show job``."""
        told = self.run(["scontrol", "--oneliner", "show", "job", number], _CALL_SECONDS).output
        return dict(word.split("=", 1) for word in told.split() if "=" in word)

    def wait(self, number: str, states: Sequence[str], timeout_seconds: float) -> dict[str, str]:
        """Wait until a job is in one of these states and return its record as ``job`` does.

        Raises:
          TimeoutError: the job reaches none of the states in time; the message has its state.
        """
        deadline = time.monotonic() + timeout_seconds
        while (known := self.job(number)).get("JobState") not in states:
            if time.monotonic() > deadline:
                raise TimeoutError(f"job {number} is {known.get('JobState')} ({known.get('Reason')}), not {states}")
            time.sleep(_LOOK_SECONDS)
        return known

    def log(self) -> str:
        """Return the log files of all daemons."""
        files = sorted((self._kept / "log").iterdir())
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')}" for file in files)

    def _write(self) -> None:
        self._kept.chmod(0o711)  # else munged refuses to make its socket in the folder
        self._own.mkdir()
        log = self._kept / "log"
        log.mkdir()
        key = self._kept / "key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        for name, text in _OTHERS.items():
            (self._kept / name).write_text(text.format(own=self._own))
        names = self._hosts.names
        (self._kept / "slurm.conf").write_text(
            _CONFIGURATION.format(first=names[0], nodes=",".join(names), cpus=self._cpus, own=self._own, log=log)
        )

    def _call(self, name: str, commands: str) -> None:
        words = commands.format(own=self._own, kept=self._kept)
        path = f"{os.environ.get('PATH', '')}:/usr/sbin"
        done = self._hosts.run(name, ["sh", "-ec", words], _CALL_SECONDS, {**self._variables, "PATH": path})
        if done.code != 0:
            raise RuntimeError(f"{name}: {words}: {done.errors or done.output}\n{self.log()}")

    def _until_idle(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        seen = ""
        while (seen.split() or [""]) != ["idle"] * len(self._hosts.names):
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Slurm's hosts are {seen or 'not known'} after {_READY_SECONDS:.0f} s\n{self.log()}"
                )
            time.sleep(_LOOK_SECONDS)
            seen = self.run(["sinfo", "--Node", "--noheader", "--partition=main", "--format=%T"], _CALL_SECONDS).output
