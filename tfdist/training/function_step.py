"""Function step: hooks around calls of ``tf.function``.

The first call of a function that communicates gives rank 0's values to all variables that the function uses and no
earlier step has used. So the ranks compute gradients of equal weights from the first step on. Eager steps without
functions: see ``eager_step``.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_symbolic
from tfdist.gradients import marks, writes
from tfdist.gradients.writes import Returned
from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.graph.markers import handle_key
from tfdist.graph.op_builder import build_meetings
from tfdist.graph.traversal import ancestors
from tfdist.replicas import initial_sync
from tfdist.replicas.check import ReplicaCheck
from tfdist.replicas.eager_program import EagerProgram
from tfdist.replicas.earlier_graphs import earlier_graphs
from tfdist.replicas.loss_reads import loss_reads
from tfdist.replicas.shared_variables import SharedVariables
from tfdist.training.eager_step import EagerSteps
from tfdist.transport import agreement

_SET = "the sharing of variables that were set between two steps (do so on all ranks, or before the first step)"


class _Prepared(NamedTuple):
    """What a function's calls with the same variables need.

    Attributes:
      program: the variables that it uses; None if the function does not communicate.
      returned_gradients: the gradients that it returns, by their number among the outputs.
      set_inside: trained variables that it sets to its inputs.
    """

    program: EagerProgram | None
    returned_gradients: dict[int, Returned]
    set_inside: list[weakref.ref[Any]]


class FunctionSteps:
    """Hooks around calls of functions.

    Args:
      job: the ranks and settings.
      variables: variables of this process.
      eager: hooks around eager steps.
      replicas: comparison of the variables between ranks.
      runs: see ``Moments``.
    """

    def __init__(
        self,
        job: Job,
        variables: SharedVariables,
        eager: EagerSteps,
        replicas: ReplicaCheck,
        runs: Sequence[Callable[[], None]],
    ) -> None:
        self._runs = runs
        self._job = job
        self._variables = variables
        self._eager = eager
        self._replicas = replicas
        self._earlier = earlier_graphs()

    def call(self, function: Any, inputs: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Hook around every call of a traced function, a ``ConcreteFunction``.

        Collective, if the function communicates or returns gradients: all ranks.
        """
        graph = function.graph
        state = function_state.function_state(graph)
        if state is None:
            if self._earlier and self._job.switches.rewrites:
                self._earlier.check_function(graph)
            return call()
        self._check(function, state)
        state.used_by(function)
        if self._job.switches.alone_depth:
            return call()
        if not tf.executing_eagerly():
            return self._call_inside(graph, state, inputs, call)
        with self._job.training(f"the function {graph.name}") if state.collectives else contextlib.nullcontext():
            return self._call_eagerly(graph, state, inputs, call)

    def _call_eagerly(
        self, graph: Any, state: function_state.FunctionState, inputs: Sequence[Any], call: Callable[[], Any]
    ) -> Any:
        for action in (*self._runs, *(block.before for block in state.blocks)):
            action()
        known = self._variables.by_handle
        arguments = [v for t in inputs if t.dtype == tf.resource and (v := known(t)) is not None]
        given = tuple(tf_variables.handle_number(v.handle) for v in arguments)
        if given not in state.prepared:
            outside = _outside(graph, state, inputs)
            _check_accumulated(graph, state, outside)
            used = [*_captured(graph), *arguments]
            self._begin(state, {outside.get(key, key) for key in state.trained}, used)
            state.prepared[given] = self._prepared(graph, state, used)
        program, returned_gradients, set_inside = state.prepared[given]
        self._share_set(state)

        def met() -> Any:
            for meet in state.meetings:
                meet(sum(t.shape.num_elements() * t.dtype.size for t in inputs if t.dtype != tf.resource))
            return call()

        ended = function_state.ending(met, state.blocks)
        result = self._replicas.around(list(state.collectives), program, not state.applied, ended)
        if returned_gradients:
            last = {c: c.step for c in self._job.functions.executed_last}
            result = self._averaged(result, returned_gradients, _outside(graph, state, inputs))
            executed = [c for c in self._job.functions.executed_last if last.get(c) != c.step]
            state.averaged_by = executed or state.averaged_by
        exchanges = [*state.collectives, *state.averaged_by]
        if any(collective.heard.root_only for collective in exchanges):
            for collective in exchanges:
                collective.says.overwritten = collective.heard.root_only = False
            self._variables.share_new(_SET)
            self._job.say_set_apart()
        if set_inside:
            self._variables.check_same([v for r in set_inside if (v := r()) is not None], graph.name)
        return result

    def _share_set(self, state: function_state.FunctionState) -> None:
        """Share the variables that this rank's script has set since the last step.

        If all ranks have set some, they share them now. If only some ranks have, the others wait in the first exchange
        of this call already. Then its steps use rank 0's gradients alone, and rank 0's values are shared after it.

        Collective: all ranks, if this rank has set some.
        """
        if not self._variables.any_set:
            return
        exchanges = [*state.collectives, *state.averaged_by]
        first = next((c for c in exchanges if c.everyone and c.step and not c.deferred), None)
        if first is None or first.meet_before():
            self._variables.share_new(_SET)
            return
        for collective in exchanges:
            collective.says.overwritten = collective.averages or collective.blocks

    def _set_inside(self, graph: Any, state: function_state.FunctionState) -> list[weakref.ref[Any]]:
        """Return the trained variables that a function sets to its inputs, as functions for SciPy's optimizers do."""
        of_handle = {id(inner): self._variables.by_handle(t) for t, inner in graph.captures if t.dtype == tf.resource}
        averages = make_state(graph).exchanged
        written = {
            tf_variables.name(variable): variable
            for op in graph.get_operations()
            if writes.may_write(op.type) and op.inputs
            if (variable := of_handle.get(id(op.inputs[0]))) is not None
            if averages.isdisjoint(ancestors([t.op for t in op.inputs[1:]]))
        }
        return [weakref.ref(v) for v in written.values() if tf_variables.key(v) in state.trained]

    def _check(self, function: Any, state: function_state.FunctionState) -> None:
        """Raise an error if a graph was traced for another use than this call."""
        alone, name = self._job.switches.alone_depth > 0, function.graph.name
        if alone and state.collectives:
            raise RuntimeError(
                f"inside tfdist.alone, the function {name} is called, which was traced outside, with an exchange "
                "between the ranks. Make another tf.function of it inside tfdist.alone"
            )
        if not alone and state.alone:
            raise RuntimeError(
                f"the function {name} computes gradients as it was traced inside tfdist.alone, for one rank. "
                "Make another tf.function of it outside"
            )
        if state.leaves and (self._eager.recording or not tf.executing_eagerly()):
            raise RuntimeError(
                f"the function {name} was traced outside functions and tapes. It returns values computed from averages "
                "of gradients, which have no derivatives. Make another tf.function of it for use inside functions and "
                "tapes"
            )

    def _begin(self, state: function_state.FunctionState, trained: set[Hashable | None], used: Sequence[Any]) -> None:
        """Open a function's collectives and share new variables, before its first call with these variables.

        Collective, if something is new: all ranks.

        Args:
          state: state of the function.
          trained: keys of the variables that it trains.
          used: variables that it uses.
        """
        unknown = [c for c in state.collectives if c.channel is None]
        self._job.open(list(state.collectives))
        if any(c.everyone for c in unknown) and any(self._job.world.control.arrive(_SET, int(self._variables.any_set))):
            self._variables.share_new(_SET)
        # Compared by trained variables: a new trace or new metrics on one rank alone must not start an exchange.
        new = not trained <= self._variables.trained
        if new:
            self._variables.adapted.compare(self._job.world.control)
            self._variables.trained |= trained
            for names in state.collectives.values():
                agreement.check_order(self._job.world.control, names, initial_sync.NAMES)
        if new and self._job.switches.shares:
            self._variables.take([v for v in used if tf_variables.key(v) in trained])
            self._variables.share(used)

    def _prepared(self, graph: Any, state: function_state.FunctionState, used: Sequence[Any]) -> _Prepared:
        program = None
        if state.collectives:
            reads = loss_reads([tensor for mark in state.marks for tensor in mark.sources])
            program = EagerProgram(self._variables, used, reads)
        returned = writes.returned(graph)
        return _Prepared(program, returned, self._set_inside(graph, state) if returned or state.leaves else [])

    def _call_inside(
        self, graph: Any, state: function_state.FunctionState, inputs: Sequence[Any], call: Callable[[], Any]
    ) -> Any:
        """Build the call inside another function, after that function's earlier exchanges and before its later ones."""
        returned_gradients = writes.returned(graph)
        outside = _outside(graph, state, inputs)
        _check_accumulated(graph, state, outside)
        function_state.include(state, outside, except_for=[one.marker for one in returned_gradients.values()])
        outer: Any = tf.compat.v1.get_default_graph()
        if state.collectives:
            own = next(function_state.around(outer))
            before = own.last
            if function_state.compiled_as():
                own.meetings += state.meetings
            elif state.meetings:
                given = [t for t in inputs if is_symbolic(t) and t.graph is outer]
                before = build_meetings(state.meetings, self._job, given, before)
            known = len(outer.get_operations())
            with tf.control_dependencies(before):
                result = call()
            own.last = [op for op in outer.get_operations()[known:] if op.type.endswith("PartitionedCall")] or own.last
        else:
            result = call()
        return self._marked(result, returned_gradients, outside) if returned_gradients else result

    def _marked(
        self, result: Any, returned_gradients: dict[int, Returned], outside: Mapping[Hashable | None, Hashable | None]
    ) -> Any:
        """Mark the gradients among the results again, for the outer function."""
        of = tuple(marks.tensor_key(t) for t in tf.nest.flatten(result) if isinstance(t, tf.Tensor))

        def mark(one: Returned, value: Any) -> Any:
            key = one.marker.variable
            return marks.mark(outside.get(key, key), one.marker.name, value, of, each=not one.itself)

        return _with_gradients(result, returned_gradients, lambda found: [mark(one, value) for one, value in found])

    def _averaged(
        self, result: Any, returned_gradients: dict[int, Returned], outside: Mapping[Hashable | None, Hashable | None]
    ) -> Any:
        """Replace the gradients among the results with averages, for the eager caller."""

        def average(found: Sequence[tuple[Returned, Any]]) -> list[Any]:
            keys = [outside.get(one.marker.variable, one.marker.variable) for one, _ in found]
            combined = [key for key, (one, _) in zip(keys, found, strict=True) if not one.itself]
            self._eager.own(combined, "a function returns values that it computes from several of them, as in a loop")
            itself = [i for i, (one, _) in enumerate(found) if one.itself]
            values = [value for _, value in found]
            names = [found[i][0].marker.name for i in itself]
            averages = self._eager.left([keys[i] for i in itself], names, [values[i] for i in itself]) if itself else []
            for i, value in zip(itself, averages, strict=True):
                values[i] = value
            return values

        return _with_gradients(result, returned_gradients, average)


