"""Functions and eager code that train: all ranks agree on what is exchanged, and begin with rank 0's values.

A session has a first step, before which everything is agreed on. Here it is the first call of a function that
communicates, or the first tape that is opened eagerly: whatever variables that step can see, and no step before it
has, are given rank 0's values, so that gradients are of equal weights from the first one on.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import agreement, functions, tuning, variables
from tfdist.collectives import Collective
from tfdist.job import Job
from tfdist.rewrite import is_symbolic, variable_name
from tfdist.world import DisagreementError

_TAPE = "a GradientTape that is opened eagerly (what one rank does for itself belongs in tfdist.alone)"
_VARIABLES = "the exchange of variables before a first step"
# The states of Keras's and TensorFlow's random generators: the ranks draw different numbers, as one process does for
# the different parts of a batch.
_RANDOM = re.compile(r"seed_generator_state|StateVar")


class Programs:
    """What happens around functions, tapes and new variables.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._same: set[str] = set()  # unique ids of variables that have been given rank 0's values
        self._new: list[tuple[str, weakref.ref[Any]]] = []  # made since the last tape was opened: what, and which
        self._trained: set[Hashable] = set()  # in functions that have been called, by their keys
        self._unequal: set[str] = set()  # of those that could not be matched with other ranks'
        self._tapes = 0

    def created(self, variable: Any) -> None:
        """A variable has been made. Collective, if a tape records eagerly, whose step may use it: all ranks."""
        if not self._job.broadcasts or is_symbolic(variable.handle):
            return
        if self._tapes and not self._job.alone_depth:
            self.share([variable])
        else:
            self._new.append((described(variable), weakref.ref(variable)))

    def call(self, function: Any, call: Callable[[], Any]) -> Any:
        """Around every ``call`` of a traced function, a ``ConcreteFunction``.

        Collective, if the function communicates: all ranks.
        """
        state = functions.function_state(function.graph)
        if state is None:
            return call()
        if not tf.executing_eagerly():
            functions.add(state.collectives, state.trained)  # it is called inside another one
            return call()
        self.open_together(list(state.collectives))
        # Not what is new on this rank alone: metrics of its own, or a trace for other shapes.
        if self._job.broadcasts and not state.trained <= self._trained:
            self._trained |= state.trained
            self.share(_captured(function.graph))
        return self.failing_plainly(call)

    def failing_plainly(self, call: Callable[[], Any]) -> Any:
        """Run it; what has gone wrong inside a collective is raised as it was, without TensorFlow's wrapping."""
        try:
            return call()
        except tf.errors.OpError:
            failure, self._job.failure = self._job.failure, None
            if failure is not None:
                raise failure from None
            raise

    def tape_opened(self) -> None:
        """A tape begins to record eagerly: what it computes from must be the same on all ranks.

        Collective: all ranks, unless inside ``alone``.
        """
        if self._job.alone_depth:
            return
        self._tapes += 1
        if not any(self._job.world.control.arrive(_TAPE, int(bool(self._new)))):
            return
        new, self._new = self._new, []
        common = self._common([what for what, _ in new])
        self._unequal |= {v._unique_id for what, r in new if what not in common and (v := r()) is not None}
        same = [reference() for what, reference in new if what in common]
        # Which of them have been dropped since depends on when each rank's memory is cleaned up.
        there = self._job.world.control.all_gather_object([v is not None for v in same], _VARIABLES)
        self.share(v for v, *everywhere in zip(same, *there, strict=True) if all(everywhere))

    def check_known(self, sources: Sequence[Any]) -> None:
        """Check that variables that are trained eagerly have rank 0's values.

        Raises:
          DisagreementError: the ranks have made different numbers of variables of this name, dtype and shape.
        """
        unknown = [v for v in map(native, sources) if getattr(v, "_unique_id", None) in self._unequal - self._same]
        if unknown:
            raise DisagreementError(
                f"{described(unknown[0])} has no equal on the other ranks: they have made more or fewer variables like "
                "it. Build what only one rank needs inside tfdist.alone(reason), or give all ranks one's values by "
                "tfdist.broadcast_variables"
            )

    def tape_closed(self) -> None:
        """It ends."""
        if not self._job.alone_depth:
            self._tapes = max(0, self._tapes - 1)

    def share(self, candidates: Iterable[Any], again: bool = False) -> None:
        """Give variables rank 0's values, unless they have got them before (or ``again``).

        Collective: all ranks; variables that only some of them have stay as they are.
        """
        wanted = [v for v in candidates if (again or v._unique_id not in self._same) and not _RANDOM.search(v.name)]
        wanted = [v for v in wanted if v.is_initialized()]
        common = self._common([described(v) for v in wanted])
        self.take([v for v in wanted if described(v) in common])

    def take(self, wanted: Sequence[Any], root: int = 0) -> None:
        """See ``take_values``."""
        take_values(wanted, root, self._job)
        self._same |= {v._unique_id for v in wanted}

    def _common(self, lines: Sequence[str]) -> set[str]:
        """Those that all ranks have equally often: metrics may differ, for example. Collective: all ranks."""
        counts = [Counter(other) for other in self._job.world.control.all_gather_object(list(lines), _VARIABLES)]
        return {line for line in lines if len({count[line] for count in counts}) == 1}

    def open_together(self, collectives: Sequence[Collective]) -> None:
        """Give collectives their channels. Collective: the ranks that take part in each, in the same order."""
        for collective in collectives:
            if collective.channel is not None:
                continue
            control = (collective.group or self._job.world).control
            plan = [f"{line} in {collective.name}" for line in collective.plan]
            agreement.check(control.all_gather_object(plan, "the first run of an exchange"))
            if collective.shared_tensors:
                tuning.ensure(self._job)
            collective.open()


