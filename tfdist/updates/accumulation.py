"""Accumulation: the gradients of k steps are added up on each rank, exchanged once, and applied once.

The exchange counts the steps. In all but the last it keeps what it is given, and returns zeros; in the last the sums
travel as they come, beside what is still computed of the backward pass, and their mean over the steps and the ranks
stands behind the marks: what is clipped is that of one process with the batch of all of them. What an optimizer does
stands in a condition that is true in the last step alone, so that its slots, its step and its averages see one update.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.compat.optimizers import chain
from tfdist.core import exclusions, reduce_ops
from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.core.settings import SettingsError
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.exchange import Exchange
from tfdist.engine.sparse_rows import Rows, Table, merged, unmerged
from tfdist.graph import function_state
from tfdist.graph.job import Job, LastSteps
from tfdist.graph.markers import Marker, variable_key
from tfdist.updates.pipeline import GoOn, Pairs, Stage, Update


class Accumulations(Stage):
    """Those of this process's optimizers: the stages behind know whether a step is the last of several.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: weakref.WeakKeyDictionary[Any, dict[Hashable, StepSums]] = weakref.WeakKeyDictionary()

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(update.with_(held=self._held(update.optimizer, update.pairs)))

    def _held(self, optimizer: Any, pairs: Pairs) -> Accumulated | None:
        """What an optimizer is about to apply in a graph; None: it applies every step.

        Args:
          optimizer: of TensorFlow, Keras or tf_keras.
          pairs: gradients and variables, as given to ``apply_gradients``.

        Raises:
          SettingsError: it accumulates by itself.
          RuntimeError: its steps cannot be added up.
        """
        steps = self._job.switches.settings.accumulate_steps
        if steps == 1 or self._job.switches.alone_depth:
            return None
        for one in chain(optimizer):
            own = getattr(one, "gradient_accumulation_steps", None)
            if own is not None:
                kerass = f"{type(one).__name__} has gradient_accumulation_steps={own}"
                raise SettingsError(exclusions.HELD_AND_KERAS.told(f"accumulate_steps={steps}", kerass))
        if tf.executing_eagerly():
            eagerly = f"{type(optimizer).__name__} applies gradients eagerly"
            raise RuntimeError(exclusions.HELD_AND_EAGER.told(f"accumulate_steps={steps}", eagerly))
        keys = [variable_key(variable) for gradient, variable in pairs if gradient is not None]
        if not function_state.in_session():
            function_state.accumulate(keys)
        return Accumulated(self._job, steps, self._known.setdefault(optimizer, {}), tuple(keys))


class Accumulated:
    """What one optimizer applies, once in several steps. See ``gradient_rewrite.Application``.

    Args:
      job: the ranks and settings.
      steps: how many.
      known: the sums of this optimizer in functions.
      keys: of the variables.

    Attributes:
      steps: how many.
      due: whether what has been built last is to be applied.
    """

    def __init__(
        self, job: Job, steps: int, known: dict[Hashable, StepSums], keys: tuple[Hashable | None, ...]
    ) -> None:
        self.steps = steps
        self.due: tf.Tensor | None = None
        self._job = job
        self._known = known
        self._keys = keys
        self._all_due: dict[int, tf.Tensor] = {}

    def sums(self, collective: Collective) -> StepSums:
        """See ``step_sums.Accumulation``. A function that is traced again goes on with what has been added up."""
        sums = StepSums(collective.name, collective.exchanges, self.steps, self._job)
        if function_state.in_session():
            return sums
        return self._known.setdefault((self._keys, collective), sums)

    def built(self, due: tf.Tensor) -> None:
        """See ``step_sums.Accumulation``."""
        self.due = due
        self._all_due[id(due)] = due

    def applies(self, marker: Marker) -> None:
        """See ``gradient_rewrite.Application``."""
        if marker.due is not None:
            self._all_due[id(marker.due)] = marker.due

    def all_due(self) -> tf.Tensor | None:
        """Whether what is applied is to be in this step; None: nothing is added up."""
        dues = list(self._all_due.values())
        return None if not dues else dues[0] if len(dues) == 1 else _all_alike(dues)


def _all_alike(dues: Sequence[tf.Tensor]) -> tf.Tensor:
    """Of several averages that are applied together, which must have come in the same steps."""
    stacked = tf.stack(list(dues))
    same = tf.equal(tf.reduce_all(stacked), tf.reduce_any(stacked))
    message = "gradients that are applied together are made in different steps, and cannot be accumulated together"
    with tf.control_dependencies([tf.debugging.Assert(same, [message])]):
        return tf.reduce_all(stacked)


