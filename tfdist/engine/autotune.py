"""Which way is fastest on this machine, and in pieces of what size: measured when the first gradients are to travel."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np

from tfdist.core.settings import SettingsError, log, settings_difference
from tfdist.core.timeline import Silent
from tfdist.engine.all_reduce import Reduction
from tfdist.engine.collective import Collective
from tfdist.graph.job import Job, Tuning
from tfdist.transport._shared_memory import aligned

SIZES_BYTES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23, 1 << 25)
PIECES_BYTES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
_WAYS_PAYLOAD_BYTES = 1 << 25
_REPETITIONS = 5
_LARGE_BYTES = 1 << 22
_PRIVATELY = Tuning(math.inf, 0)


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Rank 0's medians in seconds.

    Attributes:
      ways: of a node's own that were tried, and how long each took for 32 MiB; empty if there is none.
      private: through MPI, for each of ``SIZES_BYTES``.
      own: in the fastest of the ways, likewise.
    """

    ways: tuple[tuple[Tuning, float], ...]
    private: tuple[float, ...]
    own: tuple[float, ...]

    @property
    def tuning(self) -> Tuning:
        """What follows: the fastest way, and the size from which on it is faster than MPI."""
        if not self.ways:
            return _PRIVATELY
        rows = list(zip(SIZES_BYTES, self.private, self.own, strict=True))
        # The choice that loses least over all sizes: a single measurement may be off.
        losses = {
            crossover: sum((own if size >= crossover else p) / min(p, own) for size, p, own in rows)
            for crossover in (0, *SIZES_BYTES[1:], math.inf)
        }
        return dataclasses.replace(fastest(self.ways), crossover_bytes=min(losses, key=losses.__getitem__))


def fastest(ways: Sequence[tuple[Tuning, float]]) -> Tuning:
    """The one that took least."""
    return min(ways, key=lambda way: way[1])[0]


def ensure(job: Job) -> None:
    """Set ``job.tuning``, as the settings say or by measurement. Collective: all ranks at its first call."""
    if job.tuning is not None:
        return
    settings = job.settings
    difference = settings_difference(job.world.control.all_gather_object(settings, "the comparison of settings"))
    if difference:
        raise SettingsError(difference)
    candidates = _candidates(job)
    if not candidates:
        job.tuning = _PRIVATELY
    elif settings.engine != "auto" and len(candidates) == 1:
        job.tuning = dataclasses.replace(candidates[0], crossover_bytes=_shared_from(job, 0.0))
    else:
        found = measure(job).tuning
        default = found.crossover_bytes if settings.engine == "auto" else 0.0
        job.tuning = dataclasses.replace(found, crossover_bytes=_shared_from(job, default))
        if job.world.rank == 0:
            log(f"the engine was measured; TFDIST_OPTIONS={_pinned(job.tuning)} pins what was found")


def _candidates(job: Job) -> list[Tuning]:
    """The ways of a node's own that the settings and the system allow."""
    settings = job.settings
    direct = [Tuning(0, 0)] if job.world.direct else []
    pieces = [aligned(int(float(settings.piece_kb) * 1024))] if settings.piece_kb else PIECES_BYTES
    # Large pieces take much of /dev/shm, and only to be tried where there is a better way.
    staged = [
        Tuning(0, piece) for piece in pieces if not (direct and settings.engine == "auto" and piece > _LARGE_BYTES)
    ]
    return {"mpi": [], "direct": direct or staged, "shared": staged, "auto": direct + staged}[settings.engine]


def _shared_from(job: Job, default: float) -> float:
    return float(job.settings.shared_from_kb) * 1024 if job.settings.shared_from_kb else default


def _pinned(tuning: Tuning) -> str:
    if math.isinf(tuning.crossover_bytes):
        return "engine=mpi"
    from_kb = f"shared_from_kb={tuning.crossover_bytes / 1024:g}"
    if tuning.piece_bytes:
        return f"engine=shared,{from_kb},piece_kb={tuning.piece_bytes / 1024:g}"
    return f"engine=direct,{from_kb}"


def measure(job: Job) -> Measurement:
    """Time the ways. Collective: all ranks; a fraction of a second."""
    place = "the measurement of the engine"
    timed = [(way, _times(job, way, [_WAYS_PAYLOAD_BYTES], _REPETITIONS)[0]) for way in _candidates(job)]
    own_ways = [(way, seconds) for way, seconds in timed if seconds < math.inf]
    ways = tuple(job.world.control.broadcast_object(own_ways, place))  # all must do alike
    private = tuple(_times(job, _PRIVATELY, SIZES_BYTES, _REPETITIONS))
    own = tuple(_times(job, fastest(ways), SIZES_BYTES, _REPETITIONS)) if ways else ()
    return job.world.control.broadcast_object(Measurement(ways, private, own), place)


def _times(job: Job, tuning: Tuning, sizes_bytes: Sequence[int], repetitions: int) -> list[float]:
    previous, job.tuning = job.tuning, tuning
    recorder, job.recorder = job.recorder, Silent()  # these are not the training's steps
    try:
        collective = Collective("the measurement of the engine", [], job)
        arrays = [np.ones(size // 4, np.float32) for size in sizes_bytes]
        for array in arrays:
            collective.exchanges.append(Reduction(f"{array.nbytes} bytes", "mean", array.dtype, [array.size], True))
        collective.open()
        if (
            collective.channel is not None
            and collective.channel.node is None
            and not math.isinf(tuning.crossover_bytes)
        ):
            return [math.inf] * len(sizes_bytes)  # on all ranks
        times: list[list[float]] = [[] for _ in sizes_bytes]
        for _ in range(1 + repetitions):
            for number, (exchange, array) in enumerate(zip(collective.exchanges, arrays, strict=True)):
                start = time.perf_counter()
                exchange.load([array])
                collective.communicate(number)
                exchange.results()
                times[number].append(time.perf_counter() - start)
    finally:
        job.tuning, job.recorder = previous, recorder
    return [statistics.median(t[1:]) for t in times]  # the first touches new memory
