"""Variable writes: averages of gradients that reach a variable by ``assign`` and similar operations, without optimizer.

What is put into a queue, a table or a staging area is averaged too, as its use cannot be followed. In a function the
averages are built when the operation is made. In a session's graph they are built before the next run, or when the
graph is finalized. Only later operations show whether a write trains, or accumulates gradients that an optimizer
applies.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat.graphs import compiled, is_plain_function, is_reference, is_symbolic
from tfdist.gradients import marks, rewrite
from tfdist.graph import function_state
from tfdist.graph.graph_state import GraphState, state_of
from tfdist.graph.job import Job
from tfdist.graph.markers import Marker, handle_key
from tfdist.graph.traversal import STORES, ancestors, outermost

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_LINEAR = ("Identity", "ReadVariableOp", "Cast", "Const", "Mul", "RealDiv", "Reciprocal", "Neg", "Switch", "Merge")


@functools.cache
def may_write(op_type: str) -> bool:
    """Return whether operations of this type may store their inputs beyond a step."""
    return STORES.search(op_type) is not None


def in_function(op_type: str, inputs: Sequence[Any], job: Job) -> None:
    """Average the gradients that an operation writes to a variable, before it is made in a function's graph."""
    graph = tf.compat.v1.get_default_graph()
    state = state_of(graph)
    if state is None or not (state.pending or state.of_tensors):
        return
    values, written, writes = _stored(op_type, inputs), handle_key(inputs[0]), f"{op_type} in {graph.name}"
    _refuse_of_tensors(values, writes, state, written)
    rewrite.average_behind(values, writes, state, job, written)


def before_run(graph: tf.Graph, job: Job) -> None:
    """Average the gradients that new operations write to variables, before a session runs a graph.

    Raises:
      RuntimeError: gradients reach a variable and cannot be averaged, or not any more.
    """
    state = state_of(graph)
    if state is None or not (state.pending or state.of_tensors) or not job.switches.rewrites:
        return
    if state.examined_version == graph.version:  # to list the operations of a large graph takes time in each run
        return
    operations, state.examined_version = graph.get_operations(), graph.version
    new, state.examined = operations[state.examined :], len(operations)
    writes = [op for op in new if may_write(op.type) and _stored(op.type, op.inputs)]
    accumulators = _accumulators(state) if writes else set()
    with graph.as_default():
        for op in writes:
            written, values, named = _variable_of(op), _stored(op.type, op.inputs), f"{op.type} {op.name!r}"
            _refuse_of_tensors(values, named, state, written)
            if written not in accumulators and rewrite.average_behind(values, named, state, job, written):
                state.trained[written] = None


def _refuse_of_tensors(values: Sequence[tf.Tensor], writes: str, state: GraphState, variable: Any) -> None:
    # A stage, or a queue that the function makes, has no key.
    if variable is not None and (tensor := marks.tensor_of({variable}, values, state)) is not None:
        raise RuntimeError(
            f"{writes} gets a value computed from gradients with respect to {tensor.name}, a tensor that is computed "
            "from the variable. tfdist averages gradients with respect to variables. Differentiate with respect to the "
            "variable (of a rounded one: by v + tf.stop_gradient(tf.round(v) - v)). Or average the value by "
            "tfdist.all_reduce(value, 'mean'), and begin with tfdist.broadcast(values)"
        )


def _accumulators(state: GraphState) -> set[Any]:
    """Return the variables in which a rank accumulates its own gradients, which are averaged when they are applied.

    The optimizer must apply a multiple of them. If the script clips them, for example, they must be averaged before.
    """
    found: set[Any] = set()
    for tensor in state.late:
        behind = list(ancestors([tensor.op], control=False))
        if all(op.type in _LINEAR + _VARIABLES for op in behind):
            found.update(op for op in behind if op.type in _VARIABLES)
    return found


def _variable_of(op: tf.Operation) -> tf.Operation:
    return next((o for o in ancestors([op.inputs[0].op], control=False) if o.type in _VARIABLES), op)


def _stored(op_type: str, inputs: Sequence[Any]) -> list[tf.Tensor]:
    """Return the inputs that an operation stores where the first input is the handle of."""
    first = getattr(inputs[0], "dtype", None) if len(inputs) else None
    stored = inputs if op_type.endswith("Stage") else inputs[1:] if first is not None and _is_handle(first) else ()
    return [t for t in stored if isinstance(t, tf.Tensor) and is_symbolic(t)]


def _is_handle(dtype: tf.DType) -> bool:
    return bool(dtype == tf.resource or is_reference(dtype))


def leaving(result: Any, job: Job, recording: bool) -> None:
    """Average the gradients from which a function has computed its results, before it returns them.

    So a norm or a step is computed from averages. Gradients that a function returns unchanged are left to the caller,
    which may be another function that clips them.
    """
    graph = tf.compat.v1.get_default_graph()
    state = state_of(graph)
    if state is None or not state.pending or not job.switches.rewrites or not is_plain_function(graph):
        return
    # An outer function or tape may differentiate the results, and an average has no derivative. XLA cannot compile an
    # average either.
    if recording or outermost(graph) is not graph or compiled():
        return
    tensors = [t for t in tf.nest.flatten(result, expand_composites=True) if isinstance(t, tf.Tensor)]
    made = [t for t in tensors if is_symbolic(t) and t.op not in state.markers]
    made = [t for t in made if not rewrite.combined_behind(t, state)]
    if rewrite.average_behind(made, "the result of a function", state, job):
        next(function_state.around(graph)).leaves = True


class Returned(NamedTuple):
    """Output of a function that is a gradient or depends on one.

    Attributes:
      marker: marker of the gradient.
      itself: True if the output is the gradient; False if it is computed from this rank's own gradient.
    """

    marker: Marker
    itself: bool


def returned(graph: Any) -> dict[int, Returned]:
    """Return the outputs of a function that depend on gradients without average, by their number among the outputs."""
    state = state_of(graph)
    if state is None or not state.pending:
        return {}
    found = {}
    for number, tensor in enumerate(graph.outputs):
        marker = marks.marker_of(tensor, state)
        itself = marker is not None and not marker.each
        if marker is None and (tensor.dtype.is_floating or tensor.dtype.is_complex):
            marker = rewrite.late_behind(tensor, state)
        if marker is not None and not marker.averaged:
            found[number] = Returned(marker, itself)
    return found


def fetched(fetches: Any, state: GraphState) -> Marker | None:
    """Return the marker of a fetched gradient that has not been averaged; None if there is none."""
    tensors = (f for f in tf.nest.flatten(fetches, expand_composites=True) if isinstance(f, tf.Tensor))
    markers = (marks.marker_of(tensor, state) for tensor in tensors)
    return next((m for m in markers if m is not None and not m.averaged), None)