def _check_accumulated(
    graph: Any, state: function_state.FunctionState, outside: Mapping[Hashable | None, Hashable | None]
) -> None:
    """Check that a function does not mix the accumulated gradients of two variables.

    Raises:
      RuntimeError: a function that accumulates is called with another variable than it was traced with.
    """
    if any(outside.get(key, key) != key for key in state.accumulated):
        raise RuntimeError(
            f"the function {graph.name} accumulates gradients (accumulate_steps) of a variable that is its argument, "
            "and is called with another variable. Make a tf.function of it for each variable, or let it use the "
            "variable as a closure or an attribute"
        )


def _captured(graph: Any) -> list[Any]:
    """Return a function's captured variables in the order of their first use, which is the same on all ranks."""
    by_handle = {tf_variables.handle_number(v.handle): v for v in graph.variables if not is_symbolic(v.handle)}
    captured = (external for external, _ in graph.captures)
    handles = (tf_variables.handle_number(t) for t in captured if not is_symbolic(t))
    return [by_handle[handle] for handle in handles if handle in by_handle]


def _outside(
    graph: Any, state: function_state.FunctionState, inputs: Sequence[Any]
) -> dict[Hashable | None, Hashable | None]:
    """Return the keys of the variables that a call passes as arguments, by the keys inside the function.

    Inside, the key is that of the variable with which the function was traced. Each call may pass another variable.
    """
    pairs = [(one, given) for one, given in zip(graph.inputs, inputs, strict=False) if one.dtype == tf.resource]
    return {state.handles.get(one.name, handle_key(one)): handle_key(given) for one, given in pairs}


def _with_gradients(
    result: Any, returned_gradients: dict[int, Returned], replace: Callable[[list[tuple[Returned, Any]]], list[Any]]
) -> Any:
    """Return a function's results with replaced gradients.

    Args:
      result: results in any structure.
      returned_gradients: markers of gradients, by their number among the outputs; slices count as several.
      replace: gets a (marker, gradient) pair for each gradient, and returns the new gradients.
    """
    flat = tf.nest.flatten(result)
    found, place = [], 0
    for number, item in enumerate(flat):
        if place in returned_gradients and item is not None:
            found.append((number, returned_gradients[place], item))
        place += len([x for x in tf.nest.flatten(item, expand_composites=True) if x is not None])
    for (number, *_), gradient in zip(found, replace([(m, g) for _, m, g in found]), strict=True):
        flat[number] = gradient
    return tf.nest.pack_sequence_as(result, flat)
