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
      One device, which ranks share where there are more of them; None to leave the variable alone: one device is
      listed, for this rank perhaps, or none.
    """
    devices = listed(visible, gpus)
    if local_size == 1 or not devices or (visible is not None and len(devices) == 1):
        return None
    return devices[local_rank % len(devices)]


def listed(visible: str | None, gpus: int) -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES lists, by their numbers or names; all of the machine if it is unset."""
    return [str(i) for i in range(gpus)] if visible is None else [d for d in visible.split(",") if d]


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
    if gpus and 0 < len(listed(environment.variables().get("CUDA_VISIBLE_DEVICES"), gpus)) < local_size:
        # Else the first rank's TensorFlow takes all of the memory.
        environment.set_default("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        if gpus < local_size:
            announce(
                f"{local_size} ranks of a machine share {gpus} GPU{'s' * (gpus > 1)}, whose memory grows as needed"
            )

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