def _captured(graph: Any) -> list[Any]:
    """The variables that a function uses, in the order in which it first used them, which is the same on all ranks."""
    by_handle = {v.handle._id: v for v in graph.variables if not is_symbolic(v.handle)}
    captured = (external for external, _ in graph.captures)
    return [by_handle[t._id] for t in captured if not is_symbolic(t) and t._id in by_handle]


def described(variable: Any) -> str:
    """What all ranks must have alike."""
    return f"variable {variable_name(variable)} {variable.dtype.name} {variable.shape}"


def take_values(wanted: Sequence[Any], root: int, job: Job) -> None:
    """One rank's values of variables on every rank.

    Collective: all ranks, with variables of the same names, dtypes and shapes in the same order.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    plan = [described(v) for v in wanted]
    agreement.check(job.world.control.all_gather_object(plan, _VARIABLES))
    own = {str(n): np.asarray(v.numpy()) for n, v in enumerate(wanted)} if job.world.rank == root else {}
    received = variables.send(job, own, root)
    if job.world.rank != root:
        for n, variable in enumerate(wanted):
            variable.assign(received[str(n)])


def average_values(wanted: Sequence[Any], job: Job) -> None:
    """The mean over the ranks of floating-point variables, in place of each rank's. Collective: all ranks."""
    wanted = [v for v in wanted if v.dtype.is_floating]
    plan = [described(v) for v in wanted]
    control = job.world.control
    agreement.check(control.all_gather_object(plan, "the averaging of variables"))
    for variable in wanted:
        value = np.array(variable.numpy(), order="C")
        wide = value.astype(np.float32 if value.itemsize < 4 else value.dtype).reshape(-1)
        control.all_reduce(wide, "mean", job.world.size)
        variable.assign(wide.reshape(value.shape).astype(value.dtype))


def variables_of(given: Any, attribute: str = "weights") -> list[Any]:
    """The ``tf.Variable`` of each variable, of TensorFlow or Keras, in a list; or of an object's attribute."""
    found = getattr(given, attribute, given)
    return [native(v) for v in ([found] if hasattr(found, "assign") else found)]


def native(variable: Any) -> Any:
    """A variable of Keras 3 (which has a path) as TensorFlow's."""
    return variable.value if hasattr(variable, "path") else variable
