"""Choice of the engine: from the settings, or the fastest one, which is measured at the first gradients (autotune)."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core.alignment import aligned
from tfdist.core.flight_recorder import SILENT
from tfdist.core.log import announce
from tfdist.core.settings import IN_THE_GRAPH, Settings, SettingsError, settings_difference
from tfdist.engine import (
    _mapped_memory_engine,
    _mpi_engine,
    _process_memory_engine,
    _shared_memory_engine,
    _small_buckets,
)
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Bucket, Choice, Engine
from tfdist.transport.interfaces import Chunking, World

_MPI = "mpi"
# By names in the setting. Each returns the variants that the system allows. The first is taken unless a later one is
# clearly faster.
_CANDIDATES: dict[str, Callable[[World, Settings], Sequence[Engine]]] = {
    _MPI: _mpi_engine.candidates,
    "mapped": _mapped_memory_engine.candidates,
    "direct": _process_memory_engine.candidates,
    "shared": _shared_memory_engine.candidates,
}

BASE: Engine = _mpi_engine.MpiEngine()
SIZES_BYTES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23, 1 << 25)
_CHUNKINGS = (Chunking(), Chunking(1 << 16, 8), Chunking(1 << 18, 4), Chunking(1 << 18, 16), Chunking(1 << 20, 4))
_FASTER = 0.95  # of the first chunking's time: smaller differences are noise
# Limits of the measurement between machines: networks differ by a factor of a hundred.
_LONGEST_SECONDS = 0.15
_PROBE_BYTES = 1 << 21
_LARGEST_BETWEEN_MACHINES_BYTES = 1 << 23  # as large as buckets are
# Between machines latency decides for smaller buckets, and MPI needs fewer messages. This limit is not measured: it
# decides the order in which the ranks' values are added, and two runs must get the same bits.
_CROSSOVER_BETWEEN_MACHINES_BYTES = 1 << 16
_SMALLEST_MAPPED_BYTES = 1 << 16
_MOST_THREADS = 4
_REPETITIONS = 5
# Share of an earlier engine's time below which an engine is preferred. Shared memory in pieces of 1 MiB took 0.66 to
# 1.2 of the direct engine's time here, varying from start to start. It took twice as long in training steps with
# 717 MB, where nothing stays in a cache.
_CLEARLY = 0.5
_BASE_ALONE = Choice(BASE, math.inf, BASE)
_PLACE = "the measurement of the engine"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Medians of rank 0's times, in seconds.

    Attributes:
      sizes_bytes: measured sizes, ascending; engines and chunkings are compared with the last one.
      tried: the engines other than the base, with their times; empty if there are none.
      chunkings: the chunkings between machines, with their times; empty on one machine.
      base: time through MPI for each size; empty if not measured.
      chosen: time of the chosen engine for each size; empty if not measured.
    """

    sizes_bytes: tuple[int, ...]
    tried: tuple[tuple[Engine, float], ...]
    chunkings: tuple[tuple[Chunking, float], ...]
    base: tuple[float, ...]
    chosen: tuple[float, ...]

    @property
    def choice(self) -> Choice:
        """The fastest engine, the size from which on it is faster than MPI, and the fastest chunking."""
        chunking = self._chunking()
        if not self.tried:
            return dataclasses.replace(_BASE_ALONE, chunking=chunking)
        return Choice(_preferred(self.tried), self._crossover_bytes(), BASE, chunking=chunking)

    def _chunking(self) -> Chunking:
        if not self.chunkings:
            return Chunking()
        (first, first_seconds), *_ = self.chunkings
        fastest, seconds = min(self.chunkings, key=lambda tried: tried[1])
        return fastest if seconds < _FASTER * first_seconds else first

    def _crossover_bytes(self) -> float:
        if self.chunkings:
            return _CROSSOVER_BETWEEN_MACHINES_BYTES
        rows = list(zip(self.sizes_bytes, self.base, self.chosen, strict=True))
        # Take the limit that loses least over all sizes: a single measurement may be wrong.
        losses = {
            crossover: sum((own if size >= crossover else base) / min(base, own) for size, base, own in rows)
            for crossover in (0, *self.sizes_bytes[1:], math.inf)
        }
        return min(losses, key=losses.__getitem__)

    def __str__(self) -> str:
        return ", ".join(f"{way} {seconds * 1e3:.1f} ms" for way, seconds in [*self.tried, *self.chunkings])


def _preferred(tried: Sequence[tuple[Engine, float]]) -> Engine:
    """Return the first engine in its fastest variant, unless a later one is clearly faster: noise must not decide."""
    fastest: dict[str, tuple[Engine, float]] = {}  # the fastest variant of each engine
    for engine, seconds in tried:
        if engine.name not in fastest or seconds < fastest[engine.name][1]:
            fastest[engine.name] = engine, seconds
    (best, best_seconds), *others = fastest.values()
    for engine, seconds in others:
        if seconds < _CLEARLY * best_seconds:
            best, best_seconds = engine, seconds
    return best


