"""Shared variables outside sessions: which have been given rank 0's values, and which are new or were set since."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from tensorflow.python.ops import resource_variable_ops

from tfdist.graph.job import Job
from tfdist.graph.markers import variable_name
from tfdist.graph.traversal import is_symbolic
from tfdist.training import first_step
from tfdist.training.eager_variables import described, random_state, take_values
from tfdist.transport import agreement


class _Thread(threading.local):
    setting = 0  # variables are set by tfdist or an optimizer, alike on all ranks


class SharedVariables:
    """What this process knows of its variables.

    Args:
      job: the ranks and settings.

    Attributes:
      trained: the keys (``markers.variable_key``) of those that gradients have been computed of.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._same: set[str] = set()  # unique ids of those that have been given rank 0's values
        self._new: dict[str, weakref.ref[Any]] = {}  # made or set since the last meeting, by their unique ids
        self._by_handle: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._set_again = False  # one that had rank 0's values
        self._thread = _Thread()
        self.trained: set[Hashable] = set()
        for variable in _existing():
            self.created(variable)

    def created(self, variable: Any) -> None:
        """A variable has been made."""
        if is_symbolic(variable.handle):
            return
        self._by_handle[variable.handle._id] = variable
        if self._job.switches.shares:
            self._new[variable._unique_id] = weakref.ref(variable)

    def by_handle(self, tensor: Any) -> Any:
        """The variable of a resource tensor; None if it is not known."""
        return self._by_handle.get(tensor._id)

    def setting(self) -> _Setting:
        """A context in which variables are set alike on all ranks, by an optimizer say."""
        return _Setting(self._thread)

    @property
    def being_set(self) -> bool:
        """Whether this thread is in such a context."""
        return self._thread.setting > 0

    def assigned(self, variable: Any) -> None:
        """A variable is set by the program itself, outside a step: to what this rank has, perhaps."""
        key = ("handle", variable.handle._id)
        if self._thread.setting or variable._unique_id not in self._same or not self._job.switches.shares:
            return
        # What is not trained, moving statistics and metrics, is each rank's own.
        trainable = variable.trainable and variable.dtype.is_floating and variable.shape.rank != 0
        if key in self.trained or trainable:
            self._same.discard(variable._unique_id)
            self._new[variable._unique_id] = weakref.ref(variable)
            self._set_again = True

    def share_set(self, place: str) -> None:
        """Share what has been set again, if something has. Collective then: all ranks."""
        if self._set_again:
            self.share_new(place)

    def share_new(self, place: str) -> None:
        """Give all variables that have been made or set meanwhile rank 0's values, as far as their equals can be told.

        Nothing is sent if they have the same values already.

        Collective: all ranks.
        """
        control = self._job.world.control
        new, self._new, self._set_again = [r() for r in self._new.values()], {}, False
        there = [v for v in new if v is not None]
        with self.setting():
            own = _digest(there) if there else 0
        digests = control.arrive(place, own)
        if len(set(digests)) == 1:
            self._same |= {v._unique_id for v in there if v.is_initialized()}
            return
        self.share(there)

    def share_restored(self, variables: Sequence[Any], place: str) -> None:
        """Give variables that all ranks have, and that a checkpoint may have set on some, rank 0's values once more.

        Collective: all ranks, with the same variables.
        """
        with self.setting():
            own = _digest(variables)
        if len(set(self._job.world.control.arrive(place, own))) > 1:
            self._same -= {v._unique_id for v in variables}
            self.share(variables)

    def share(self, candidates: Iterable[Any]) -> None:
        """Give variables rank 0's values, unless they have got them before.

        Collective: all ranks; variables that only some of them have stay as they are.
        """
        wanted = [v for v in candidates if v._unique_id not in self._same and not random_state(v)]
        wanted = [v for v in wanted if v.is_initialized()]
        names = [(variable_name(v), described(v)) for v in wanted]
        order = agreement.paired(self._job.world.control, names, first_step.PLACE)
        self._take([wanted[n] for n in order])

    def take(self, wanted: Sequence[Any], root: int = 0) -> None:
        """Give variables one rank's values, paired by their names, or else by their positions.

        Collective: all ranks, with as many variables of the same dtypes and shapes.

        Raises:
          DisagreementError: the ranks have different variables.
        """
        order = agreement.order(self._job.world.control, list(map(variable_name, wanted)), first_step.PLACE)
        self._take([wanted[n] for n in order], root)

    def unknown(self, variables: Sequence[Any]) -> bool:
        """Whether some of them have not had rank 0's values."""
        return self._job.switches.shares and any(v._unique_id not in self._same for v in variables)

    def _take(self, wanted: Sequence[Any], root: int = 0) -> None:
        with self.setting():
            take_values(wanted, root, self._job)
        for variable in wanted:
            self._same.add(variable._unique_id)
            self._new.pop(variable._unique_id, None)


class _Setting:
    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    def __enter__(self) -> None:
        self._thread.setting += 1

    def __exit__(self, *exception: object) -> None:
        self._thread.setting -= 1


def _existing() -> list[Any]:
    """Those made before tfdist was imported, in their order."""
    kinds: set[type] = set()
    new = [resource_variable_ops.BaseResourceVariable]
    while new:
        kinds.update(new)
        new = [below for kind in new for below in kind.__subclasses__()]
    # Not isinstance, which takes long for so many, and some lazy modules are imported when asked for their class.
    found = [o for o in gc.get_objects() if type(o) in kinds and getattr(o, "_handle", None) is not None]
    return sorted(found, key=lambda v: int(v._unique_id.rpartition("_")[2]))


def _digest(variables: Sequence[Any]) -> int:
    """A number, not 0, that tells whether two ranks have the same variables with the same values."""
    known = [v for v in variables if v.is_initialized() and not random_state(v)]
    names = agreement.number([f"{variable_name(v)} {described(v)}" for v in known])
    return digest([np.asarray(v.numpy()) for v in known if v.dtype.name != "string"], names)


def digest(arrays: Sequence[np.ndarray], start: int = 0) -> int:
    """A number from 1 to 2^62 that tells whether two ranks have the same values, made at the speed of memory.

    Args:
      arrays: of any dtypes and shapes.
      start: another such number.
    """
    found = np.uint64(start)
    with np.errstate(over="ignore"):
        for array in arrays:
            content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            whole = content[: content.size // 8 * 8].view(np.uint64)
            rest = int.from_bytes(content[whole.nbytes :].tobytes(), "little")
            found = found * np.uint64(0x9E3779B97F4A7C15) + whole.sum(dtype=np.uint64) + np.uint64(rest + 1)
            found ^= np.bitwise_xor.reduce(whole) >> np.uint64(7) if whole.size else np.uint64(0)
    return int(found >> np.uint64(2)) or 1
