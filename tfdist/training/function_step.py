"""Function step: what happens around functions and tapes; before the first that trains, ``first_step``.

A session has a first step, before which everything is agreed on. Here it is the first call of a function that
communicates, or the first tape that is opened eagerly: whatever variables that step can see, and no step before it
has, are given rank 0's values, so that gradients are of equal weights from the first one on.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tfdist.core.log import announce
from tfdist.engine.autotune import open_together
from tfdist.graph import function_state
from tfdist.graph.gradient_average import of_averages
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_key
from tfdist.graph.traversal import is_symbolic
from tfdist.training import first_step, gradient_rewrite
from tfdist.training.eager_variables import described, native, random_state, take_values
from tfdist.transport import agreement

_TAPE = "a GradientTape that is opened eagerly (what one rank does for itself belongs in tfdist.alone)"
_APPLIED = "gradients that are applied eagerly"


class FunctionSteps:
    """What happens around functions, tapes and new variables.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._same: set[str] = set()  # unique ids of variables that have been given rank 0's values
        self._new: list[tuple[str, weakref.ref[Any]]] = []  # made since the last tape was opened: what, and which
        self._by_handle: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._trained: set[Hashable] = set()  # in functions that have been called, by their keys
        self._leaving: set[Hashable] = set()  # whose gradients leave such a function, by their keys
        self._ready: weakref.WeakSet[Any] = weakref.WeakSet()  # graphs of functions that need no more than to be run
        self._tapes = 0
        self._said: set[str] = set()
        for variable in _existing_variables():
            self.created(variable)

    def created(self, variable: Any) -> None:
        """A variable has been made. Collective, if a tape records eagerly, whose step may use it: all ranks."""
        if is_symbolic(variable.handle):
            return
        self._by_handle[variable.handle._id] = variable
        if not self._job.switches.broadcasts:
            return
        if self._tapes and not self._job.switches.alone_depth and tf.executing_eagerly():
            self.share([variable])
        else:
            self._new.append((described(variable), weakref.ref(variable)))

    def call(self, function: Any, inputs: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Around every ``call`` of a traced function, a ``ConcreteFunction``.

        Collective, if the function communicates, or computes gradients that may be applied outside: all ranks.
        """
        state = function_state.function_state(function.graph)
        if state is None or self._job.switches.alone_depth:
            return call()
        if not tf.executing_eagerly():
            return self._call_inside(state, call)
        if function.graph not in self._ready:
            self._prepare(function.graph, state, inputs)
        return self.failing_plainly(call)

    def _prepare(self, graph: Any, state: function_state.FunctionState, inputs: Sequence[Any]) -> None:
        """Collective: all ranks, as far as anything is new."""
        self._check(graph)
        open_together(list(state.collectives), self._job.engines)
        trained = {_of_argument(key, graph, inputs) for key in state.trained}
        self._leaving |= {_of_argument(mark.variable, graph, inputs) for mark in state.marks if not mark.averaged}
        # Not what is new on this rank alone: metrics of its own, or a trace for other shapes.
        if self._job.switches.broadcasts and not trained <= self._trained:
            self._trained |= trained
            arguments = [self._by_handle.get(t._id) for t in inputs if t.dtype == tf.resource]
            used = [*_captured(graph), *(v for v in arguments if v is not None)]
            self.take([v for v in used if ("handle", v.handle._id) in trained])
            self.share(used)
        if trained == state.trained:  # else other arguments may come
            self._ready.add(graph)

    def _call_inside(self, state: function_state.FunctionState, call: Callable[[], Any]) -> Any:
        """It is called in another function: after the exchanges before it, and before those after it."""
        function_state.include(state)
        if not state.collectives:
            return call()
        graph = function_state.current()
        assert graph is not None
        own = next(function_state.around(graph))
        known = len(graph.get_operations())
        with tf.control_dependencies(own.last):
            result = call()
        own.last = [op for op in graph.get_operations()[known:] if op.type.endswith("PartitionedCall")] or own.last
        return result

    def _check(self, graph: Any) -> None:
        update = gradient_rewrite.unknown_update(graph)
        if update:
            raise RuntimeError(
                f"the function {graph.name} updates variables by gradients through {update}, which tfdist does not "
                "average: use an optimizer of Keras or TensorFlow, or variable.assign and its like"
            )

    def assigned(self, value: Any) -> None:
        """A variable is about to be assigned a value, of which a function may have made gradients a part."""
        if not tf.executing_eagerly() and not self._job.switches.alone_depth and not function_state.in_session():
            gradient_rewrite.average_before(value, self._job)

    def averaged(self, pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """What an optimizer is to apply instead of these gradients to these variables.

        Collective when executing eagerly: all ranks, unless inside ``alone``.
        """
        if self._job.switches.alone_depth:
            return list(pairs)
        if not tf.executing_eagerly():
            return gradient_rewrite.averaged(pairs, self._job)
        gradients, sources = zip(*pairs, strict=True) if pairs else ((), ())
        if "late" not in self._said and any(variable_key(v) in self._leaving for v in sources):
            self._said.add("late")
            gradient_rewrite.warn_of_late_average("a tf.function and are applied outside")
        # Those of a tape are averages already, of which this is the average; those of a tf.function are not.
        own = [
            g if variable_key(v) in self._leaving else of_averages(g) for g, v in zip(gradients, sources, strict=True)
        ]
        return list(zip(self.gradients(sources, own, _APPLIED), sources, strict=True))

    def gradients(self, sources: Sequence[Any], gradients: Sequence[Any], place: str) -> list[Any]:
        """The averages of gradients with respect to variables that have been computed eagerly.

        If some of the variables have not had rank 0's values, because they were made in this very step, say, then all
        get them now, and this step's gradients are rank 0's alone: the other ranks' are of other weights.

        Collective: all ranks, with the same variables.
        """
        given = [v for v, g in zip(sources, gradients, strict=True) if g is not None and _is_variable(v)]
        known = [native(v) for v in given]
        result = list(gradients)
        if not known:
            return result
        unknown = self._job.switches.broadcasts and any(v._unique_id not in self._same for v in known)
        control = self._job.world.control
        if any(control.arrive(place + self._job.switches.configured, int(unknown))):
            agreement.agree(control, [described(v) for v in given], first_step.PLACE)
            self.take(known)
            if "first" not in self._said:
                announce("the first gradients are rank 0's alone, because their variables were made in that very step")
            self._said.add("first")
            factor = 0 if self._job.world.rank else self._job.world.size
            result = [None if g is None else _times(g, factor) for g in result]
        return gradient_rewrite.averaged_at_once(sources, result, self._job)

    def failing_plainly(self, call: Callable[[], Any]) -> Any:
        """Run it; what has gone wrong inside a collective is raised as it was, without TensorFlow's wrapping."""
        try:
            return call()
        except tf.errors.OpError as error:
            failure = self._job.functions.failures.behind(error)
            if failure is not None:
                raise failure from None
            raise

    def tape_opened(self) -> None:
        """A tape begins to record eagerly: what it computes from must be the same on all ranks.

        Collective: all ranks, unless inside ``alone``.
        """
        if not self._job.switches.alone_depth:
            self.share_new(_TAPE)
            self._tapes += 1

    def share_new(self, place: str) -> None:
        """Give all variables that have been made meanwhile rank 0's values, as far as their equals can be told.

        Collective: all ranks.
        """
        control = self._job.world.control
        if not any(control.arrive(place, int(bool(self._new)))):
            return
        new, self._new = self._new, []
        common = agreement.common(control, [what for what, _ in new], first_step.PLACE)
        same = [reference() for what, reference in new if what in common]
        # Which of them have been dropped since depends on when each rank's memory is cleaned up.
        there = control.all_gather_object([v is not None for v in same], first_step.PLACE)
        self.share(v for v, *everywhere in zip(same, *there, strict=True) if all(everywhere))

    def others_record(self, tape: Any) -> bool:
        """Whether another tape than this one records eagerly: what it sees is differentiated once more."""
        return self._tapes - int(tape._recording) > 0

    def uninstalled(self) -> None:
        """Tapes that are open now will not be seen to end."""
        self._tapes = 0

    def tape_closed(self) -> None:
        """It ends."""
        if not self._job.switches.alone_depth:
            self._tapes = max(0, self._tapes - 1)

    def share(self, candidates: Iterable[Any]) -> None:
        """Give variables rank 0's values, unless they have got them before.

        Collective: all ranks; variables that only some of them have stay as they are.
        """
        wanted = [v for v in candidates if v._unique_id not in self._same and not random_state(v)]
        wanted = [v for v in wanted if v.is_initialized()]
        common = agreement.common(self._job.world.control, [described(v) for v in wanted], first_step.PLACE)
        self.take([v for v in wanted if described(v) in common])

    def take(self, wanted: Sequence[Any], root: int = 0) -> None:
        """See ``take_values``."""
        take_values(wanted, root, self._job)
        self._same |= {v._unique_id for v in wanted}


def _captured(graph: Any) -> list[Any]:
    """The variables that a function uses, in the order in which it first used them, which is the same on all ranks."""
    by_handle = {v.handle._id: v for v in graph.variables if not is_symbolic(v.handle)}
    captured = (external for external, _ in graph.captures)
    return [by_handle[t._id] for t in captured if not is_symbolic(t) and t._id in by_handle]


def _existing_variables() -> list[Any]:
    """Those made before tfdist was imported, in their order."""
    kinds: set[type] = set()
    new = [resource_variable_ops.ResourceVariable]
    while new:
        kinds.update(new)
        new = [below for kind in new for below in kind.__subclasses__()]
    # Not isinstance, which takes long for so many, and some lazy modules are imported when asked for their class.
    found = [o for o in gc.get_objects() if type(o) in kinds and getattr(o, "_handle", None) is not None]
    return sorted(found, key=lambda v: int(v._unique_id.rpartition("_")[2]))


def _of_argument(key: Hashable, graph: Any, inputs: Sequence[Any]) -> Hashable:
    """A variable's key outside a function: inside, an argument is known by its placeholder."""
    if not isinstance(key, ops.Operation):
        return key
    place = next((n for n, tensor in enumerate(graph.inputs) if tensor.op is key), None)
    return key if place is None or place >= len(inputs) else ("handle", inputs[place]._id)


def _is_variable(x: Any) -> bool:
    return variable_key(x) is not None and hasattr(native(x), "_unique_id")


def _times(gradient: Any, factor: int) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    gradient = tf.convert_to_tensor(gradient)
    return gradient * tf.cast(factor, gradient.dtype)
