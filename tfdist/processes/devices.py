"""Devices: the share of the machine for this rank, a GPU or cores.

There is one process per GPU, as in IBM's DDL. Without GPUs the ranks share the cores, so that ``mpirun -n 4`` does not
start four times as many threads as there are cores. Settings of the user are not changed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tfdist.compat.devices import devices_are_known
from tfdist.core import environment
from tfdist.core.log import announce
from tfdist.core.system import processors

_NVIDIA = Path("/proc/driver/nvidia/gpus")
_NCCL = (
    "each rank has a GPU of its own: with TFDIST_ENGINE=nccl gradients stay on the GPUs. This has not yet run on "
    "several GPUs, nor with XLA after its last change: compare results and times by scripts/bench/gpu first"
)


def gpus_of_machine() -> int:
    """Return the number of NVIDIA GPUs; 0 without NVIDIA's driver."""
    return len(list(_NVIDIA.iterdir())) if _NVIDIA.is_dir() else 0


def gpu_of(local_rank: int, local_size: int, visible: str | None, gpus: int) -> str | None:
    """Return the value of CUDA_VISIBLE_DEVICES for one rank.

    Args:
      local_rank: number of this rank on its machine.
      local_size: number of ranks on the machine.
      visible: present value of the variable, which Slurm for example sets for a whole node; None if unset.
      gpus: number of GPUs of the machine.

    Returns:
      One device, which several ranks share if there are more ranks than devices. None to leave the variable unchanged:
      the machine has one rank, no device, or the variable lists one device, perhaps for this rank.
    """
    devices = listed(visible, gpus)
    if local_size == 1 or not devices or (visible is not None and len(devices) == 1):
        return None
    return devices[local_rank % len(devices)]


def listed(visible: str | None, gpus: int) -> list[str]:
    """Return the devices that CUDA_VISIBLE_DEVICES lists, as numbers or names; all of the machine if it is unset."""
    return [str(i) for i in range(gpus)] if visible is None else [d for d in visible.split(",") if d]


def a_gpu_each(local_size: int) -> bool:
    """Return whether this machine has a GPU for each of its ranks, as CUDA_VISIBLE_DEVICES lists them."""
    gpus = gpus_of_machine()
    return 0 < local_size <= min(gpus, len(listed(environment.variables().get("CUDA_VISIBLE_DEVICES"), gpus)))


def suggestion(engine: str, local_size: int) -> str:
    """Return a remark on the engine for a machine with so many ranks; empty if there is none."""
    return _NCCL if engine == "auto" and a_gpu_each(local_size) else ""


def threads_of(own: frozenset[int], all_ranks: Sequence[frozenset[int]]) -> int:
    """Return this rank's number of threads: each of its cores is divided by the number of ranks that may use it."""
    return max(1, math.floor(sum(1 / sum(core in cores for cores in all_ranks) for core in own) + 1e-9))


def take_share(local_rank: int, local_size: int, affinities: Callable[[frozenset[int]], list[frozenset[int]]]) -> None:
    """Set the defaults that TensorFlow reads when its first session or context starts.

    Collective: all ranks.

    Args:
      local_rank: number of this rank on its machine.
      local_size: number of ranks on the machine.
      affinities: function (cores that this rank may use) -> cores of each rank of the machine; collective.
    """
    gpus = gpus_of_machine()
    if gpus and 0 < len(listed(environment.variables().get("CUDA_VISIBLE_DEVICES"), gpus)) < local_size:
        # Else the first rank's TensorFlow takes all of a GPU's memory.
        environment.set_default("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        if gpus < local_size:
            announce(
                f"{local_size} ranks of a machine share {gpus} GPU{'s' * (gpus > 1)}, whose memory grows as needed"
            )

    def own_gpu(visible: str | None) -> str | None:
        gpu = gpu_of(local_rank, local_size, visible, gpus)
        if gpu is not None and devices_are_known(sys.modules):
            announce(
                "TensorFlow listed this machine's GPUs before tfdist was imported, so every rank sees all of them. "
                "Import tfdist before anything lists devices, makes a tensor or opens a session, or give each rank "
                "its own CUDA_VISIBLE_DEVICES"
            )
        return gpu

    environment.overwrite("CUDA_VISIBLE_DEVICES", own_gpu)
    own = processors()
    threads = threads_of(own, affinities(own))
    if not gpus:
        # Read in tensorflow/core/common_runtime/local_device.cc, where a session's own setting comes first.
        environment.set_default("TF_NUM_INTRAOP_THREADS", str(threads))
