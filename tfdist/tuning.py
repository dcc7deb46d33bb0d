"""Which way is faster on this machine, and in pieces of what size: measured when the first gradients are to travel."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np

from tfdist.collectives import Collective
from tfdist.exchanges import Reduction
from tfdist.job import Job, Tuning
from tfdist.settings import log

SIZES_BYTES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23, 1 << 25)
PIECES_BYTES = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
_PIECES_PAYLOAD_BYTES = 1 << 25
_REPETITIONS = 5


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Rank 0's medians in seconds.

    Attributes:
      private: through MPI, for each of ``SIZES_BYTES``.
      shared: through the node's memory, likewise; empty if there is none.
      pieces: through the node's memory in each of ``PIECES_BYTES``, for one size.
    """

    private: tuple[float, ...]
    shared: tuple[float, ...]
    pieces: tuple[float, ...]

    @property
    def tuning(self) -> Tuning:
        """What follows: the fastest piece, and the size from which on shared memory is faster."""
        if not self.shared:
            return Tuning(math.inf, 0)
        rows = list(zip(SIZES_BYTES, self.private, self.shared, strict=True))
        # The choice that loses least over all sizes: a single measurement may be off.
        losses = {
            crossover: sum((s if size >= crossover else p) / min(p, s) for size, p, s in rows)
            for crossover in (0, *SIZES_BYTES[1:], math.inf)
        }
        fastest = min(zip(self.pieces, PIECES_BYTES, strict=True))[1]
        return Tuning(min(losses, key=losses.__getitem__), fastest)


def ensure(job: Job) -> None:
    """Set ``job.tuning``, as the settings say or by measurement. Collective: all ranks at its first call."""
    if job.tuning is not None:
        return
    settings = job.settings
    if settings.engine == "mpi":
        job.tuning = Tuning(math.inf, 0)
    elif settings.piece_kb and (settings.engine == "shared" or settings.shared_from_kb):
        shared_from = 0.0 if settings.engine == "shared" else float(settings.shared_from_kb) * 1024
        job.tuning = Tuning(shared_from, int(float(settings.piece_kb) * 1024))
    else:
        found = measure(job).tuning
        pinned = {
            "shared_from_kb": settings.shared_from_kb or f"{found.crossover_bytes / 1024:g}",
            "piece_kb": settings.piece_kb or f"{found.piece_bytes / 1024:g}",
        }
        shared_from = 0.0 if settings.engine == "shared" else float(pinned["shared_from_kb"]) * 1024
        job.tuning = Tuning(shared_from, int(float(pinned["piece_kb"]) * 1024))
        if job.world.rank == 0:
            text = ",".join(f"{name}={value}" for name, value in pinned.items())
            log(f"the engine was measured; TFDIST_OPTIONS={text} pins what was found")


def measure(job: Job) -> Measurement:
    """Time the ways. Collective: all ranks; a fraction of a second."""
    place = "the measurement of the engine"
    own_pieces = [_times(job, Tuning(0, piece), [_PIECES_PAYLOAD_BYTES], 3)[0] for piece in PIECES_BYTES]
    pieces = tuple(job.world.control.broadcast_object(own_pieces, place))  # all must cut alike
    best = min(zip(pieces, PIECES_BYTES, strict=True))[1]
    own = Measurement(
        tuple(_times(job, Tuning(math.inf, 0), SIZES_BYTES, _REPETITIONS)),
        tuple(_times(job, Tuning(0, best), SIZES_BYTES, _REPETITIONS)),
        pieces,
    )
    return job.world.control.broadcast_object(own, place)


def _times(job: Job, tuning: Tuning, sizes_bytes: Sequence[int], repetitions: int) -> list[float]:
    previous, job.tuning = job.tuning, tuning
    try:
        collective = Collective("the measurement of the engine", [], job)
        arrays = [np.ones(size // 4, np.float32) for size in sizes_bytes]
        for array in arrays:
            collective.exchanges.append(Reduction(f"{array.nbytes} bytes", "mean", array.dtype, [array.size], True))
        collective.open()
        times: list[list[float]] = [[] for _ in sizes_bytes]
        for _ in range(repetitions):
            for number, (exchange, array) in enumerate(zip(collective.exchanges, arrays, strict=True)):
                start = time.perf_counter()
                exchange.load([array])
                collective.communicate(number)
                exchange.results()
                times[number].append(time.perf_counter() - start)
    finally:
        job.tuning = previous
    return [statistics.median(t) for t in times]