class StepSums:
    """What the steps have brought to one collective. See ``step_sums.Sums``.

    Args:
      name: of the collective.
      exchanges: its own.
      steps: after which it is exchanged.
      job: knows when an epoch ends.

    Attributes:
      held: the steps that have been added up and not been applied.
      due: whether this step is exchanged.
    """

    def __init__(self, name: str, exchanges: Sequence[Exchange], steps: int, job: Job) -> None:
        self._name = name
        self._steps = steps
        self._job = job
        self._sums = [sum_of(exchange) for exchange in exchanges]
        self._next = len(self._sums)  # the exchange that is brought next
        self._last: LastSteps | None = None
        self._of_last = 0
        self.held = 0
        self.due = False

    def bring(self, number: int, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        """See ``step_sums.Sums``."""
        if number == 0 and self._next == len(self._sums):
            self._begin()
        elif number != self._next:
            raise RuntimeError(
                f"{self._name}: step {self.held} of {self._steps} that are added up was given up halfway, so that its "
                "gradients are held for some variables only: go on from the last checkpoint, or leave "
                "TFDIST_ACCUMULATE_STEPS out"
            )
        self._next = number + 1
        self._sums[number].add(arrays, first=self.held == 1)
        return self._sums[number].mean(self.held) if self.due else None

    def _begin(self) -> None:
        self.held = 1 if self.due else self.held + 1
        self._next = 0
        last = self._job.switches.last_steps
        self._of_last = self._of_last + 1 if last is self._last else 1
        self._last = last
        self.due = self.held >= self._steps or (last is not None and self._of_last >= last.number)

    def nothing(self, number: int) -> list[np.ndarray] | None:
        """See ``step_sums.Sums``."""
        return None if self.due else self._sums[number].nothing()


class Sum(Protocol):
    """Of one exchange's arguments."""

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        """What one step brings; the first one begins anew."""

    def mean(self, steps: int) -> list[np.ndarray]:
        """The sum divided by the steps that were added, in the dtypes that travel; there is no more to be added."""

    def nothing(self) -> list[np.ndarray]:
        """What an average of nothing is."""


def sum_of(exchange: Exchange) -> Sum:
    """For what an exchange of gradients is given.

    Raises:
      TypeError: it is none of gradients.
    """
    if isinstance(exchange, Rows):
        return _RowSums(exchange.tables)
    if isinstance(exchange, AllReduce):
        return _TensorSums(exchange.dtype)
    raise TypeError(f"{exchange.what} is not an exchange of gradients, whose steps could be added up")


class _TensorSums:
    """Of tensors that travel in one dtype; added in float32 if that is narrower."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._wide = reduce_ops.wide(dtype)
        self._sums: list[np.ndarray] = []

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        shapes = [a.shape for a in arrays]
        if first:
            if [s.shape for s in self._sums] != shapes:
                self._sums = [np.empty(shape, self._wide) for shape in shapes]
            for total, array in zip(self._sums, arrays, strict=True):
                np.copyto(total, array)
            return
        if [s.shape for s in self._sums] != shapes:
            raise ValueError(f"gradients of shapes {[s.shape for s in self._sums]} are followed by some of {shapes}")
        for total, array in zip(self._sums, arrays, strict=True):
            np.add(total, array.astype(self._wide, copy=False), out=total)

    def mean(self, steps: int) -> list[np.ndarray]:
        for total in self._sums:
            reduce_ops.scale(total, steps)
        return [total.astype(self._dtype, copy=False) for total in self._sums]

    def nothing(self) -> list[np.ndarray]:
        return [_zeros(total.shape, self._dtype) for total in self._sums]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """New memory, which TensorFlow takes over without a copy, and may write to."""
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


class _RowSums:
    """Of the rows of several tables: a row that several steps bring is held once, unless they are to stay unmerged."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = tables
        self._held: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        if first:
            self._held = [[] for _ in self._tables]
        for table, held, indices, values in zip(self._tables, self._held, arrays[::2], arrays[1::2], strict=True):
            wide = values.astype(reduce_ops.wide(values.dtype), copy=False)
            held.append((indices, wide.reshape(len(indices), table.width)))
            if len(held) > 1 and table.way != "unmerged":
                held[:] = [merged(held, 1)]

    def mean(self, steps: int) -> list[np.ndarray]:
        found = []
        for table, held in zip(self._tables, self._held, strict=True):
            indices, values = unmerged(held, steps)
            found += [indices, values.astype(table.dtype, copy=False).reshape(len(indices), *table.row_shape)]
        self._held = []
        return found

    def nothing(self) -> list[np.ndarray]:
        empty = [(np.empty(0, t.index_dtype), np.empty((0, *t.row_shape), t.dtype)) for t in self._tables]
        return [array for pair in empty for array in pair]
