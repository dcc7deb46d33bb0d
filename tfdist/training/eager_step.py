"""Eager step: hooks around eager gradient tapes, and around optimizers that apply gradients eagerly.

When the first tape is opened, all variables get rank 0's values. Gradients are averaged as soon as a tape has computed
them, because eager computations cannot be rewired later. Those that could not be averaged then (another tape records
them) are averaged when an optimizer applies them.
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
from tfdist.core.log import announce
from tfdist.gradients import rewrite
from tfdist.graph.job import Job
from tfdist.graph.markers import times, variable_key, variable_name
from tfdist.replicas import initial_sync
from tfdist.replicas.check import ReplicaCheck
from tfdist.replicas.eager_program import EagerProgram
from tfdist.replicas.eager_variables import described
from tfdist.replicas.shared_variables import SharedVariables
from tfdist.transport import agreement

_TAPE = "a tape or accumulator that is opened eagerly (what one rank does for itself belongs in tfdist.alone)"
_READ = "the reading of a variable that was made since a GradientTape began to record"
_MADE = "gradients of an eager tape"
_ALONG = "derivatives along a direction"
_APPLIED = "gradients that are applied eagerly"
_UNKNOWN, _NEW = 1, 2  # bits that a rank brings: a variable has not had rank 0's value; or no gradients before


class _Thread(threading.local):
    """State of one thread."""

    def __init__(self) -> None:
        self.tapes: list[Any] = []  # open tapes and forward accumulators
        self.own: dict[Hashable, str] = {}  # by key of a variable: the reason why its gradients are not averaged yet
        self.inner: list[weakref.ref[Any]] = []  # gradients that are not averaged, because another tape records
        self.made: set[str] = set()  # unique ids of variables that were made since a tape began to record


class EagerSteps:
    """Hooks around tapes, eager gradients and eager assignments.

    Args:
      job: the ranks and settings.
      variables: variables of this process.
      replicas: comparison of the variables between ranks.
    """

    def __init__(self, job: Job, variables: SharedVariables, replicas: ReplicaCheck) -> None:
        self._job = job
        self._variables = variables
        self._replicas = replicas
        self._reads: dict[Hashable, weakref.ref[Any]] = {}  # variables that were read under tapes since the last update
        self._thread = _Thread()
        self._averages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._said = False

    def created(self, variable: Any) -> None:
        """Note a new variable. If a tape records, share its value, because the step may use it.

        Collective, if a tape records eagerly: all ranks.
        """
        self._variables.created(variable)
        if self._thread.tapes and self._job.switches.shares and tf.executing_eagerly():
            self._variables.share([variable])
            self._thread.made.add(tf_variables.name(variable))

    def read(self, variable: Any) -> None:
        """Note that a variable is about to be read, and share its value if it is new.

        A restored checkpoint may have set a new variable when it was made, maybe on one rank only.

        Collective, if the variable was made since a tape began to record eagerly: all ranks.
        """
        if self._thread.tapes and not self._variables.being_set:
            self._reads[tf_variables.key(variable)] = weakref.ref(variable)  # the loss may read it
        if not self._thread.made or tf_variables.name(variable) not in self._thread.made or self._variables.being_set:
            return
        if self._job.switches.shares and tf.executing_eagerly():
            self._variables.share_restored([variable], _READ)

    def assigned(self, variable: Any) -> None:
        """Note that ``assign``, ``assign_add`` or ``assign_sub`` of a variable is about to run."""
        if tf.executing_eagerly() and self._job.switches.rewrites and not self._thread.tapes:
            self._variables.assigned(variable, self._thread.own.get(variable_key(variable)))

    def restored(self, handle: Any) -> None:
        """Note that the variable of a handle is about to be restored from a checkpoint."""
        variable = None if is_symbolic(handle) else self._variables.by_handle(handle)
        if variable is not None:
            self.assigned(variable)

    @property
    def recording(self) -> bool:
        """True if a tape records eagerly in this thread."""
        return any(tape._recording for tape in self._thread.tapes)

    def tape_opened(self, tape: Any) -> None:
        """Give new and changed variables rank 0's values, because a tape or accumulator begins to record eagerly.

        Collective: all ranks, unless inside ``alone``.
        """
        if self._job.switches.rewrites:
            self._variables.share_new(_TAPE)
            self._thread.tapes.append(tape)  # last, so that a tape whose opening failed is not listed

    def tape_closed(self, tape: Any) -> None:
        """Note that a tape has stopped recording."""
        self._thread.tapes = [other for other in self._thread.tapes if other is not tape]
        if not self._thread.tapes:
            self._thread.made = set()

    def uninstalled(self) -> None:
        """Forget open tapes, because the hooks that would note their end are removed."""
        self._thread = _Thread()

    def of_tape(
        self, tape: Any, target: Any, sources: Sequence[Any], derivatives: Sequence[Any], each: bool
    ) -> list[Any]:
        """Return what a tape is to return instead of the gradients that it has computed.

        Collective: all ranks, unless another tape records, or the script combines the gradients of several numbers.

        Args:
          tape: tape that has computed the gradients.
          target: target of the gradients.
          sources: sources of the gradients, mostly variables.
          derivatives: gradients of this rank, one for each source.
          each: True for gradients of each of many numbers: a Jacobian.
        """
        trained = [variable_key(s) for s, d in zip(sources, derivatives, strict=True) if d is not None]
        if self._inside_another(tape, trained, derivatives):
            return list(derivatives)
        if each and not any(map(self._is_inner, tf.nest.flatten(target))):
            self.own(trained, "they are the derivatives of each of several numbers")
            return list(derivatives)
        return self.gradients(sources, derivatives, _MADE)

    def of_accumulator(
        self, accumulator: Any, targets: Sequence[Any], sources: Sequence[Any], derivatives: Sequence[Any]
    ) -> list[Any]:
        """Return what a forward accumulator is to return instead of its derivatives along a direction.

        The derivatives of a loss and of gradients are averaged, those of each example's output are not.

        Collective: all ranks, unless a tape or another accumulator records.

        Args:
          accumulator: accumulator that has computed the derivatives.
          targets: targets of the derivatives.
          sources: variables that move in the direction.
          derivatives: derivatives of this rank, one for each target.
        """
        if self._inside_another(accumulator, list(map(variable_key, sources)), derivatives):
            return list(derivatives)
        # One variable represents all sources.
        represented = [sources[0] if t.shape.rank == 0 or self._is_inner(t) else None for t in targets]
        return self.gradients(represented, derivatives, _ALONG)

    def _inside_another(self, recorder: Any, keys: Sequence[Hashable], derivatives: Sequence[Any]) -> bool:
        """Return whether another tape or accumulator records; then note that these derivatives are not averaged."""
        if not any(other is not recorder and eager.records(other) for other in self._thread.tapes):
            return False
        self.own(keys, "another tape records operations on them")
        known = [r for r in self._thread.inner if r() is not None]
        self._thread.inner = known + [weakref.ref(d) for d in derivatives if isinstance(d, tf.Tensor)]
        return True

    def _is_inner(self, tensor: Any) -> bool:
        return any(reference() is tensor for reference in self._thread.inner)

    def applied(self, optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return the pairs that an optimizer is to apply, with averaged gradients. Collective: all ranks."""
        gradients, sources = zip(*pairs, strict=True) if pairs else ((), ())
        self._variables.trained.update(variable_key(s) for g, s in pairs if g is not None and _is_variable(s))
        self._replicas.eagerly(optimizer, lambda: self._program(optimizer, sources))
        self._reads.clear()
        own = [not self.is_average(g) and variable_key(s) in self._thread.own for g, s in pairs]
        for source in sources:
            self._thread.own.pop(variable_key(source), None)
        averaged = self.gradients(
            [s if one else None for one, s in zip(own, sources, strict=True)], gradients, _APPLIED
        )
        return list(zip(averaged, sources, strict=True))

    def _program(self, optimizer: Any, sources: Sequence[Any]) -> EagerProgram:
        self._variables.applied_by(optimizer)
        read = [v for one in self._reads.values() if (v := one()) is not None]
        read = [v for v in read if not hasattr(v, tf_variables.STATISTIC)]  # a layer reads them to move them
        own = [v for v in optimizers.variables(optimizer) if tf_variables.has_name(v)]
        return EagerProgram(self._variables, [*map(native, sources), *own, *read], self._reads.keys())

    def left(self, keys: Sequence[Hashable], names: Sequence[str], gradients: Sequence[Any]) -> list[Any]:
        """Return the averages of gradients that a function has returned.

        Collective: all ranks, unless a tape records. Then the gradients are returned unchanged.

        Args:
          keys: keys of the variables.
          names: names of the variables.
          gradients: gradients of this rank.
        """
        if self.recording:
            self.own(keys, "a tape records operations on them")
            return list(gradients)
        averages = rewrite.average_now(gradients, names, self._job)
        self._averages.update({id(a): a for a in averages})
        return averages

    def is_average(self, gradient: Any) -> bool:
        """Return whether a gradient is an average that a tape has returned, and that the script has not changed."""
        return self._averages.get(id(gradient)) is gradient

    def own(self, keys: Sequence[Hashable], reason: str) -> None:
        """Note, with the reason, that the gradients of these variables are not averaged yet."""
        known = [key for key in keys if key is not None]
        self._variables.trained.update(known)
        self._thread.own.update(dict.fromkeys(known, reason))

    def gradients(self, sources: Sequence[Any], gradients: Sequence[Any], place: str) -> list[Any]:
        """Return the averages of eager gradients with respect to variables.

        Some variables may have other values than on rank 0, for example because they were made in this step. Then all
        ranks take rank 0's values now, and this step uses rank 0's gradients alone. The other ranks' gradients are of
        other weights.

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
        control = self._job.world.control
        said = control.arrive(
            place + self._job.switches.configured, _NEW * new + _UNKNOWN * self._variables.unknown(known)
        )
        if any(number & _NEW for number in said):
            agreement.check_order(control, [variable_name(sources[i]) for i in chosen], initial_sync.NAMES)
        if any(number & _UNKNOWN for number in said):
            agreement.agree(control, [described(v) for v in known], initial_sync.PLACE)
            if not self._variables.same_values(known, initial_sync.PLACE):
                self._variables.take(known)
                self._say_first()
                factor = 0 if self._job.world.rank else self._job.world.size
                result = [None if g is None else times(g, factor) for g in result]
        names = [variable_name(sources[i]) for i in chosen]
        averages = rewrite.average_now([result[i] for i in chosen], names, self._job)
        self._averages.update({id(a): a for a in averages})
        for i, average in zip(chosen, averages, strict=True):
            result[i] = average
        return result

    def _say_first(self) -> None:
        if not self._said:
            announce("the first step uses rank 0's gradients alone, because its variables were made in that step")
        self._said = True


def _is_variable(x: Any) -> bool:
    return variable_key(x) is not None and tf_variables.has_name(native(x)) and not tf_variables.is_overwritten(x)
