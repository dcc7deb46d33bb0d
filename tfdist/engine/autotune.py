"""Choice of the engine: the one that is set, or the fastest by measurement at the first gradients (autotune)."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core.flight_recorder import SILENT
from tfdist.core.log import announce
from tfdist.core.settings import Settings, SettingsError, settings_difference
from tfdist.engine import _mpi_engine, _process_memory_engine, _shared_memory_engine, engines
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Bucket, Choice, Engine
from tfdist.transport.interfaces import World

# The table of engines; the first is taken unless a later one is clearly faster.
engines.register("mpi", _mpi_engine.candidates)
engines.register("direct", _process_memory_engine.candidates)
engines.register("shared", _shared_memory_engine.candidates)

BASE: Engine = _mpi_engine.MpiEngine()
SIZES_BYTES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23, 1 << 25)
PAYLOAD_BYTES = 1 << 25
_REPETITIONS = 5
# Of the time of an engine before it. Shared memory in pieces of 1 MiB took 0.66 to 1.2 of the direct way's time here
# from start to start, and twice as long in training steps with 717 MB, where nothing stays in a cache.
_CLEARLY = 0.5
_BASE_ALONE = Choice(BASE, math.inf, BASE)
_PLACE = "the measurement of the engine"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Rank 0's medians in seconds.

    Attributes:
      tried: the engines beside the base, and how long each took for ``PAYLOAD_BYTES``; empty if there is none.
      base: through MPI, for each of ``SIZES_BYTES``.
      chosen: by the one of them that is chosen, likewise.
    """

    tried: tuple[tuple[Engine, float], ...]
    base: tuple[float, ...]
    chosen: tuple[float, ...]

    @property
    def engine(self) -> Engine:
        """The first, in its fastest variant, unless a later one is clearly faster: else noise would choose."""
        return _preferred(self.tried)

    @property
    def choice(self) -> Choice:
        """What follows: the fastest engine, and the size from which on it is faster than MPI."""
        if not self.tried:
            return _BASE_ALONE
        rows = list(zip(SIZES_BYTES, self.base, self.chosen, strict=True))
        # The choice that loses least over all sizes: a single measurement may be off.
        losses = {
            crossover: sum((own if size >= crossover else base) / min(base, own) for size, base, own in rows)
            for crossover in (0, *SIZES_BYTES[1:], math.inf)
        }
        return Choice(self.engine, min(losses, key=losses.__getitem__), BASE)

    def __str__(self) -> str:
        return ", ".join(f"{engine} {seconds * 1e3:.1f} ms" for engine, seconds in self.tried)


def _preferred(tried: Sequence[tuple[Engine, float]]) -> Engine:
    fastest: dict[str, tuple[Engine, float]] = {}  # of each engine's variants
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
      settings: as they are now.

    Attributes:
      choice: None until the first gradients are to travel.
    """

    def __init__(self, world: World, settings: Callable[[], Settings]) -> None:
        self._world = world
        self._settings = settings
        self.choice: Choice | None = None

    @property
    def device(self) -> str:
        """Where tensors must lie to travel: in a graph that is built before an engine has been chosen, too."""
        return (self.choice.engine if self.choice else BASE).device

    @property
    def current(self) -> Choice:
        """What was chosen; MPI alone until then."""
        return self.choice or _BASE_ALONE

    def choose(self) -> Choice:
        """As the settings say, or by measurement. Collective: all ranks at the first call.

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
            self.choice = self._chosen(engines.candidates(self._world, settings))
        return self.choice

    def _chosen(self, candidates: Sequence[Engine]) -> Choice:
        settings = self._settings()
        if not candidates:
            return _BASE_ALONE
        if settings.engine != "auto" and len(candidates) == 1:
            return self._with_small(Choice(candidates[0], self._crossover_bytes(0.0), BASE))
        measurement = self._measured(candidates)
        found = measurement.choice
        default = found.crossover_bytes if settings.engine == "auto" else 0.0
        choice = dataclasses.replace(found, crossover_bytes=self._crossover_bytes(default))
        announce(
            f"the engine was measured ({PAYLOAD_BYTES >> 20} MiB: {measurement}); "
            f"TFDIST_OPTIONS={_pinned(choice)} pins what was found"
        )
        return self._with_small(choice)

    def _with_small(self, choice: Choice) -> Choice:
        # Only beside an engine that shares memory: where it can, so can this one. It is not measured: it has one
        # meeting of the ranks, the least there is.
        if choice.engine.needs(1) is None:
            return choice
        return dataclasses.replace(choice, small=_shared_memory_engine.for_small_buckets(self._world))

    def _crossover_bytes(self, default: float) -> float:
        given = self._settings().shared_from_kb
        return float(given) * 1024 if given else default

    def measure(self) -> Measurement:
        """Time the engines. Collective: all ranks; a fraction of a second."""
        return self._measured(engines.candidates(self._world, self._settings()))

    def _measured(self, candidates: Sequence[Engine]) -> Measurement:
        trials = [_Trial(self._world, Choice(engine, 0, BASE), [PAYLOAD_BYTES]) for engine in candidates]
        trials = [trial for trial in trials if trial.usable]
        timed = [(trial.choice.engine, seconds) for trial, (seconds,) in zip(trials, _in_turn(trials), strict=True)]
        tried = tuple(self._world.control.broadcast_object(timed, _PLACE))  # all must do alike
        choices = [_BASE_ALONE, *([Choice(_preferred(tried), 0, BASE)] if tried else [])]
        base, *chosen = _in_turn([_Trial(self._world, choice, SIZES_BYTES) for choice in choices])
        found = Measurement(tried, tuple(base), tuple(chosen[0]) if chosen else ())
        measurement: Measurement = self._world.control.broadcast_object(found, _PLACE)
        return measurement


class _Trial:
    """One way, ready to be timed with a bucket of each size. Collective: all ranks."""

    def __init__(self, world: World, choice: Choice, sizes_bytes: Sequence[int]) -> None:
        self.choice = choice
        self._arrays = [np.ones(size // 4, np.float32) for size in sizes_bytes]
        buckets = [Bucket(f"{a.nbytes} bytes", "mean", a.dtype, (a.size,)) for a in self._arrays]
        self._exchanges = [AllReduce(bucket, tuned=True) for bucket in buckets]
        self._collective = Collective(_PLACE, self._exchanges, world, SILENT)  # these are not the training's steps
        self._collective.open(choice)

    @property
    def usable(self) -> bool:
        """Whether the engine can be had; alike on all ranks."""
        return self._exchanges[0].engine == self.choice.engine

    def seconds(self) -> list[float]:
        """One measurement of each size."""
        times = []
        for number, (exchange, array) in enumerate(zip(self._exchanges, self._arrays, strict=True)):
            start = time.perf_counter()
            exchange.load([array])
            self._collective.communicate(number)
            exchange.results()
            times.append(time.perf_counter() - start)
        return times


def _in_turn(trials: Sequence[_Trial]) -> list[list[float]]:
    """Median seconds of each trial for each size. In turn: what else the machine does hits all alike, and none finds
    what it needs in the caches, as in training."""
    # (The first touches new memory.)
    _, *rounds = [[trial.seconds() for trial in trials] for _ in range(1 + _REPETITIONS)]
    return [[statistics.median(times) for times in zip(*trial, strict=True)] for trial in zip(*rounds, strict=True)]


def _pinned(choice: Choice) -> str:
    if math.isinf(choice.crossover_bytes):
        return choice.base.settings()
    engine, *more = choice.engine.settings().split(",")
    return ",".join([engine, f"shared_from_kb={choice.crossover_bytes / 1024:g}", *more])
