"""Step sums: the gradients of several steps, added up by a collective before it exchanges them.

A collective counts its steps. In all steps but the last it adds up its inputs and returns zeros. In the last step it
exchanges the sums, divided by the number of steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.core import reduce_ops
from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.exchange import Exchange
from tfdist.engine.sparse_rows import Rows, Table, merged, unmerged
from tfdist.graph import function_state
from tfdist.graph.job import Job, LastSteps
from tfdist.graph.markers import variable_key


class Accumulation:
    """Accumulated gradients that one optimizer applies once in several steps.

    Args:
      job: the ranks and settings.
      steps: number of steps that are accumulated.
      known: sums of this optimizer in functions, by variables and collective.
      trained: variables whose gradients are accumulated.

    Attributes:
      steps: number of steps that are accumulated.
      due: bool tensor: whether the averages that were built last are applied in this step; None before the first.
    """

    def __init__(self, job: Job, steps: int, known: dict[Hashable, StepSums], trained: Iterable[Any]) -> None:
        self.steps = steps
        self.due: tf.Tensor | None = None
        self._job = job
        self._known = known
        self._keys = tuple(map(variable_key, trained))
        function_state.note(accumulated=self._keys)
        self._all_due: dict[int, tf.Tensor] = {}

    def sums(self, collective: Collective) -> StepSums:
        """Return the sums of a collective under construction. A function that is traced again continues with its own.

        It finds its collective again. In a session's graph each collective is a new one.
        """
        sums = StepSums(collective.name, collective.exchanges, self.steps, self._job)
        return self._known.setdefault((self._keys, collective), sums)

    def due_in(self, due: tf.Tensor) -> None:
        """Take a bool tensor that is true in the steps in which averages are applied."""
        self.due = self._all_due[id(due)] = due

    def all_due(self) -> tf.Tensor | None:
        """Return a bool tensor: whether the gradients are applied in this step; None if nothing is accumulated."""
        dues = list(self._all_due.values())
        return None if not dues else dues[0] if len(dues) == 1 else _all_alike(dues)


def _all_alike(dues: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return whether averages that are applied together are due; fail if they are due in different steps."""
    stacked = tf.stack(list(dues))
    same = tf.equal(tf.reduce_all(stacked), tf.reduce_any(stacked))
    message = "gradients that are applied together are computed in different steps, and cannot be accumulated together"
    with tf.control_dependencies([tf.debugging.Assert(same, [message])]):
        return tf.reduce_all(stacked)


class StepSums:
    """Sums of the gradients of several steps, for one collective.

    Args:
      name: name of the collective.
      exchanges: exchanges of the collective.
      steps: number of steps until an exchange.
      job: ranks and settings, with the mark of an epoch's last steps.

    Attributes:
      added: number of steps in the current sums.
      due: True if this step exchanges the sums.
    """

    def __init__(self, name: str, exchanges: Sequence[Exchange], steps: int, job: Job) -> None:
        self._name = name
        self._steps = steps
        self._job = job
        self._sums = [_sum_of(exchange) for exchange in exchanges]
        self._next = len(self._sums)  # number of the exchange whose arrays come next
        self._last: LastSteps | None = None
        self._of_last = 0
        self.added = 0
        self.due = False

    def bring(self, number: int, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        """Add a step's arrays to the sums of one exchange.

        Returns:
          The mean of the steps, to be exchanged now; None: more steps are to be added.
        """
        if number == 0 and self._next == len(self._sums):
            self._begin()
        elif number != self._next:
            raise RuntimeError(
                f"{self._name}: step {self.added} of {self._steps} that are accumulated was given up halfway. The sums "
                "contain its gradients for some variables only. Continue from the last checkpoint, or leave "
                "TFDIST_ACCUMULATE_STEPS out"
            )
        self._next = number + 1
        self._sums[number].add(arrays, first=self.added == 1)
        return self._sums[number].mean(self.added) if self.due else None

    def _begin(self) -> None:
        self.added = 1 if self.due else self.added + 1
        self._next = 0
        last = self._job.switches.last_steps
        self._of_last = self._of_last + 1 if last is self._last else 1
        self._last = last
        self.due = self.added >= self._steps or (last is not None and self._of_last >= last.number)

    def nothing(self, number: int) -> list[np.ndarray] | None:
        """Return an exchange's results in a step that is only added: zeros, or no rows; None if it is exchanged."""
        return None if self.due else self._sums[number].nothing()


def _sum_of(exchange: Exchange) -> _TensorSums | _RowSums:
    """Return a sum for the arguments of an exchange of gradients.

    Raises:
      TypeError: the exchange is not one of gradients.
    """
    if isinstance(exchange, Rows):
        return _RowSums(exchange.tables)
    if isinstance(exchange, AllReduce):
        return _TensorSums(exchange.dtype)
    raise TypeError(f"{exchange.what} is not an exchange of gradients, and cannot be accumulated")


class _TensorSums:
    """Sum of tensors of one dtype; added in float32 if the dtype is narrower."""

    def __init__(self, dtype: np.dtype) -> None:
        self._dtype = dtype
        self._wide = reduce_ops.wide(dtype)
        self._sums: list[np.ndarray] = []

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        """Add the arrays of one step; the first step begins a new sum."""
        shapes = [a.shape for a in arrays]
        if [s.shape for s in self._sums] != shapes:
            if not first:
                raise ValueError(f"gradients of shapes {[s.shape for s in self._sums]} are followed by shapes {shapes}")
            self._sums = [np.empty(shape, self._wide) for shape in shapes]
        for total, array in zip(self._sums, arrays, strict=True):
            if first:
                np.copyto(total, array)
            else:
                np.add(total, array.astype(self._wide, copy=False), out=total)

    def mean(self, steps: int) -> list[np.ndarray]:
        """End the sum, and return it divided by the number of steps, in the dtypes of the exchange."""
        for total in self._sums:
            reduce_ops.scale(total, steps)
        return [total.astype(self._dtype, copy=False) for total in self._sums]

    def nothing(self) -> list[np.ndarray]:
        """Return the result of a step without exchange: zeros."""
        return [_zeros(total.shape, self._dtype) for total in self._sums]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros in new aligned memory, which TensorFlow uses without a copy and may write to."""
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


class _RowSums:
    """Sum of the rows of several tables; see ``_TensorSums``.

    Equal rows of several steps are added up, unless they must stay unmerged.
    """

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
