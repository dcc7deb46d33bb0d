"""What Slurm has given to a job: its hosts, and how many ranks each gets. Other batch systems leave that to mpirun."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence

from tfdist.launch.hosts import Host, LaunchError

_ANSWER_SECONDS = 30.0


def slurm_hosts(variables: Mapping[str, str]) -> tuple[tuple[Host, ...], str]:
    """The hosts of this process's allocation with their ranks, and in words why so many.

    As many ranks as the job has tasks (``--ntasks``, ``--ntasks-per-node``), where ``srun`` would start them; else as
    without a batch system: one a GPU, or one on each host, where TensorFlow's threads take all cores.

    Args:
      variables: of the environment.

    Raises:
      LaunchError: Slurm does not tell the hosts.
    """
    names = _host_names(variables.get("SLURM_JOB_NODELIST", ""))
    if "SLURM_NTASKS" in variables:
        counts, reason = counts_of_nodes(variables.get("SLURM_TASKS_PER_NODE", "")), "Slurm's tasks"
    else:
        gpus = variables.get("SLURM_GPUS_ON_NODE", "")
        each = int(gpus) if re.fullmatch(r"[1-9]\d*", gpus) else 0
        counts = [each or 1] * len(names)
        reason = "one a GPU" if each else "one a host, since the job says no --ntasks"
    if not names or len(counts) != len(names):
        raise LaunchError(
            f"Slurm's job has the hosts {','.join(names) or 'nobody knows'} and ranks for {len(counts)} of them "
            f"(SLURM_TASKS_PER_NODE={variables.get('SLURM_TASKS_PER_NODE')}); write tfdist-run -H host1:2,host2:2 …"
        )
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=True)), reason


def counts_of_nodes(text: str) -> list[int]:
    """A number for each node, as Slurm writes them: ``2(x3),1`` is 2, 2, 2, 1."""
    entries = [re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry) for entry in text.split(",")]
    if None in entries:
        return []
    return [int(entry[1]) for entry in entries if entry for _ in range(int(entry[2] or 1))]


def _host_names(nodes: str) -> Sequence[str]:
    """Of ``node[1-2,7]``: there are more ways to write a list of them than is worth knowing here."""
    if not nodes:  # nothing to ask, and a host outside the job need not have Slurm's commands
        return ()
    try:
        done = subprocess.run(
            ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, timeout=_ANSWER_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"{nodes}: scontrol does not tell these hosts ({error}); write tfdist-run -H …") from None
    return done.stdout.split()
