"""Choice of the engine: the one that is set, or the fastest by measurement at the first gradients (autotune)."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core.log import announce
from tfdist.core.settings import Settings, SettingsError, settings_difference
from tfdist.core.timeline import Silent
from tfdist.engine import _mpi_engine, _process_memory_engine, _shared_memory_engine, engines
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Bucket, Choice, Engine
from tfdist.transport.interfaces import World

# The table of engines, in the order in which they are tried.
engines.register("mpi", _mpi_engine.candidates)
engines.register("shared", _shared_memory_engine.candidates)
engines.register("direct", _process_memory_engine.candidates)

BASE: Engine = _mpi_engine.MpiEngine()
SIZES_BYTES = (1 << 12, 1 << 15, 1 << 18, 1 << 21, 1 << 23, 1 << 25)
_PAYLOAD_BYTES = 1 << 25
_REPETITIONS = 5
_BASE_ALONE = Choice(BASE, math.inf, BASE)
_PLACE = "the measurement of the engine"


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Rank 0's medians in seconds.

    Attributes:
      tried: the engines beside the base, and how long each took for 32 MiB; empty if there is none.
      base: through MPI, for each of ``SIZES_BYTES``.
      fastest: by the fastest of those tried, likewise.
    """

    tried: tuple[tuple[Engine, float], ...]
    base: tuple[float, ...]
    fastest: tuple[float, ...]

    @property
    def choice(self) -> Choice:
        """What follows: the fastest engine, and the size from which on it is faster than MPI."""
        if not self.tried:
            return _BASE_ALONE
        rows = list(zip(SIZES_BYTES, self.base, self.fastest, strict=True))
        # The choice that loses least over all sizes: a single measurement may be off.
        losses = {
            crossover: sum((own if size >= crossover else base) / min(base, own) for size, base, own in rows)
            for crossover in (0, *SIZES_BYTES[1:], math.inf)
        }
        return Choice(_fastest(self.tried), min(losses, key=losses.__getitem__), BASE)


def _fastest(tried: Sequence[tuple[Engine, float]]) -> Engine:
    return min(tried, key=lambda each: each[1])[0]


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
            return Choice(candidates[0], self._crossover_bytes(0.0), BASE)
        found = self._measured(candidates).choice
        default = found.crossover_bytes if settings.engine == "auto" else 0.0
        choice = dataclasses.replace(found, crossover_bytes=self._crossover_bytes(default))
        announce(f"the engine was measured; TFDIST_OPTIONS={_pinned(choice)} pins what was found")
        return choice

    def _crossover_bytes(self, default: float) -> float:
        given = self._settings().shared_from_kb
        return float(given) * 1024 if given else default

    def measure(self) -> Measurement:
        """Time the engines. Collective: all ranks; a fraction of a second."""
        return self._measured(engines.candidates(self._world, self._settings()))

    def _measured(self, candidates: Sequence[Engine]) -> Measurement:
        timed = [(engine, self._times(Choice(engine, 0, BASE), [_PAYLOAD_BYTES])[0]) for engine in candidates]
        usable = [(engine, seconds) for engine, seconds in timed if seconds < math.inf]
        tried = tuple(self._world.control.broadcast_object(usable, _PLACE))  # all must do alike
        base = tuple(self._times(_BASE_ALONE, SIZES_BYTES))
        fastest = tuple(self._times(Choice(_fastest(tried), 0, BASE), SIZES_BYTES)) if tried else ()
        measurement: Measurement = self._world.control.broadcast_object(Measurement(tried, base, fastest), _PLACE)
        return measurement

    def _times(self, choice: Choice, sizes_bytes: Sequence[int]) -> list[float]:
        """Median seconds for a bucket of each size; infinite if the engine cannot be had, on all ranks."""
        arrays = [np.ones(size // 4, np.float32) for size in sizes_bytes]
        buckets = [Bucket(f"{a.nbytes} bytes", "mean", a.dtype, (a.size,)) for a in arrays]
        exchanges = [AllReduce(bucket, tuned=True) for bucket in buckets]
        collective = Collective(_PLACE, exchanges, self._world, Silent())  # these are not the training's steps
        collective.open(choice)
        if exchanges[0].engine != choice.engine and not math.isinf(choice.crossover_bytes):
            return [math.inf] * len(sizes_bytes)
        times: list[list[float]] = [[] for _ in sizes_bytes]
        for _ in range(1 + _REPETITIONS):
            for number, (exchange, array) in enumerate(zip(exchanges, arrays, strict=True)):
                start = time.perf_counter()
                exchange.load([array])
                collective.communicate(number)
                exchange.results()
                times[number].append(time.perf_counter() - start)
        return [statistics.median(t[1:]) for t in times]  # the first touches new memory


def _pinned(choice: Choice) -> str:
    if math.isinf(choice.crossover_bytes):
        return choice.base.settings()
    engine, *more = choice.engine.settings().split(",")
    return ",".join([engine, f"shared_from_kb={choice.crossover_bytes / 1024:g}", *more])