class Engines:
    """The engines of a job, and the one in use.

    Args:
      world: the ranks.
      settings: function that returns the present settings.

    Attributes:
      choice: the choice; None before the first exchange of gradients.
    """

    def __init__(self, world: World, settings: Callable[[], Settings]) -> None:
        self._world = world
        self._settings = settings
        self._spread = len(world.topology.nodes) > 1
        self.choice: Choice | None = None

    @property
    def device(self) -> str:
        """Device where tensors must lie for an exchange; a graph may need it before an engine has been chosen."""
        return (self.choice.engine if self.choice else BASE).device

    @property
    def current(self) -> Choice:
        """The choice; MPI alone before an engine has been chosen."""
        return self.choice or _BASE_ALONE

    def choose(self) -> Choice:
        """Choose the engine by the settings or by measurement. Collective: all ranks at the first call.

        Raises:
          SettingsError: the ranks' settings differ.
        """
        if self.choice is None:
            settings = self._settings()
            difference = settings_difference(
                self._world.control.all_gather_object(settings, "the comparison of settings")
            )
            if difference:
                raise SettingsError(difference)
            automatic = self._settings().engine in ("auto", *IN_THE_GRAPH)
            self.choice = self._by_rule() if automatic else self._chosen(self._candidates())
        return self.choice

    def _by_rule(self) -> Choice:
        """Return mapped memory where the ranks of a node can map each other's memory, else MPI."""
        mapped = self._candidates_of("mapped")
        if not mapped:
            return self._with_small(_BASE_ALONE)
        return self._with_small(Choice(mapped[-1], _SMALLEST_MAPPED_BYTES, BASE))

    def _candidates_of(self, name: str) -> Sequence[Engine]:
        found = _CANDIDATES[name](self._world, self._settings())
        return [engine for engine in found if getattr(engine, "workers", 1) <= _MOST_THREADS]

    def _chosen(self, candidates: Sequence[Engine]) -> Choice:
        settings = self._settings()
        if not candidates and not self._spread:
            return _BASE_ALONE
        if settings.engine != "auto" and len(candidates) <= 1 and len(self._chunkings()) <= 1:
            engine, chunking = (*candidates, BASE)[0], (*self._chunkings(), Chunking())[0]
            return self._with_small(Choice(engine, self._crossover_bytes(0.0), BASE, chunking=chunking))
        measurement = self._measured(candidates, each_size=not self._spread)
        found = measurement.choice
        default = found.crossover_bytes if settings.engine == "auto" else 0.0
        choice = dataclasses.replace(found, crossover_bytes=self._crossover_bytes(default))
        size = size_text(measurement.sizes_bytes[-1])
        pin = f"; TFDIST_ENGINE={_pinned(choice, self._spread)} pins what was found"
        if settings.engine in IN_THE_GRAPH:  # the pin would replace this setting
            pin = ""
        announce(f"{self._world.size} ranks; the engine was measured ({size}: {measurement}){pin}")
        return self._with_small(choice)

    def _chunkings(self) -> Sequence[Chunking]:
        """Return the chunkings to choose from; none on one machine."""
        if not self._spread:
            return ()
        settings = self._settings()
        message_kb, pieces = settings.message_kb, settings.in_flight
        chunkings = [
            dataclasses.replace(
                chunking,
                message_bytes=aligned(int(float(message_kb) * 1024)) if message_kb else chunking.message_bytes,
                pieces=int(float(pieces)) if pieces else chunking.pieces,
            )
            for chunking in _CHUNKINGS
        ]
        return list(dict.fromkeys(chunkings))

    def _with_small(self, choice: Choice) -> Choice:
        # Not measured: small buckets wait only once for the other ranks or the network, which is the minimum.
        shares = choice.engine.needs(1) is not None  # an engine that shares memory: small buckets can, too
        attachments = self._spread and choice.engine == BASE and self._settings().engine != _MPI
        if not (shares or attachments):
            return choice
        return dataclasses.replace(choice, small=_small_buckets.for_small_buckets(self._world.size, self._spread))

    def _crossover_bytes(self, default: float) -> float:
        given = self._settings().shared_from_kb
        return float(given) * 1024 if given else default

    def measure(self) -> Measurement:
        """Time the engines, which takes a fraction of a second. Collective: all ranks."""
        return self._measured(self._candidates(), each_size=True)

    def _candidates(self) -> list[Engine]:
        """Return the engines that the settings and the system allow. Collective: all ranks."""
        settings = self._settings()
        # If the setting names TensorFlow's collectives, these engines take the tensors that those do not take.
        names = [settings.engine] if settings.engine in _CANDIDATES else list(_CANDIDATES)
        return [engine for name in names for engine in _CANDIDATES[name](self._world, settings)]

    def _measured(self, candidates: Sequence[Engine], each_size: bool) -> Measurement:
        sizes = self._sizes_bytes()
        payload = sizes[-1:]
        trials = [_Trial(self._world, Choice(engine, 0, BASE), payload) for engine in candidates]
        tried = self._timed([trial for trial in trials if trial.usable])
        best = Choice(_preferred([(c.engine, s) for c, s in tried]), 0, BASE) if tried else _BASE_ALONE
        chunkings = self._timed(
            [_Trial(self._world, dataclasses.replace(best, chunking=p), payload) for p in self._chunkings()]
        )
        choices = [_BASE_ALONE, *([best] if tried else [])]
        # Between machines the crossover does not depend on this measurement.
        compared = [_Trial(self._world, choice, sizes) for choice in choices] if each_size else []
        base, chosen = [*(tuple(seconds) for seconds in _in_turn(compared)), (), ()][:2]
        found = Measurement(
            tuple(sizes),
            tuple((choice.engine, seconds) for choice, seconds in tried),
            tuple((choice.chunking, seconds) for choice, seconds in chunkings),
            base,
            chosen,
        )
        measurement: Measurement = self._world.control.broadcast_object(found, _PLACE)
        return measurement

    def _timed(self, trials: Sequence[_Trial]) -> Sequence[tuple[Choice, float]]:
        """Return rank 0's seconds for the first size: all ranks must choose by the same times."""
        timed = [(trial.choice, seconds) for trial, (seconds, *_) in zip(trials, _in_turn(trials), strict=True)]
        found: Sequence[tuple[Choice, float]] = self._world.control.broadcast_object(timed, _PLACE)
        return found

    def _sizes_bytes(self) -> Sequence[int]:
        if not self._spread:
            return SIZES_BYTES
        ((_, seconds),) = self._timed([_Trial(self._world, _BASE_ALONE, [_PROBE_BYTES])])
        largest = max(SIZES_BYTES[0], _PROBE_BYTES * _LONGEST_SECONDS / seconds)
        return [size for size in SIZES_BYTES if size <= min(largest, _LARGEST_BETWEEN_MACHINES_BYTES)]


