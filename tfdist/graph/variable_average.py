"""Variable average: the mean over the ranks of what blocks of local steps have changed, at once or some steps later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tfdist.core.wires import PLAIN, Format
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.graph import function_state
from tfdist.graph.fusing import few, fused, to_wire
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless
from tfdist.graph.op_builder import Builder, Made, Part, signature

T = TypeVar("T")


class VariableAverage:
    """One fused, ordered average of floating-point tensors, in a graph or a function under construction.

    Collective: all ranks, with the same names, dtypes and shapes.

    Args:
      values: tensors to average, in the same order on all ranks: first changes of variables, then whole values.
      changes: number of changes. They travel in ``format``, and the values behind them unchanged.
      names: names of the variables.
      format: format of the changes.
      job: the ranks and settings.
      made_by: see ``op_builder.build``.
      place: distinguishes this average from others of the same variables; empty if there are none.
      settings: text that must be the same on all ranks.

    Attributes:
      collective: collective of the exchanges.
      layout: which value is in which exchange.
    """

    def __init__(
        self,
        values: Sequence[tf.Tensor],
        changes: int,
        names: Sequence[str],
        format: Format,
        job: Job,
        made_by: Callable[[], Made],
        place: str = "",
        settings: str = "",
    ) -> None:
        self._dtypes = [value.dtype for value in values]
        in_session = function_state.in_session()
        shown = list(names) if in_session else [numberless(name) for name in names]
        members: list[list[int]] = []
        parts: list[Part] = []
        for first, own, how in ((0, values[:changes], format), (changes, values[changes:], PLAIN)):
            sent, named = [to_wire(value, how) for value in own], shown[first:][: len(own)]
            lines = [signature("variable", name, value) for name, value in zip(named, sent, strict=True)]
            found, of_format = fused(sent, named, lines, job, more=[settings], format=how)
            members += [[first + i for i in of_bucket] for of_bucket in found]
            parts += of_format
        known = len(make_state(tf.compat.v1.get_default_graph()).world_collectives)
        name = f"average of variables {known if in_session else few(shown)}{place}"
        exchanges = [part.exchange for part in parts]
        collective = Collective(name, exchanges, job.world, job.recorder, averages=True, blocks=True)
        self._builder = Builder(collective, parts, job, job.switches.shares, made_by, names)
        self.collective = self._builder.collective
        sizes = [[int(tensor.shape.num_elements()) for tensor in part.tensors] for part in parts]
        self.layout = Layout(members, sizes, [d.as_numpy_dtype for d in self._dtypes], len(job.world.topology.nodes))

    def now(self) -> list[tf.Tensor]:
        """Build the average, and return the means, with the dtypes and shapes of the values."""
        means = self.layout.ordered(self._builder.build())
        return [tf.cast(mean, dtype) for mean, dtype in zip(means, self._dtypes, strict=True)]

    def begin(self) -> tf.Tensor:
        """Build the start of the average, and return a scalar bool that depends on it.

        ``Layout.results`` waits for the end, in a later step.
        """
        return self._builder.begin()


@dataclasses.dataclass(frozen=True)
class Layout:
    """Which value of an average is in which exchange of its collective. It does not keep the collective alive.

    Attributes:
      members: positions of the values of each exchange.
      sizes: numbers of elements of the values of each exchange.
      dtypes: NumPy's dtypes of the values.
      machines: number of machines of the job.
    """

    members: Sequence[Sequence[int]]
    sizes: Sequence[Sequence[int]]
    dtypes: Sequence[Any]
    machines: int

    def results(self, collective: Collective) -> list[np.ndarray]:
        """Wait until the exchanges that an earlier step has started are done, and return the means."""
        means = self.ordered(collective.results())
        return [mean.astype(dtype) for mean, dtype in zip(means, self.dtypes, strict=True)]

    def keeps_back(self, collective: Collective) -> bool:
        """Return whether rounding errors are kept for the next exchange; the same on all ranks."""
        return self.machines > 1 and any(getattr(e, "has_rest", False) for e in collective.exchanges)

    def take_lost(self, collective: Collective) -> list[np.ndarray]:
        """Take what rounding has lost on this rank: the sum over the ranks is what the last means lack.

        Returns:
          For each value, float32 [elements].
        """
        found = []
        for exchange, sizes in zip(collective.exchanges, self.sizes, strict=True):
            assert isinstance(exchange, AllReduce)
            lost = exchange.take_lost() if exchange.has_rest else np.zeros(sum(sizes), np.float32)
            found.append(np.split(lost, np.cumsum(sizes)[:-1]))
        return self.ordered(found)

    def ordered(self, of_exchanges: Sequence[Sequence[T]]) -> list[T]:
        """Return what each exchange has for its values, in the order of the values."""
        found = zip(chain(*self.members), chain(*of_exchanges), strict=True)
        return [value for _, value in sorted(found, key=lambda pair: pair[0])]
