"""Eager step: what happens around tapes that record, and gradients that are applied, outside functions.

The first tape that is opened is where all variables get rank 0's values. Gradients are averaged when a tape has made
them, since nothing can be rewired later; those that are applied have travelled then, which the ranks see by comparing
a number.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import eager, optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_symbolic
from tfdist.compat.variables import native
from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.graph.job import Job
from tfdist.graph.markers import times, variable_key, variable_name
from tfdist.training import gradient_rewrite
from tfdist.training._held import HeldOutside
from tfdist.training.replica_check import ReplicaCheck
from tfdist.training.shared_variables import SharedVariables
from tfdist.transport import agreement
from tfdist.variables import initial_sync
from tfdist.variables.eager_variables import described

_TAPE = "a GradientTape that is opened eagerly (what one rank does for itself belongs in tfdist.alone)"
_READ = "the reading of a variable that was made since a GradientTape began to record"
_MADE = "gradients of an eager tape"
_APPLIED = "gradients that are applied eagerly"


class _Thread(threading.local):
    """What one thread is in the middle of."""

    def __init__(self) -> None:
        self.tapes: list[Any] = []  # that are open
        self.own: dict[Hashable, str] = {}  # variables whose gradients are this rank's alone as yet: why
        self.inner: list[weakref.ref[Any]] = []  # such gradients
        self.made: set[str] = set()  # unique ids of variables, since a tape began to record


class EagerSteps:
    """What happens around tapes, and eager gradients and assignments.

    Args:
      job: the ranks and settings.
      variables: of this process.
      replicas: compares what the ranks hold.
    """

    def __init__(self, job: Job, variables: SharedVariables, replicas: ReplicaCheck) -> None:
        self._job = job
        self._variables = variables
        self._replicas = replicas
        self._reads: dict[Hashable, weakref.ref[Any]] = {}  # by tapes, since the last update
        self._thread = _Thread()
        self._averages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._said = False

    def created(self, variable: Any) -> None:
        """A variable has been made. Collective, if a tape records eagerly, whose step may use it: all ranks."""
        self._variables.created(variable)
        if self._thread.tapes and self._job.switches.shares and tf.executing_eagerly():
            self._variables.share([variable])
            self._thread.made.add(tf_variables.name(variable))

    def read(self, variable: Any) -> None:
        """A variable is about to be read, by which time a checkpoint that was read before may have set it.

        Collective, if it was made since a tape began to record eagerly: all ranks, since one of them alone may have
        the checkpoint, whose values the step is about to use.
        """
        if self._thread.tapes and not self._variables.being_set:
            self._reads[("handle", variable.handle._id)] = weakref.ref(variable)  # by what is differentiated, perhaps
        if not self._thread.made or tf_variables.name(variable) not in self._thread.made or self._variables.being_set:
            return
        if self._job.switches.shares and tf.executing_eagerly():
            self._variables.share_restored([variable], _READ)

    def assigned(self, variable: Any, value: Any) -> None:
        """A variable is about to be assigned a value, or something to be added to it."""
        if tf.executing_eagerly() and self._job.switches.rewrites and not self._thread.tapes:
            self._variables.assigned(variable, self._thread.own.get(variable_key(variable)), not tf.is_tensor(value))

    def restored(self, handle: Any) -> None:
        """The variable of a handle is about to be set to what a checkpoint has."""
        variable = None if is_symbolic(handle) else self._variables.by_handle(handle)
        if variable is not None:
            self.assigned(variable, handle)

    @property
    def recording(self) -> bool:
        """Whether a tape records eagerly in this thread."""
        return any(tape._recording for tape in self._thread.tapes)

    def tape_opened(self, tape: Any) -> None:
        """A tape begins to record eagerly: what it computes from must be the same on all ranks.

        Collective: all ranks, unless inside ``alone``.
        """
        if self._job.switches.rewrites:
            self._variables.share_new(_TAPE)
            self._thread.tapes.append(tape)  # an opening that failed is none

    def tape_closed(self, tape: Any) -> None:
        """It ends."""
        self._thread.tapes = [other for other in self._thread.tapes if other is not tape]
        if not self._thread.tapes:
            self._thread.made = set()

    def uninstalled(self) -> None:
        """Tapes that are open now will not be seen to end."""
        self._thread = _Thread()

    def of_tape(
        self, tape: Any, target: Any, sources: Sequence[Any], derivatives: Sequence[Any], each: bool
    ) -> list[Any]:
        """What a tape hands out instead of these derivatives.

        Collective: all ranks, unless another tape records, or they are to be combined before they are averaged.

        Args:
          tape: that has computed them.
          target: what was differentiated.
          sources: with respect to which.
          derivatives: of them.
          each: of many numbers: a Jacobian.
        """
        thread = self._thread
        trained = [variable_key(s) for s, d in zip(sources, derivatives, strict=True) if d is not None]
        inner = [d for r in thread.inner if (d := r()) is not None]
        second = {id(d) for d in inner} & {id(t) for t in tf.nest.flatten(target)}
        if any(other is not tape and eager.records(other) for other in thread.tapes):
            self.own(trained, "another tape records what is made of them")
            thread.inner = [weakref.ref(d) for d in [*inner, *derivatives] if isinstance(d, tf.Tensor)]
            return list(derivatives)
        if each and not second:
            self.own(trained, "they are the derivatives of each of several numbers")
            return list(derivatives)
        return self.gradients(sources, derivatives, _MADE)

    def applied(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """What an optimizer is to apply instead of these gradients to these variables.

        Collective: all ranks.
        """
        gradients, sources = zip(*pairs, strict=True) if pairs else ((), ())
        self._replicas.eagerly(optimizer, lambda: self._held(optimizer, sources))
        self._reads.clear()
        for source in sources:
            self._thread.own.pop(variable_key(source), None)
        return list(zip(self.gradients(sources, gradients, _APPLIED), sources, strict=True))

    def _held(self, optimizer: Any, sources: Sequence[Any]) -> HeldOutside:
        self._variables.applied_by(optimizer)
        read = [v for reference in self._reads.values() if (v := reference()) is not None]
        own = [v for v in optimizers.variables(optimizer) if tf_variables.has_name(v)]
        return HeldOutside(self._variables, [*map(native, sources), *own, *read], self._reads.keys())

    def left(self, keys: Sequence[Hashable], names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        """The averages of gradients that a function has returned.

        Collective: all ranks, unless a tape records what is made of them.

        Args:
          keys: of their variables.
          names: of their variables.
          gradients: as they were returned.
        """
        if self.recording:
            self.own(keys, "a tape records what is made of them")
            return list(gradients)
        averages = gradient_rewrite.average_now(gradients, names, self._job)
        self._averages.update({id(a): a for a in averages})
        return averages

    def same(self, values: Sequence[Any], place: str) -> bool:
        """Whether all ranks have the same, as they have of averages that a tape has handed out.

        Collective: all ranks, with as many values.

        Args:
          values: tensors or slices that have values.
          place: where this is, in words.
        """
        return len(set(self._job.world.control.arrive(place, self._digest(values)))) == 1

    def own(self, keys: Sequence[Hashable], reason: str) -> None:
        """The gradients of these variables are this rank's as yet."""
        known = [key for key in keys if key is not None]
        self._variables.trained.update(known)
        self._thread.own.update(dict.fromkeys(known, reason))

    def gradients(self, sources: Sequence[Any], gradients: Sequence[Any], place: str) -> list[Any]:
        """The averages of gradients with respect to variables that have been computed eagerly.

        If all ranks have the same, they are averages already, or what a script has made of averages. If some of the
        variables have other values than rank 0's, because they were made in this very step, say, then all get them now,
        and this step's gradients are rank 0's alone: the other ranks' are of other weights.

        Collective: all ranks, with the same variables.
        """
        chosen = [i for i, g in enumerate(gradients) if g is not None and _is_variable(sources[i])]
        result = list(gradients)
        if not chosen:
            return result
        known = [native(sources[i]) for i in chosen]
        keys = {tf_variables.key(v) for v in known}
        new = not keys <= self._variables.trained
        self._variables.trained |= keys
        same = 0 if place == _MADE else self._digest([gradients[i] for i in chosen])
        control = self._job.world.control
        said = control.arrive(
            place + self._job.switches.configured, 4 * same + 2 * new + self._variables.unknown(known)
        )
        if any(number & 2 for number in said):
            agreement.check_order(control, [variable_name(sources[i]) for i in chosen], initial_sync.NAMES)
        if any(number & 1 for number in said):
            agreement.agree(control, [described(v) for v in known], initial_sync.PLACE)
            if not self._variables.same_values(known, initial_sync.PLACE):
                self._variables.take(known)
                self._say_first()
                factor = 0 if self._job.world.rank else self._job.world.size
                result = [None if g is None else times(g, factor) for g in result]
        elif same and len({number >> 2 for number in said}) == 1:
            return result
        names = [variable_name(sources[i]) for i in chosen]
        averages = gradient_rewrite.average_now([result[i] for i in chosen], names, self._job)
        self._averages.update({id(a): a for a in averages})
        for i, average in zip(chosen, averages, strict=True):
            result[i] = average
        return result

    def _digest(self, gradients: Sequence[Any]) -> int:
        if all(self._averages.get(id(g)) is g for g in gradients):
            return 1  # as they came from the other ranks
        parts = [t for g in gradients for t in ([g.values, g.indices] if isinstance(g, tf.IndexedSlices) else [g])]
        return checksum(parts)

    def _say_first(self) -> None:
        if not self._said:
            announce("the first gradients are rank 0's alone, because their variables were made in that very step")
        self._said = True


def _is_variable(x: Any) -> bool:
    return variable_key(x) is not None and tf_variables.has_name(native(x))
