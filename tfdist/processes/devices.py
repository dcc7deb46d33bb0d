"""Devices: which share of the machine is this rank's, its GPU, its cores.

One process per GPU, as IBM's DDL has it. Without GPUs the cores are shared, so that ``mpirun -n 4`` does not start
four times as many threads as there are cores. What the user has chosen stays.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.compat.devices import devices_are_known
from tfdist.core import environment
from tfdist.core.log import announce

_NVIDIA = Path("/proc/driver/nvidia/gpus")


def gpus_of_machine() -> int:
    """NVIDIA's; 0 without its driver."""
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def gpu_of(local_rank: int, local_size: int, visible: str | None, gpus: int) -> str | None:
    """The value of CUDA_VISIBLE_DEVICES for one rank.

    Args:
      local_rank: this rank's number on its machine.
      local_size: ranks on the machine.
      visible: the variable's present value, such as Slurm sets for a whole node; None if unset.
      gpus: GPUs of the machine.

    Returns:
      One device; None to leave the variable alone: fewer devices are listed than there are ranks, which is a choice.
    """
    devices = [str(i) for i in range(gpus)] if visible is None else [d for d in visible.split(",") if d]
    if local_size == 1 or len(devices) < local_size:
        return None
    return devices[local_rank]


def threads_of(own: frozenset[int], all_ranks: Sequence[frozenset[int]]) -> int:
    """This rank's share of the cores it may use, when each core is divided by the ranks that may use it."""
    return max(1, math.floor(sum(1 / sum(core in cores for cores in all_ranks) for core in own) + 1e-9))


def take_share(local_rank: int, local_size: int, affinities: Callable[[frozenset[int]], list[frozenset[int]]]) -> None:
    """Set the defaults that TensorFlow reads when its first session or context starts.

    Collective: all ranks.

    Args:
      local_rank: this rank's number on its machine.
      local_size: ranks on the machine.
      affinities: tells the machine's ranks the cores that this one may use, and this one theirs; collective.
    """
    gpus = gpus_of_machine()

    def own_gpu(visible: str | None) -> str | None:
        gpu = gpu_of(local_rank, local_size, visible, gpus)
        if gpu is not None and devices_are_known(sys.modules):
            announce(
                "TensorFlow knew this machine's GPUs before tfdist was imported, so that every rank sees all of them "
                "and not its own alone: import tfdist before anything asks for devices, makes a tensor or opens a "
                "session, or give each rank its own CUDA_VISIBLE_DEVICES"
            )
        return gpu

    environment.overwrite("CUDA_VISIBLE_DEVICES", own_gpu)
    own = frozenset(os.sched_getaffinity(0))
    threads = threads_of(own, affinities(own))
    if not gpus:
        # Read in tensorflow/core/common_runtime/local_device.cc, where a session's own setting comes first.
        environment.set_default("TF_NUM_INTRAOP_THREADS", str(threads))
