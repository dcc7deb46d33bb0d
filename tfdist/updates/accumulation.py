"""Accumulation: the gradients of k steps are added up on each rank, exchanged once, and applied once.

The exchange counts the steps. In all steps but the last it adds up its inputs and returns zeros. In the last step it
exchanges the sums, while the rest of the backward pass runs. Their mean over the steps and the ranks is put behind the
marks. So a script clips the gradient that one process with the batch of all of them would clip. The optimizer's update
is inside a condition that is true in the last step only. Its slots, steps and moving averages see one update.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfdist.compat.optimizers import tree
from tfdist.compat.variables import is_overwritten
from tfdist.core import exclusions, reduce_ops
from tfdist.core.alignment import ALIGNMENT_BYTES
from tfdist.core.settings import SettingsError
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.exchange import Exchange
from tfdist.engine.sparse_rows import Rows, Table, merged, unmerged
from tfdist.graph import function_state
from tfdist.graph.job import Job, LastSteps
from tfdist.graph.markers import Marker, variable_key, variable_name
from tfdist.updates.pipeline import GoOn, Pairs, Stage, Update


class Accumulations(Stage):
    """Stage that accumulates the gradients of each optimizer, and tells later stages which step is the last.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: weakref.WeakKeyDictionary[Any, dict[Hashable, GradientAccumulator]] = weakref.WeakKeyDictionary()

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(update.with_(accumulation=self._held(update.optimizer, update.pairs)))

    def _held(self, optimizer: Any, pairs: Pairs) -> Accumulated | None:
        """Return the accumulation for an optimizer in a graph; None if it applies every step.

        Args:
          optimizer: optimizer of TensorFlow, Keras or tf_keras.
          pairs: gradients and variables, as given to ``apply_gradients``.

        Raises:
          SettingsError: the optimizer itself accumulates.
          RuntimeError: the optimizer applies gradients eagerly.
        """
        steps = self._job.switches.settings.accumulate_steps
        if steps == 1 or self._job.switches.alone_depth:
            return None
        for one in tree(optimizer):
            own = getattr(one, "gradient_accumulation_steps", None)
            if own is not None:
                kerass = f"{type(one).__name__} has gradient_accumulation_steps={own}"
                raise SettingsError(exclusions.HELD_AND_KERAS.told(f"accumulate_steps={steps}", kerass))
        if tf.executing_eagerly():
            eagerly = f"{type(optimizer).__name__} applies gradients eagerly"
            raise RuntimeError(exclusions.HELD_AND_EAGER.told(f"accumulate_steps={steps}", eagerly))
        overwritten = next((variable_name(v) for g, v in pairs if g is not None and is_overwritten(v)), "")
        if overwritten:
            over = f"{overwritten} is overwritten with its gradient"
            raise SettingsError(exclusions.HELD_AND_OVERWRITTEN.told(f"accumulate_steps={steps}", over))
        keys = [variable_key(variable) for gradient, variable in pairs if gradient is not None]
        function_state.note(accumulated=keys)
        return Accumulated(self._job, steps, self._known.setdefault(optimizer, {}), tuple(keys))


class Accumulated:
    """Accumulated gradients that one optimizer applies once in several steps. See ``gradient_rewrite.Application``.

    Args:
      job: the ranks and settings.
      steps: number of steps that are accumulated.
      known: sums of this optimizer in functions, by variables and collective.
      keys: keys of the variables.

    Attributes:
      steps: number of steps that are accumulated.
      due: bool tensor: whether the averages that were built last are applied in this step; None before the first.
    """

    def __init__(
        self, job: Job, steps: int, known: dict[Hashable, GradientAccumulator], keys: tuple[Hashable | None, ...]
    ) -> None:
        self.steps = steps
        self.due: tf.Tensor | None = None
        self._job = job
        self._known = known
        self._keys = keys
        self._all_due: dict[int, tf.Tensor] = {}

    def sums(self, collective: Collective) -> GradientAccumulator:
        """See ``step_sums.Accumulation``. A function that is traced again continues with the same sums."""
        sums = GradientAccumulator(collective.name, collective.exchanges, self.steps, self._job)
        if function_state.in_session():
            return sums
        return self._known.setdefault((self._keys, collective), sums)

    def due_in(self, due: tf.Tensor) -> None:
        """See ``step_sums.Accumulation``."""
        self.due = due
        self._all_due[id(due)] = due

    def applies(self, marker: Marker) -> None:
        """See ``gradient_rewrite.Application``."""
        if marker.due is not None:
            self._all_due[id(marker.due)] = marker.due

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


class GradientAccumulator:
    """Sums of the gradients of several steps, for one collective. See ``step_sums.Sums``.

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
        self._sums = [sum_of(exchange) for exchange in exchanges]
        self._next = len(self._sums)  # number of the exchange whose arrays come next
        self._last: LastSteps | None = None
        self._of_last = 0
        self.added = 0
        self.due = False

    def bring(self, number: int, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray] | None:
        """See ``step_sums.Sums``."""
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
        """See ``step_sums.Sums``."""
        return None if self.due else self._sums[number].nothing()


class Sum(Protocol):
    """Sum of the arguments of one exchange over several steps."""

    def add(self, arrays: Sequence[np.ndarray], first: bool) -> None:
        """Add the arrays of one step; the first step begins a new sum."""

    def mean(self, steps: int) -> list[np.ndarray]:
        """End the sum, and return it divided by the number of steps, in the dtypes of the exchange."""

    def nothing(self) -> list[np.ndarray]:
        """Return the result of a step without exchange: zeros, or no rows."""


def sum_of(exchange: Exchange) -> Sum:
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
        shapes = [a.shape for a in arrays]
        if first:
            if [s.shape for s in self._sums] != shapes:
                self._sums = [np.empty(shape, self._wide) for shape in shapes]
            for total, array in zip(self._sums, arrays, strict=True):
                np.copyto(total, array)
            return
        if [s.shape for s in self._sums] != shapes:
            raise ValueError(f"gradients of shapes {[s.shape for s in self._sums]} are followed by shapes {shapes}")
        for total, array in zip(self._sums, arrays, strict=True):
            np.add(total, array.astype(self._wide, copy=False), out=total)

    def mean(self, steps: int) -> list[np.ndarray]:
        for total in self._sums:
            reduce_ops.scale(total, steps)
        return [total.astype(self._dtype, copy=False) for total in self._sums]

    def nothing(self) -> list[np.ndarray]:
        return [_zeros(total.shape, self._dtype) for total in self._sums]


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return zeros in new aligned memory, which TensorFlow uses without a copy and may write to."""
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)


class _RowSums:
    """Sum of the rows of several tables. Equal rows of several steps are added up, unless they must stay unmerged."""

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
