"""Ranks: checks of a job's ranks together, after its start."""

from __future__ import annotations

import importlib.metadata
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import tfdist
from tfdist.core.environment import variables
from tfdist.doctor.findings import FIX, NOTE, OK, Finding, of
from tfdist.graph.job import Job
from tfdist.transport.interfaces import Channel

_TEST_SECONDS = 1.0
_CLOCK_SECONDS = 1.0
_PLACE = "the doctor's checks"
_SMALL_BYTES, _LARGE_BYTES = 8 << 10, 8 << 20
_TIMES = 5
_SLOW_NETWORK = 100.0  # MB/s


def examine(job: Job) -> Iterator[Finding]:
    """Yield the findings on all ranks, the same on each. Collective: all ranks."""
    world = job.world
    own = {
        "host": platform.node(),
        "versions": _versions(),
        "wrong": _wrong_results(),
        "gpu": _gpu(),
        "apart": _clock_apart(world.control),
    }
    ranks: Sequence[Mapping[str, Any]] = world.control.all_gather_object(own, _PLACE)
    yield Finding(OK, "ranks", str(world.topology))
    yield _same_versions(ranks)
    yield _clocks(ranks)
    if world.size > world.local_size or len(world.topology.nodes) > 1:
        yield _network(world.control)
    if any(len(node) > 1 for node in world.topology.nodes):
        yield of(world.mapped_memory_obstacle(), "mapped memory", "ranks of a host map each other's memory", NOTE)
    yield _gpus(ranks)
    wrong = "; ".join(f"rank {rank}: {problem}" for rank, told in enumerate(ranks) for problem in told["wrong"])
    yield of(wrong, "self-test", "all collectives give the right results")


def _versions() -> dict[str, str]:
    import tensorflow as tf

    return {
        "Python": platform.python_version(),
        "tfdist": tfdist.__version__,
        "TensorFlow": tf.__version__,
        "NumPy": np.__version__,
        "mpi4py": importlib.metadata.version("mpi4py"),
    }


def _same_versions(ranks: Sequence[Mapping[str, Any]]) -> Finding:
    first = ranks[0]["versions"]
    for rank, told in enumerate(ranks):
        for name, version in told["versions"].items():
            if version != first[name]:
                return Finding(
                    FIX,
                    "versions",
                    f"{name} {first[name]} on rank 0, but {version} on rank {rank} ({told['host']}): install the same",
                )
    return Finding(OK, "versions", ", ".join(f"{name} {version}" for name, version in first.items()))


def _clock_apart(channel: Channel) -> float:
    """Return by how many seconds this machine's clock differs from rank 0's, to the time of a barrier."""
    channel.arrive(_PLACE)
    return time.time() - float(channel.broadcast_object(time.time(), _PLACE))


def _clocks(ranks: Sequence[Mapping[str, Any]]) -> Finding:
    rank = max(range(len(ranks)), key=lambda number: abs(ranks[number]["apart"]))
    apart, host = ranks[rank]["apart"], ranks[rank]["host"]
    told = (
        f"the clock of {host} differs from that of rank 0's host by {apart:.1f} s: times in logs and file dates "
        "mislead. Start a time service (chrony, ntpd)"
    )
    return of(told if abs(apart) > _CLOCK_SECONDS else "", "clocks", "the hosts' clocks agree within a second", NOTE)


def _network(channel: Channel) -> Finding:
    seconds = []
    for size_bytes in (_SMALL_BYTES, _LARGE_BYTES):
        array, times = np.ones(size_bytes // 4, np.float32), []
        for _ in range(_TIMES):
            channel.arrive(_PLACE)
            start = time.perf_counter()
            channel.all_reduce(array)
            times.append(time.perf_counter() - start)
        seconds.append(statistics.median(times))
    small, large = channel.broadcast_object(seconds, _PLACE)
    rate = _LARGE_BYTES / large / 1e6
    told = f"an all-reduce between the hosts takes {1e3 * small:.1f} ms for 8 KiB, and passes {rate:,.0f} MB/s"
    slow = f"{told}: TFDIST_COMPRESSION=bf16, larger batches or local steps help, or name a faster interface"
    return of(slow if rate < _SLOW_NETWORK else "", "network", told, NOTE)


def _gpu() -> tuple[str, int]:
    """Return the name of the first GPU that TensorFlow lists on this rank, and the number of the machine's GPUs."""
    import tensorflow as tf

    from tfdist.processes.devices import gpus_of_machine

    for device in tf.config.list_physical_devices("GPU"):
        name = tf.config.experimental.get_device_details(device).get("device_name", device.name)
        return f"{name} (CUDA_VISIBLE_DEVICES={variables().get('CUDA_VISIBLE_DEVICES', '')})", gpus_of_machine()
    return "", gpus_of_machine()


def _gpus(ranks: Sequence[Mapping[str, Any]]) -> Finding:
    lost = [rank for rank, told in enumerate(ranks) if told["gpu"][1] and not told["gpu"][0]]
    if lost:
        return Finding(
            FIX,
            "GPUs",
            f"TensorFlow lists no GPU on rank {lost[0]} ({ranks[lost[0]]['host']}), where the driver has some: pip "
            "install 'tensorflow[and-cuda]', and look at CUDA_VISIBLE_DEVICES",
        )
    told = "; ".join(f"rank {rank}: {told['gpu'][0]}" for rank, told in enumerate(ranks) if told["gpu"][0])
    return Finding(OK, "GPUs", told or "none")


def _wrong_results() -> list[str]:
    """Test the collectives with growing arrays for a second, and return a message for each wrong result."""
    until = time.monotonic() + _TEST_SECONDS
    rank, size = tfdist.rank(), tfdist.size()
    elements = 1
    wrong: list[str] = []
    while not wrong and elements < 1 << 24:
        own = np.arange(elements, dtype=np.float64) + rank
        every = [np.arange(elements, dtype=np.float64) + r for r in range(size)]
        results: dict[str, tuple[Any, Any]] = {
            "all_reduce": (tfdist.all_reduce(own, "sum"), np.sum(every, axis=0)),
            "max": (tfdist.all_reduce(own, "max"), np.max(every, axis=0)),
            "broadcast": (tfdist.broadcast(own), every[0]),
            "all_gather": (tfdist.all_gather(own), np.concatenate(every)),
            "reduce_scatter": (tfdist.reduce_scatter(own), np.array_split(np.sum(every, axis=0), size)[rank]),
            "all_to_all": (
                tfdist.all_to_all(own)[0],
                np.concatenate([np.array_split(e, size)[rank] for e in every]),
            ),
        }
        wrong = [name for name, (found, expected) in results.items() if not np.array_equal(found, expected)]
        elements *= 4
        if tfdist.broadcast(time.monotonic() > until):
            break
    return [f"{name} of {elements // 4} numbers is wrong" for name in wrong]
