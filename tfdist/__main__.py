"""``python -m tfdist``, on one process or under mpirun: print versions, ranks and settings, and test the collectives.

``python -m tfdist trace FILES`` is another command: see ``tfdist.trace``.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import tfdist
from tfdist.core.environment import launch, variables
from tfdist.core.settings import Settings, allowed
from tfdist.engine import autotune
from tfdist.start import process
from tfdist.trace.command import main as trace

_TEST_SECONDS = 1.0


def main() -> int:
    """Print the report on rank 0; return 0 if the collectives work, else 1."""
    job = process().job
    wrong = _wrong_results(time.monotonic() + _TEST_SECONDS)
    measured = job.engines.measure() if job.world.size > 1 else None
    ranks = job.world.control.all_gather_object((wrong, _gpu()), "the report")
    everywhere = [found for found, _ in ranks]
    if job.world.rank == 0:
        print("\n".join(_report(everywhere, [gpu for _, gpu in ranks], measured)), flush=True)
    return 1 if any(everywhere) else 0


def _gpu() -> str:
    """Return the name of the first GPU that TensorFlow lists on this rank; empty if there is none."""
    import tensorflow as tf

    for device in tf.config.list_physical_devices("GPU"):
        name = tf.config.experimental.get_device_details(device).get("device_name", device.name)
        return f"{name} (CUDA_VISIBLE_DEVICES={variables().get('CUDA_VISIBLE_DEVICES', '')})"
    return ""


def _report(wrong: list[list[str]], gpus: list[str], measured: autotune.Measurement | None) -> Iterator[str]:
    import tensorflow as tf

    job = process().job
    world = job.world
    yield f"tfdist      {tfdist.__version__}"
    yield f"tensorflow  {tf.__version__}"
    yield f"numpy       {np.__version__}"
    yield f"python      {platform.python_version()} ({sys.executable})"
    yield f"mpi         {world.description()}"
    yield f"launched    {'by a launcher' if launch() else 'without a launcher: one process'}"
    yield f"ranks       {world.topology}"
    yield "GPUs        " + (
        "; ".join(f"rank {r}: {gpu or 'none'}" for r, gpu in enumerate(gpus) if any(gpus)) or "none"
    )
    yield f"processors  {len(os.sched_getaffinity(0))} for rank 0, of {os.cpu_count()}"
    yield ""
    yield "setting                       value      from                 meaning (allowed)"
    settings = job.switches.settings
    shown_names = Settings.documented().keys() | settings.origins.keys()
    for name, field in Settings.fields().items():
        if name not in shown_names:
            continue
        value, origin = getattr(settings, name), settings.origins.get(name, "default")
        what = f"{field.metadata['meaning']} ({allowed(field)})"
        part = field.metadata.get("part")
        shown = f"  :{part}=" if part else f"TFDIST_{name.upper()}"
        yield f"{shown:<29} {value!s:<10} {origin:<20} {what}"
    yield ""
    if measured:
        yield "measured, ms:   " + "".join(f"{size // 1024:>9} KiB" for size in measured.sizes_bytes)
        for name, times in (("MPI", measured.base), ("chosen", measured.chosen)):
            yield f"{name:<16}" + "".join(f"{seconds * 1e3:>13.3f}" for seconds in times)
        payload = autotune.size_text(measured.sizes_bytes[-1])
        for way, seconds in (*measured.tried, *measured.chunkings):
            yield f"{way}: {payload} in {seconds * 1e3:.1f} ms"
        chosen = measured.choice
        yield f"chosen          MPI below {chosen.crossover_bytes / 1024:g} KiB, else {chosen.engine}"
        yield ""
    problems = [f"rank {rank}: {problem}" for rank, found in enumerate(wrong) for problem in found]
    yield "self-test   " + ("; ".join(problems) if problems else "all collectives give the right results")


def _wrong_results(until: float) -> list[str]:
    """Test the collectives with growing arrays until the time is over, and return an error message for each failure."""
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


if __name__ == "__main__":
    sys.exit(trace(sys.argv[2:]) if sys.argv[1:2] == ["trace"] else main())
