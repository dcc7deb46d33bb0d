"""Marking: gradients with respect to variables pass markers when they are made; which ones are behind a tensor."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.graph import function_state
from tfdist.graph.graph_state import GraphState, make_state, state_of
from tfdist.graph.job import Job
from tfdist.graph.markers import Gradient, Marker, variable_key, variable_name
from tfdist.graph.traversal import ancestors, called_functions


def marked(
    variables: Sequence[Any], gradients: Sequence[Gradient | None], job: Job, targets: Any = (), each: bool = False
) -> list[Gradient | None]:
    """Mark the gradients that are with respect to variables.

    Args:
      variables: the ``xs`` of ``tf.gradients``: variables, or tensors.
      gradients: of them.
      job: whether slices become dense.
      targets: what was differentiated: tensors in any structure.
      each: they are the derivatives of many numbers; see ``markers.Marker``.

    Returns:
      The gradients, to be used instead.
    """
    of = [t for t in tf.nest.flatten(targets) if isinstance(t, tf.Tensor) and is_symbolic(t)]
    state = state_of(tf.compat.v1.get_default_graph())
    through = [*markers_behind(of, state), *in_loops(of, state)] if state and state.pending else []
    for marker in through:
        marker.differentiated = True
    calls = tuple(map(tensor_key, of))
    return [
        _mark(key, variable_name(x), dense_if_asked(gradient, job), calls, each and not through)
        if gradient is not None and (key := variable_key(x)) is not None
        else gradient
        for x, gradient in zip(variables, gradients, strict=True)
    ]


def tensor_key(tensor: tf.Tensor) -> Hashable:
    """What identifies a tensor in a graph."""
    return id(tensor.graph), tensor.name


def marked_again(
    inner: Marker, variable: Hashable, gradient: Gradient, of: tuple[Hashable, ...], each: bool
) -> Gradient:
    """A gradient that a function has handed to the one around it, where its variable has this key."""
    return _mark(variable, inner.name, gradient, of, each)


def dense_if_asked(gradient: Gradient, job: Job) -> Gradient:
    """Slices as a dense tensor, if that was configured."""
    return tf.convert_to_tensor(gradient) if job.switches.sparse_as_dense else gradient


def _mark(key: Hashable, name: str, gradient: Gradient, of: tuple[Hashable, ...], each: bool) -> Gradient:
    graph = tf.compat.v1.get_default_graph()
    with tf.name_scope("tfdist/mark"):
        if isinstance(gradient, tf.Tensor):
            tensors: tuple[tf.Tensor, ...] = (tf.identity(gradient),)
            result: Gradient = tensors[0]
        else:
            # The average has more rows than this rank's gradient: placeholder_with_default keeps TensorFlow from
            # concluding anything from the present number.
            tensors = (
                tf.compat.v1.placeholder_with_default(gradient.values, [None, *gradient.values.shape[1:]]),
                tf.compat.v1.placeholder_with_default(gradient.indices, [None]),
            )
            result = tf.IndexedSlices(*tensors, dense_shape=gradient.dense_shape)
    sources = tuple(t.op.inputs[0] for t in tensors)
    marker = Marker(key, name, tensors, getattr(gradient, "dense_shape", None), sources, graph.version, of, each)
    state = make_state(graph)
    state.markers.update({t.op: marker for t in tensors})
    if not function_state.in_session():
        for around in function_state.around(graph):
            around.marks.append(marker)
    return result


def marker_of(tensor: tf.Tensor, state: GraphState) -> Marker | None:
    """Of the gradient that a tensor of a graph is; None if it is none, or is only made of some."""
    op = tensor.op
    while op.type == "Identity" and op not in state.markers:
        op = op.inputs[0].op
    return state.markers.get(op)


def of_gradients(tensor: tf.Tensor) -> bool:
    """Whether a tensor is made of gradients."""
    state = state_of(tf.compat.v1.get_default_graph())
    return bool(state and state.pending and markers_behind([tensor], state))


def in_loops(values: Iterable[tf.Tensor], state: GraphState) -> list[Marker]:
    """Gradients in the bodies of loops and conditions that tensors come out of."""
    bodies: dict[str, list[Marker]] = {}
    for marker in state.markers.values():
        graph = marker.tensors[0].graph
        while not marker.averaged and getattr(graph, "outer_graph", None) is not None:
            bodies.setdefault(graph.name, []).append(marker)
            graph = graph.outer_graph
    if not bodies:
        return []
    return [m for op in _behind(values, state) for name in called_functions(op) for m in bodies.get(name, ())]


def exchanged_behind(values: Iterable[tf.Tensor], state: GraphState) -> bool:
    """Whether a tensor is made of what has come from other ranks."""
    return any(op in state.exchanged for op in _behind(values, state))


def markers_behind(values: Iterable[tf.Tensor], state: GraphState) -> list[Marker]:
    """The nearest markers that tensors depend on, in no order that matters."""
    return list(dict.fromkeys(state.markers[op] for op in _behind(values, state) if op in state.markers))


def _behind(values: Iterable[tf.Tensor], state: GraphState) -> Iterator[tf.Operation]:
    """The operations that tensors depend on, up to gradients and what has come from other ranks."""
    start = [t.op for t in values if is_symbolic(t)]  # rows may have a value already
    return ancestors(start, stop=lambda op: op in state.markers or op in state.exchanged, control=False)
