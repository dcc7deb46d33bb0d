"""Shared variables outside sessions: which have been given rank 0's values, and which are new or were set since."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from tfdist.compat import optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_symbolic
from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_name
from tfdist.transport import agreement
from tfdist.transport.interfaces import DisagreementError
from tfdist.variables import initial_sync
from tfdist.variables.adapted_layers import AdaptedLayers
from tfdist.variables.eager_variables import described, random_state, take_values

_REMEDY = (
    "Put the step into a tf.function, where this is done for you; or apply them by an optimizer's apply_gradients; or "
    "average what you assign by tfdist.all_reduce(value, 'mean')"
)


class _Thread(threading.local):
    setting = 0  # variables are set by tfdist or an optimizer, alike on all ranks


class SharedVariables:
    """What this process knows of its variables.

    Args:
      job: the ranks and settings.

    Attributes:
      trained: the keys (``markers.variable_key``) of those that gradients have been computed of.
      of_optimizers: of what optimizers keep; and of which.
      adapted: preprocessing layers.
      batch_sizes: of this rank, while ``fit`` trains.
      own: unique ids of those that the script has said to be each rank's own.
      given: of those that it has set outside steps to what TensorFlow has not computed: a rank's inputs, perhaps.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        # Those that have been given rank 0's values, by their unique ids: a number that is the same on all ranks.
        self._same: dict[str, int] = {}
        self._count = 0
        self._new: dict[str, weakref.ref[Any]] = {}  # made since the last meeting, by their unique ids
        self._set: dict[int, _Set] = {}  # set again since then, by their numbers
        self._stale: set[str] = set()  # those of them that were not trained
        self._told: set[str] = set()
        self._by_handle: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._thread = _Thread()
        self.trained: set[Hashable] = set()
        self.of_optimizers: dict[Hashable, str] = {}
        self.own: set[str] = set()
        self.given: set[str] = set()
        self.adapted = AdaptedLayers()
        self.batch_sizes: frozenset[int] = frozenset()
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        for variable in tf_variables.existing():
            self.created(variable)

    def created(self, variable: Any) -> None:
        """A variable has been made."""
        if is_symbolic(variable.handle):
            return
        self._by_handle[tf_variables.handle_number(variable.handle)] = variable
        if self._job.switches.shares:
            self._new[tf_variables.name(variable)] = weakref.ref(variable)

    def by_handle(self, tensor: Any) -> Any:
        """The variable of a resource tensor; None if it is not known."""
        return self._by_handle.get(tf_variables.handle_number(tensor))

    def setting(self) -> _Setting:
        """A context in which variables are set alike on all ranks, by an optimizer say."""
        return _Setting(self._thread)

    @property
    def being_set(self) -> bool:
        """Whether this thread is in such a context."""
        return self._thread.setting > 0

    def assigned(self, variable: Any, reason: str | None, given: bool) -> None:
        """A variable is set by the program itself, outside a step: to what this rank has, perhaps.

        Args:
          variable: that is set.
          reason: why its last gradients were this rank's own; None if they were not.
          given: it is set to an array or a number, not to a tensor.
        """
        if self._thread.setting or tf_variables.name(variable) not in self._same or not self._job.switches.shares:
            return
        key = tf_variables.key(variable)
        # What is not trained, moving statistics, metrics and inputs, is each rank's own; it may be trained later.
        if key in self.trained or key in self.of_optimizers:
            self._set[self._same[tf_variables.name(variable)]] = _Set(weakref.ref(variable), reason)
        else:
            self._stale.add(tf_variables.name(variable))
            if given:
                self.given.add(tf_variables.name(variable))

    def applied_by(self, optimizer: Any) -> None:
        """An optimizer has applied gradients: its slots, steps and rates decide on what is trained."""
        own = optimizers.variables(optimizer)
        if self._optimizers.get(optimizer) != len(own):
            self._optimizers[optimizer] = len(own)
            handles = [v.handle for v in own if hasattr(v, "handle") and not is_symbolic(v.handle)]
            kind = f"of {type(optimizer).__name__}"
            self.of_optimizers.update({tf_variables.key_of_handle(handle): kind for handle in handles})

    def number(self, variable: Any) -> int | None:
        """Of one that has been given rank 0's value: the same on all ranks."""
        return self._same.get(tf_variables.name(variable))

    @property
    def in_blocks(self) -> bool:
        """Whether the ranks train by themselves for some steps at a time."""
        return self._job.switches.settings.sync != "gradients"

    @property
    def any_set(self) -> bool:
        """Whether the program has set what is trained since the last step."""
        return bool(self._set)

    def share_set(self, place: str) -> None:
        """Share what has been set again, if something has. Collective then: all ranks."""
        if self._set:
            self.share_new(place)

    def share_new(self, place: str) -> None:
        """Give all variables that have been made or set meanwhile rank 0's values, as far as their equals can be told.

        Nothing is sent if they have the same values already.

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
        """What a rank has set, and has not dropped since, depends on it: variables are known by their numbers.

        Raises:
          DisagreementError: their values differ, and were made of gradients that were each rank's own.
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
                f"{names} were set to other values on each rank, since their gradients are each rank's own: "
                f"{reasons[0]}. {_REMEDY}"
            )
        if wanted and names not in self._told:
            self._told.add(names)
            announce(
                f"{names} were set between two steps, to other values on each rank: rank 0's are taken, now and where "
                "this happens again. To have them from the beginning, set tfdist.broadcast(values)"
            )
        with self.setting():
            take_values([known[n] for n in wanted], 0, self._job)

    def _number(self, variables: Sequence[Any]) -> None:
        """They have the same values on all ranks now, where they stand in the same order."""
        old = {self._same.get(tf_variables.name(v)) for v in variables}
        self._set = {n: s for n, s in self._set.items() if n not in old}
        for variable in variables:
            self._stale.discard(tf_variables.name(variable))
            self._same[tf_variables.name(variable)] = self._count
            self._count += 1
            self._new.pop(tf_variables.name(variable), None)

    def share_restored(self, variables: Sequence[Any], place: str) -> None:
        """Give variables that all ranks have, and that a checkpoint may have set on some, rank 0's values once more.

        Collective: all ranks, with the same variables.
        """
        with self.setting():
            own = _digest(variables, {})
        if len(set(self._job.world.control.arrive(place, own))) > 1:
            for variable in variables:
                self._same.pop(tf_variables.name(variable), None)
            self.share(variables)

    def share(self, candidates: Iterable[Any]) -> None:
        """Give variables rank 0's values, unless they have got them before.

        Collective: all ranks; variables that only some of them have stay as they are.
        """
        wanted = [v for v in candidates if tf_variables.name(v) not in self._same and not random_state(v)]
        wanted = [v for v in wanted if v.is_initialized()]
        names = [(variable_name(v), described(v)) for v in wanted]
        order = agreement.paired(self._job.world.control, names, initial_sync.PLACE)
        self._take([wanted[n] for n in order])

    def take(self, wanted: Sequence[Any], root: int = 0) -> None:
        """Give variables one rank's values, paired by their names, or else by their positions.

        Collective: all ranks, with as many variables of the same dtypes and shapes.

        Raises:
          DisagreementError: the ranks have different variables.
        """
        order = agreement.order(self._job.world.control, list(map(variable_name, wanted)), initial_sync.PLACE)
        self._take([wanted[n] for n in order], root)

    def same_values(self, variables: Sequence[Any], place: str) -> bool:
        """Whether all ranks have the same values of these already, which counts as having had rank 0's.

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
        """What a function has set, and computed gradients of, is the same on all ranks.

        Collective: all ranks, with the same variables.

        Raises:
          DisagreementError: it is not.
        """
        if not self._alike(variables, "the variables that a function has set"):
            names = ", ".join(map(variable_name, variables[:3]))
            raise DisagreementError(
                f"the function {function} sets {names} to other values on each rank, and returns gradients, which are "
                "then of other weights on each rank. Begin with the same values, by "
                "tfdist.broadcast_variables(variables) before they are read, and let what decides on the next ones, a "
                "loss say, be the same, by tfdist.all_reduce(loss)"
            )

    def unknown(self, variables: Sequence[Any]) -> bool:
        """Whether some of them have not had rank 0's values."""
        names = map(tf_variables.name, variables)
        return self._job.switches.shares and any(name not in self._same or name in self._stale for name in names)

    def _take(self, wanted: Sequence[Any], root: int = 0) -> None:
        with self.setting():
            take_values(wanted, root, self._job)
        self._number(wanted)


class _Set(NamedTuple):
    """A variable that was set, and why its last gradients were this rank's own."""

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
    """A number, not 0, that tells whether two ranks have the same variables with the same values."""
    known = [v for v in new if not random_state(v)]
    names = [f"{variable_name(v)} {described(v)}" for v in known] + [str(n) for n in sorted(again)]
    values = [*known, *(again[n].variable() for n in sorted(again))]
    return checksum([v.numpy() for v in values], agreement.number(names))
