"""Shared variables outside sessions: which variables have rank 0's values, and which are new or were set since."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from tfdist.compat import optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_symbolic
from tfdist.compat.variables import random_state
from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_name
from tfdist.replicas import initial_sync
from tfdist.replicas.adapted_layers import AdaptedLayers
from tfdist.replicas.eager_variables import described, take_values
from tfdist.transport import agreement
from tfdist.transport.errors import DisagreementError

_REMEDY = (
    "Put the step into a tf.function, where tfdist averages them. Or apply them by an optimizer's apply_gradients. Or "
    "average the assigned values by tfdist.all_reduce(value, 'mean')"
)


class _Thread(threading.local):
    setting = 0  # depth of contexts in which tfdist or an optimizer sets variables to the same values on all ranks


class SharedVariables:
    """State of this process's variables outside sessions.

    Args:
      job: the ranks and settings.

    Attributes:
      trained: keys (``markers.variable_key``) of the variables for which gradients have been computed.
      of_optimizers: by key of an optimizer's variable, its kind, with the optimizer's class.
      adapted: preprocessing layers that were adapted.
      own: unique ids of the variables that the script has given to ``keep_own``.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        # Variables that have rank 0's values: by unique id, a number that is the same on all ranks.
        self._same: dict[str, int] = {}
        self._count = 0
        self._new: dict[str, weakref.ref[Any]] = {}  # variables made since the last meeting, by unique id
        self._set: dict[int, _Set] = {}  # trained variables that were set again since then, by number
        self._stale: set[str] = set()  # unique ids of untrained variables that were set again since then
        self._told: set[str] = set()
        self._by_handle: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._thread = _Thread()
        self.trained: set[Hashable] = set()
        self.of_optimizers: dict[Hashable, str] = {}
        self.own: set[str] = set()
        self.adapted = AdaptedLayers()
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        for variable in tf_variables.existing():
            self.created(variable)

    def created(self, variable: Any) -> None:
        """Note a new variable."""
        if is_symbolic(variable.handle):
            return
        self._by_handle[tf_variables.handle_number(variable.handle)] = variable
        if self._job.switches.shares:
            self._new[tf_variables.name(variable)] = weakref.ref(variable)

    def by_handle(self, tensor: Any) -> Any:
        """Return the variable of a resource tensor; None if it is unknown."""
        return self._by_handle.get(tf_variables.handle_number(tensor))

    def setting(self) -> _Setting:
        """Return a context in which variables are set to the same values on all ranks, for example by an optimizer."""
        return _Setting(self._thread)

    @property
    def being_set(self) -> bool:
        """True if this thread is inside a ``setting`` context."""
        return self._thread.setting > 0

    def assigned(self, variable: Any, reason: str | None) -> None:
        """Note that the script sets a variable outside a step, maybe to this rank's own value.

        Args:
          variable: variable that is set.
          reason: reason why its last gradients were not averaged; None if they were.
        """
        if self._thread.setting or tf_variables.name(variable) not in self._same or not self._job.switches.shares:
            return
        key = tf_variables.key(variable)
        # Untrained variables (moving statistics, metrics, inputs) may differ between ranks. They may be trained later.
        if key in self.trained or key in self.of_optimizers:
            self._set[self._same[tf_variables.name(variable)]] = _Set(weakref.ref(variable), reason)
        else:
            self._stale.add(tf_variables.name(variable))

    def applied_by(self, optimizer: Any) -> None:
        """Note the variables of an optimizer that has applied gradients: slots, steps and rates."""
        own = optimizers.variables(optimizer)
        if self._optimizers.get(optimizer) != len(own):
            self._optimizers[optimizer] = len(own)
            handles = [v.handle for v in own if hasattr(v, "handle") and not is_symbolic(v.handle)]
            kind = f"of {type(optimizer).__name__}"
            self.of_optimizers.update({tf_variables.handle_number(handle): kind for handle in handles})

    def number(self, variable: Any) -> int | None:
        """Return the number of a variable that has rank 0's value, the same on all ranks; None for others."""
        return self._same.get(tf_variables.name(variable))

    @property
    def any_set(self) -> bool:
        """True if the script has set trained variables since the last step."""
        return bool(self._set)

    def share_new(self, place: str) -> None:
        """Give rank 0's values to all variables that were made or set since the last meeting and exist on all ranks.

        The ranks compare checksums first, and send nothing if the values are the same already.

        Collective: all ranks.
        """
        new, self._new = [v for r in self._new.values() if (v := r()) is not None], {}
        again, self._set = {n: s for n, s in self._set.items() if s.variable() is not None}, {}
        ready = [v for v in new if v.is_initialized()]
        with self.setting():
            own = _digest(ready, again) if ready or again else 0
        if len(set(self._job.world.control.arrive(place, own))) > 1:
            self.share(new)
            self._share_again(again)
        else:
            self._number([v for v in ready if not random_state(v)])

    def _share_again(self, again: dict[int, _Set]) -> None:
        """Share variables that a rank has set again, paired by their numbers. Each rank may have set other variables.

        Raises:
          DisagreementError: the values differ, and the gradients of these variables were not averaged.
        """
        gather = self._job.world.control.all_gather_object
        by_name = {tf_variables.name(v): v for v in self._by_handle.values()}
        known = {self._same[name]: v for name, v in by_name.items() if name in self._same}
        ranks: list[tuple[dict[int, str | None], list[int]]] = gather(
            ({number: one.reason for number, one in again.items()}, list(known)), initial_sync.PLACE
        )
        numbers = set().union(*(given for given, _ in ranks)).intersection(*(there for _, there in ranks))
        with self.setting():
            own = {n: checksum([known[n].numpy()]) for n in sorted(numbers)}
        digests: list[dict[int, int]] = gather(own, initial_sync.PLACE)
        wanted = [n for n in own if len({other[n] for other in digests}) > 1]
        names = ", ".join(variable_name(known[n]) for n in wanted[:3])
        reasons = [reason for given, _ in ranks for n in wanted if (reason := given.get(n))]
        if reasons:
            raise DisagreementError(
                f"{names} were set to other values on each rank, because their gradients are not averaged: "
                f"{reasons[0]}. {_REMEDY}"
            )
        if wanted and names not in self._told:
            self._told.add(names)
            announce(
                f"{names} were set between two steps, to other values on each rank. Now and each time this happens "
                "again, all ranks take rank 0's values. To avoid this, set them to tfdist.broadcast(values)"
            )
        with self.setting():
            take_values([known[n] for n in wanted], 0, self._job)

    def _number(self, variables: Sequence[Any]) -> None:
        """Number variables that now have the same values on all ranks, in the same order on all ranks."""
        old = {self._same.get(tf_variables.name(v)) for v in variables}
        self._set = {n: s for n, s in self._set.items() if n not in old}
        for variable in variables:
            self._stale.discard(tf_variables.name(variable))
            self._same[tf_variables.name(variable)] = self._count
            self._count += 1
            self._new.pop(tf_variables.name(variable), None)

    def share_restored(self, variables: Sequence[Any], place: str) -> None:
        """Give variables rank 0's values again, because a checkpoint may have set them on some ranks.

        Collective: all ranks, with the same variables.
        """
        with self.setting():
            own = _digest(variables, {})
        if len(set(self._job.world.control.arrive(place, own))) > 1:
            for variable in variables:
                self._same.pop(tf_variables.name(variable), None)
            self.share(variables)

    def share(self, candidates: Iterable[Any]) -> None:
        """Give variables rank 0's values, unless they have had them before.

        Collective: all ranks. Variables that only some ranks have stay as they are.
        """
        wanted = [v for v in candidates if tf_variables.name(v) not in self._same and not random_state(v)]
        wanted = [v for v in wanted if v.is_initialized()]
        names = [(variable_name(v), described(v)) for v in wanted]
        order = agreement.paired(self._job.world.control, names, initial_sync.PLACE)
        self._take([wanted[n] for n in order])

    def take(self, wanted: Sequence[Any], root: int = 0) -> None:
        """Give variables one rank's values, paired by their names, or else by their positions.

        Collective: all ranks, with the same number of variables of the same dtypes and shapes.

        Raises:
          DisagreementError: the ranks have different variables.
        """
        order = agreement.order(self._job.world.control, list(map(variable_name, wanted)), initial_sync.PLACE)
        self._take([wanted[n] for n in order], root)

    def same_values(self, variables: Sequence[Any], place: str) -> bool:
        """Return whether these variables have the same values on all ranks. If so, they count as shared.

        Collective: all ranks, with the same variables.
        """
        same = self._alike(variables, place)
        if same:
            self._number(variables)
        return same

    def _alike(self, variables: Sequence[Any], place: str) -> bool:
        with self.setting():
            own = checksum([v.numpy() for v in variables])
        return len(set(self._job.world.control.arrive(place, own))) == 1

    def check_same(self, variables: Sequence[Any], function: str) -> None:
        """Check that variables that a function has set, and computed gradients for, are the same on all ranks.

        Collective: all ranks, with the same variables.

        Raises:
          DisagreementError: they differ.
        """
        if not self._alike(variables, "the variables that a function has set"):
            names = ", ".join(map(variable_name, variables[:3]))
            raise DisagreementError(
                f"the function {function} sets {names} to other values on each rank, and returns gradients, which are "
                "then of other weights on each rank. Begin with the same values: call "
                "tfdist.broadcast_variables(variables) before they are read. Compute the next values from the same "
                "loss on all ranks: tfdist.all_reduce(loss)"
            )

    def unknown(self, variables: Sequence[Any]) -> bool:
        """Return whether some of these variables have not had rank 0's values."""
        names = map(tf_variables.name, variables)
        return self._job.switches.shares and any(name not in self._same or name in self._stale for name in names)

    def _take(self, wanted: Sequence[Any], root: int = 0) -> None:
        with self.setting():
            take_values(wanted, root, self._job)
        self._number(wanted)


class _Set(NamedTuple):
    """Variable that was set, and the reason why its last gradients were not averaged (or None)."""

    variable: weakref.ref[Any]
    reason: str | None


class _Setting:
    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    def __enter__(self) -> None:
        self._thread.setting += 1

    def __exit__(self, *exception: object) -> None:
        self._thread.setting -= 1


def _digest(new: Sequence[Any], again: dict[int, _Set]) -> int:
    """Return a number, not 0, that is equal on two ranks if they have the same variables with the same values."""
    known = [v for v in new if not random_state(v)]
    names = [f"{variable_name(v)} {described(v)}" for v in known] + [str(n) for n in sorted(again)]
    values = [*known, *(again[n].variable() for n in sorted(again))]
    return checksum([v.numpy() for v in values], agreement.number(names))