class _Trial:
    """One choice of engine and chunking, to be timed with a bucket of each size. Collective: all ranks."""

    def __init__(self, world: World, choice: Choice, sizes_bytes: Sequence[int]) -> None:
        self.choice = choice
        self._arrays = [np.ones(size // 4, np.float32) for size in sizes_bytes]
        buckets = [Bucket(f"{a.nbytes} bytes", "mean", a.dtype, (a.size,)) for a in self._arrays]
        self._exchanges = [AllReduce(bucket, tuned=True) for bucket in buckets]
        self._collective = Collective(_PLACE, self._exchanges, world, SILENT)  # these are no steps of training
        self._collective.open(choice)

    @property
    def usable(self) -> bool:
        """Whether the engine could be opened; the same on all ranks."""
        return self._exchanges[0].engine == self.choice.engine

    def seconds(self) -> list[float]:
        """Return one measurement of each size."""
        times = []
        for number, (exchange, array) in enumerate(zip(self._exchanges, self._arrays, strict=True)):
            start = time.perf_counter()
            exchange.load([array])
            self._collective.communicate(number)
            exchange.results()
            times.append(time.perf_counter() - start)
        return times


def _in_turn(trials: Sequence[_Trial]) -> list[list[float]]:
    """Return the median seconds of each trial for each size.

    The trials take turns: other load affects all of them, and none finds its data in the caches, as in training."""
    # The first round is dropped: it touches new memory.
    _, *rounds = [[trial.seconds() for trial in trials] for _ in range(1 + _REPETITIONS)]
    return [[statistics.median(times) for times in zip(*trial, strict=True)] for trial in zip(*rounds, strict=True)]


def _pinned(choice: Choice, spread: bool) -> str:
    alone = math.isinf(choice.crossover_bytes)
    pin = [(choice.base if alone else choice.engine).settings()]
    pin += [] if alone else [f"shared_from_kb={choice.crossover_bytes / 1024:g}"]
    pin += (
        [f"message_kb={choice.chunking.message_bytes / 1024:g}", f"in_flight={choice.chunking.pieces}"]
        if spread
        else []
    )
    return ":".join(pin)


def size_text(size_bytes: int) -> str:
    """Return a size as text, in MiB, or in KiB below 1 MiB."""
    return f"{size_bytes >> 20} MiB" if size_bytes >= 1 << 20 else f"{size_bytes >> 10} KiB"
