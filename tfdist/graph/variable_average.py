"""Variable average: the mean over the ranks of what blocks of local steps have changed, between two calls."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.core.wires import PLAIN, Format
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.graph.fusing import fused
from tfdist.graph.job import Job
from tfdist.graph.op_builder import Builder, Part, by_value, plan_names


class VariableAverage:
    """One fused average of floating-point arrays, between two calls of a function or two runs of a session.

    It is made while the graph is built, and its collective belongs to this graph.
    Collective: all ranks, with the same names, dtypes and shapes.

    Args:
      fragment: number of the fragment of variables whose changes are averaged.
      changed: these variables, in the same order on all ranks. Their changes travel in ``format``.
      whole: variables whose values are averaged, and travel unchanged.
      names: names of the changed and the whole variables.
      format: format of the changes.
      job: the ranks and settings.
      place: distinguishes this average from others of the same variables; empty if there are none.
      settings: text that must be the same on all ranks.
      deferred: True if the results are taken some steps later.

    Attributes:
      fragment: number of the fragment.
      whole: variables whose values are averaged.
      collective: collective of the exchanges.
    """

    def __init__(
        self,
        fragment: int,
        changed: Sequence[Any],
        whole: Sequence[Any],
        names: Sequence[str],
        format: Format,
        job: Job,
        place: str,
        settings: str,
        deferred: bool,
    ) -> None:
        self.fragment, self.whole, changes = fragment, whole, len(changed)
        specs = [tf.TensorSpec(v.shape, v.dtype.base_dtype) for v in [*changed, *whole]]
        shown, number = plan_names(names)
        self._parts: list[Part] = []
        for first, last, how in ((0, changes, format), (changes, len(specs), PLAIN)):
            own = {i: specs[i] for i in range(first, last)}
            self._parts += fused(own, shown, job, more=[settings], kind="variable", format=how)
        name = f"average of variables {number}{place}"
        exchanges = [part.exchange for part in self._parts]
        collective = Collective(name, exchanges, job.world, job.recorder, averages=True, blocks=True)
        self.collective = Builder(collective, self._parts, job, job.switches.shares, names=names).collective
        self.collective.deferred = deferred
        self._dtypes = [spec.dtype.as_numpy_dtype for spec in specs]
        self._job = job

    def begin(self, values: Sequence[np.ndarray]) -> None:
        """Start the exchanges, on another thread. ``results`` waits for their ends."""
        worker = self.collective.worker
        for number in self._loaded(values):
            worker.submit(number, functools.partial(self.collective.communicate, number))

    def results(self) -> list[np.ndarray]:
        """Wait until the exchanges that ``begin`` has started are done, and return the means over the ranks."""
        return self._means(self.collective.results())

    def now(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the means over the ranks."""
        for number in self._loaded(values):
            self.collective.communicate(number)
        return self._means([exchange.results() for exchange in self.collective.exchanges])

    def _loaded(self, values: Sequence[np.ndarray]) -> Iterator[int]:
        """Load the exchanges, and yield the number of each."""
        for number, part in enumerate(self._parts):
            sent = zip(part.values, part.tensors, strict=True)
            with np.errstate(over="ignore"):  # an infinity is a value, as in TensorFlow
                arrays = [np.asarray(values[i], spec.dtype.as_numpy_dtype) for i, spec in sent]
            self.collective.worker.wait_for(number)  # its result was dropped, perhaps with an earlier session
            if number == 0:
                self._job.data_comparison.bring(self.collective.name, arrays)
            self.collective.exchanges[number].load(arrays)
            yield number

    def _means(self, results: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
        means = by_value(self._parts, results)
        return [mean.astype(dtype, copy=False) for (mean,), dtype in zip(means, self._dtypes, strict=True)]

    @property
    def rounds(self) -> bool:
        """Whether exchanges lose something by rounding, which a rank keeps back; the same on all ranks."""
        rounds = any(getattr(exchange, "has_rest", False) for exchange in self.collective.exchanges)
        return rounds and len(self._job.world.topology.nodes) > 1

    def take_lost(self) -> list[np.ndarray]:
        """Take what rounding has lost on this rank: the sum over the ranks is what the last means lack.

        Returns:
          For each value, float32 [elements].
        """
        found = []
        for exchange, part in zip(self.collective.exchanges, self._parts, strict=True):
            assert isinstance(exchange, AllReduce)
            sizes = [int(spec.shape.num_elements()) for spec in part.tensors]
            lost = exchange.take_lost() if exchange.has_rest else np.zeros(sum(sizes), np.float32)
            found.append(np.split(lost, np.cumsum(sizes)[:-1]))
        return [lost for (lost,) in by_value(self._parts, found)]
