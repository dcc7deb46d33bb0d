"""Marking: passes gradients with respect to variables through markers, and finds the markers behind a tensor."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Iterator, Sequence, Set
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.compat.variables import is_overwritten, reads_own_table
from tfdist.graph import function_state, traversal
from tfdist.graph.graph_state import GraphState, make_state, state_of
from tfdist.graph.job import Job
from tfdist.graph.markers import Gradient, Marker, handle_key, variable_key, variable_name
from tfdist.graph.traversal import ancestors, called_functions

_OWN_TABLE = (
    "{}: rows of a dynamic embedding (TensorFlow Recommenders Addons) are in a hash table of each rank. The tables "
    "would go apart. Use keras.layers.Embedding, with keras.layers.Hashing for unbounded ids, "
    "or train on one rank"
)


def marked(
    variables: Sequence[Any], gradients: Sequence[Gradient | None], job: Job, targets: Any = (), each: bool = False
) -> list[Gradient | None]:
    """Mark the gradients that are with respect to variables.

    Args:
      variables: the ``xs`` of ``tf.gradients``: variables, or tensors.
      gradients: gradients with respect to them.
      job: job with the switch that makes slices dense.
      targets: tensors that were differentiated, in any structure.
      each: True if the gradients are derivatives of many numbers; see ``markers.Marker``.

    Returns:
      The gradients to use instead.
    """
    refuse_own_tables(variables)
    of = [t for t in tf.nest.flatten(targets) if isinstance(t, tf.Tensor) and is_symbolic(t)]
    state = state_of(tf.compat.v1.get_default_graph())
    through = [*markers_behind(of, state), *in_loops(of, state)] if state and state.pending else []
    for marker in through:
        marker.targets += [t.op for t in of]
    calls = tuple(map(tensor_key, of))
    _note_of_tensors(variables, gradients)
    return [
        mark(key, variable_name(x), dense_if_asked(gradient, job), calls, each and not through)
        if gradient is not None and (key := variable_key(x)) is not None and not is_overwritten(x)
        else gradient
        for x, gradient in zip(variables, gradients, strict=True)
    ]


def refuse_own_tables(variables: Sequence[Any]) -> None:
    """Check that no variable's rows are in a table that is not shared.

    Raises:
      RuntimeError: a variable reads a dynamic embedding.
    """
    for variable in variables:
        if reads_own_table(variable):
            raise RuntimeError(_OWN_TABLE.format(variable.name))


def _note_of_tensors(xs: Sequence[Any], gradients: Sequence[Gradient | None]) -> None:
    for x, gradient in zip(xs, gradients, strict=True):
        values = getattr(gradient, "values", gradient)
        if not isinstance(x, tf.Tensor) or not isinstance(values, tf.Tensor) or variable_key(x) is not None:
            continue
        if is_symbolic(x) and is_symbolic(values):
            state = make_state(x.graph)
            # With other gradients behind it, it continues a chain, and they are averaged.
            if not set(markers_behind([values], state)).difference(markers_behind([x], state)):
                state.of_tensors[values.op] = x


def tensor_key(tensor: tf.Tensor) -> Hashable:
    """Return a key that identifies a tensor in a graph."""
    return id(tensor.graph), tensor.name


def dense_if_asked(gradient: Gradient, job: Job) -> Gradient:
    """Return slices as a dense tensor if that is configured; else the gradient."""
    return tf.convert_to_tensor(gradient) if job.switches.sparse_as_dense else gradient


def mark(key: Hashable, name: str, gradient: Gradient, of: tuple[Hashable, ...], each: bool) -> Gradient:
    """Mark a gradient with respect to the variable with this key and name; ``of`` and ``each``: see ``Marker``."""
    graph = tf.compat.v1.get_default_graph()
    with tf.name_scope("tfdist/mark"):
        if isinstance(gradient, tf.Tensor):
            tensors: tuple[tf.Tensor, ...] = (tf.identity(gradient),)
            result: Gradient = tensors[0]
        else:
            # The average has more rows than this rank's gradient: placeholder_with_default hides the present number
            # of rows from TensorFlow's shape inference.
            tensors = (
                tf.compat.v1.placeholder_with_default(gradient.values, [None, *gradient.values.shape[1:]]),
                tf.compat.v1.placeholder_with_default(gradient.indices, [None]),
            )
            result = tf.IndexedSlices(*tensors, dense_shape=gradient.dense_shape)
    sources = tuple(t.op.inputs[0] for t in tensors)
    marker = Marker(key, name, tensors, getattr(gradient, "dense_shape", None), sources, graph.version, of, each)
    state = make_state(graph)
    state.markers.update({t.op: marker for t in tensors})
    for around in function_state.around(graph):
        around.marks.append(marker)
    return result


def marker_of(tensor: tf.Tensor, state: GraphState) -> Marker | None:
    """Return the marker of the gradient that a tensor is; None if it is no gradient, or computed from gradients."""
    op = tensor.op
    while op.type == "Identity" and op not in state.markers:
        op = op.inputs[0].op
    return state.markers.get(op)


def of_gradients(tensor: tf.Tensor) -> bool:
    """Return whether a tensor is computed from gradients."""
    state = state_of(tf.compat.v1.get_default_graph())
    return bool(state and state.pending and markers_behind([tensor], state))


def stay_own(tensors: Sequence[tf.Tensor]) -> bool:
    """Have gradients behind tensors that a script reduces stay this rank's own; return whether there are any.

    An average in their place would change the tensors.
    """
    state = state_of(tf.compat.v1.get_default_graph())
    behind = [] if state is None else [*markers_behind(tensors, state), *in_loops(tensors, state)]
    for marker in behind:
        marker.reduced = not marker.averaged
    return bool(behind)


def in_loops(values: Iterable[tf.Tensor], state: GraphState) -> list[Marker]:
    """Return markers of gradients in the bodies of loops and conditions that tensors depend on."""
    return _in_bodies(_behind(values, state), state)


def uses(marker: Marker, values: Iterable[tf.Tensor], state: GraphState) -> bool:
    """Return whether tensors use a gradient, not only results of the computation that was differentiated again.

    That computation ends in the targets. The loss of meta-learning, and metrics of its inner step, are its results.
    """
    if not marker.differentiated:
        return True
    inside = set(ancestors(marker.targets, control=False)).difference(t.op for t in marker.tensors)
    found = list(_behind(values, state, inside))
    return any(state.markers.get(op) is marker for op in found) or marker in _in_bodies(found, state)


def _in_bodies(operations: Iterable[tf.Operation], state: GraphState) -> list[Marker]:
    bodies: dict[str, list[Marker]] = {}
    for marker in state.markers.values():
        graph = marker.tensors[0].graph
        while not marker.averaged and getattr(graph, "outer_graph", None) is not None:
            bodies.setdefault(graph.name, []).append(marker)
            graph = graph.outer_graph
    if not bodies:
        return []
    return [m for op in operations for name in called_functions(op) for m in bodies.get(name, ())]


def stored_behind(values: Iterable[tf.Tensor], state: GraphState) -> list[tf.Tensor]:
    """Return what a graph puts into the queues and accumulators from which tensors come."""
    return [tensor for op in _behind(values, state) for tensor in traversal.stored_behind(op)]


def tensor_of(variables: Set[Hashable], values: Iterable[tf.Tensor], state: GraphState) -> tf.Tensor | None:
    """Return a tensor that is computed from one of the variables, and whose gradient the values depend on; or None."""
    values = [*values, *stored_behind(values, state)] if state.of_tensors else []
    for op in _behind(values, state):
        found = state.of_tensors.get(op)
        before = ancestors([found.op], control=False) if found is not None else ()
        if any(handle_key(t) in variables for one in before for t in one.inputs):
            return found
        for body in traversal.bodies(op):
            pairs = zip(op.inputs[traversal.arguments(op) :], body.inputs, strict=False)
            inside = {inner.op for given, inner in pairs if handle_key(given) in variables}
            found = tensor_of(variables | inside, body.outputs, state)
            if found is not None:
                return found
    return None


def left_to_optimizer(values: Iterable[tf.Tensor], state: GraphState) -> None:
    """Note that an optimizer applies these values. It averages them, or blocks average the weights."""
    for op in _behind(values, state) if state.of_tensors else ():
        state.of_tensors.pop(op, None)
        for body in traversal.bodies(op):
            left_to_optimizer(body.outputs, state)


def exchanged_behind(values: Iterable[tf.Tensor], state: GraphState) -> bool:
    """Return whether a tensor depends on results of exchanges with other ranks."""
    return any(op in state.exchanged for op in _behind(values, state))


def markers_behind(values: Iterable[tf.Tensor], state: GraphState) -> list[Marker]:
    """Return the nearest markers that tensors depend on; their order does not matter."""
    return list(dict.fromkeys(state.markers[op] for op in _behind(values, state) if op in state.markers))


def _behind(
    values: Iterable[tf.Tensor], state: GraphState, stop: Container[tf.Operation] = ()
) -> Iterator[tf.Operation]:
    """Yield the operations that tensors depend on, up to gradients, results of exchanges, and excluding ``stop``."""
    start = [t.op for t in values if is_symbolic(t)]  # rows may be eager tensors
    ends = (state.markers, state.exchanged, stop)
    found = ancestors(start, stop=lambda op: any(op in end for end in ends), control=False)
    return (op for op in found if op not in stop)
