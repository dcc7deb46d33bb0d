"""Gradient rewrite: gradients are marked when made; when applied, averages take the marks' place, before clipping.

A script may clip between ``tf.gradients`` and ``apply_gradients``, and averaging what has been clipped is not the
training of one process. So gradients with respect to variables are only marked when they are made; when an optimizer
applies something that depends on them, their average takes their place behind the marks, upstream of clipping, norms
and summaries. A graph without an optimizer gets no communication.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from tfdist.graph import function_state
from tfdist.graph.gradient_average import reducer_of
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.job import Job
from tfdist.graph.markers import Gradient, Marker, variable_key, variable_name
from tfdist.graph.traversal import ancestors, is_symbolic, unconstrained

_UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")


def marked(variables: Sequence[Any], gradients: Sequence[Gradient | None], job: Job) -> list[Gradient | None]:
    """Mark the gradients that are with respect to variables.

    Args:
      variables: the ``xs`` of ``tf.gradients``: variables, or tensors.
      gradients: of them.
      job: whether slices become dense.

    Returns:
      The gradients, to be used instead.
    """
    return [
        _mark(key, variable_name(x), _dense_if_asked(gradient, job))
        if gradient is not None and (key := variable_key(x)) is not None
        else gradient
        for x, gradient in zip(variables, gradients, strict=True)
    ]


def averaged_at_once(variables: Sequence[Any], gradients: Sequence[Gradient | None], job: Job) -> list[Gradient | None]:
    """The averages of gradients that a tape has computed eagerly, where nothing can be rewired later.

    Collective: all ranks. Arguments as for ``marked``.
    """
    chosen = [i for i, g in enumerate(gradients) if g is not None and variable_key(variables[i]) is not None]
    result = list(gradients)
    if chosen:
        names = [variable_name(variables[i]) for i in chosen]
        own = [_dense_if_asked(gradients[i], job) for i in chosen]
        for i, gradient in zip(chosen, _build(own, names, job), strict=True):
            result[i] = gradient
    return result


def _dense_if_asked(gradient: Gradient, job: Job) -> Gradient:
    return tf.convert_to_tensor(gradient) if job.switches.sparse_as_dense else gradient


def _mark(key: Hashable, name: str, gradient: Gradient) -> Gradient:
    graph = ops.get_default_graph()
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
    marker = Marker(key, name, tensors, getattr(gradient, "dense_shape", None), graph.version)
    state = make_state(graph)
    state.markers.update({t.op: marker for t in tensors})
    if not function_state.in_session():
        for around in function_state.around(graph):
            around.marks.append(marker)
    return result


def averaged(grads_and_vars: Sequence[tuple[Any, Any]], job: Job) -> list[tuple[Any, Any]]:
    """What an optimizer is to apply instead, after the average has been put behind the marks.

    Args:
      grads_and_vars: as given to ``apply_gradients``.
      job: the ranks and settings.
    """
    grads_and_vars = [(_tensor(gradient), variable) for gradient, variable in grads_and_vars]
    in_function = not function_state.in_session()
    if in_function:
        function_state.apply_to(variable_key(variable) for _, variable in grads_and_vars)
    state = make_state(ops.get_default_graph())
    behind: dict[Marker, None] = {}
    direct = []
    for index, (gradient, variable) in enumerate(grads_and_vars):
        if gradient is None:
            continue
        markers = _markers_behind(gradient, state)
        if any(m.variable == variable_key(variable) for m in markers):
            behind.update(dict.fromkeys(markers))
        else:
            direct.append(index)  # made in another way (accumulated, say): averaged as it is applied
    pending = [m for m in behind if not m.averaged]
    reason = _obstacle(pending, state)
    if reason:
        warnings.warn(
            f"tfdist averages gradients where they are applied, after any clipping, because {reason}",
            stacklevel=4,
        )
        direct = [i for i, (gradient, _) in enumerate(grads_and_vars) if gradient is not None]
    else:
        _rewire(pending, job)
    applied = [g for g, _ in grads_and_vars]
    if direct:
        late = {variable_key(grads_and_vars[i][1]) for i in direct}
        marks = next(function_state.around(ops.get_default_graph())).marks if in_function else []
        if any(m.variable in late and not m.averaged for m in marks):
            warn_of_late_average("a tf.function or a loop inside this one")
        names = [variable_name(grads_and_vars[i][1]) for i in direct]
        own = [_dense_if_asked(applied[i], job) for i in direct]
        for i, gradient in zip(direct, _build(own, names, job), strict=True):
            applied[i] = gradient
    return [(g, v) for g, (_, v) in zip(applied, grads_and_vars, strict=True)]


def _tensor(gradient: Any) -> Gradient | None:
    """Optimizers take variables and arrays for gradients too."""
    return gradient if gradient is None or isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)


def warn_of_late_average(where: str) -> None:
    """Gradients were computed where their average cannot take their place any more."""
    warnings.warn(
        f"gradients come out of {where}, so tfdist averages them where they are applied, after any clipping: compute "
        "and apply them in one function to have the average clipped",
        stacklevel=5,
    )


def average_before(value: Any, job: Job) -> None:
    """Put averages behind whatever gradients a value depends on that a function assigns to a variable.

    This is how optimizers train that tfdist does not know, and how gradients are accumulated.
    """
    state = make_state(ops.get_default_graph())
    if all(m.averaged for m in state.markers.values()):
        return
    value = _tensor(value)
    pending = [] if value is None else [m for m in _markers_behind(value, state) if not m.averaged]
    reason = _obstacle(pending, state)
    if reason:
        raise RuntimeError(
            f"a variable is assigned a value made of gradients that cannot be averaged, because {reason}"
        )
    function_state.apply_to(m.variable for m in pending)
    _rewire(pending, job)


def unknown_update(graph: Any) -> str | None:
    """What updates a variable by gradients in a function without tfdist's knowledge: an operation's type, or None."""
    state = make_state(graph)
    if all(m.averaged for m in state.markers.values()):
        return None
    for op in graph.get_operations():
        if op.type.startswith(_UPDATES):
            reached = ancestors([op], stop=state.markers.__contains__, control=False)
            if any(o in state.markers and not state.markers[o].averaged for o in reached):
                return str(op.type)
    return None


def _components(gradient: Gradient) -> list[tf.Tensor]:
    return [gradient] if isinstance(gradient, tf.Tensor) else [gradient.values, gradient.indices]


def _markers_behind(gradient: Gradient, state: GraphState) -> list[Marker]:
    """The nearest markers that a gradient depends on, in no order that matters."""
    start = [t.op for t in _components(gradient) if is_symbolic(t)]  # rows may have a value already
    reached = ancestors(start, stop=state.markers.__contains__, control=False)
    return list(dict.fromkeys(state.markers[op] for op in reached if op in state.markers))


def _obstacle(pending: Sequence[Marker], state: GraphState) -> str | None:
    """Why rewiring these markers is impossible; None if it is not."""
    if any(m.version <= state.ran_version for m in pending):
        return "a session has already run this part of the graph; build the optimizer before the first run"
    marking = {t.op for m in pending for t in m.tensors}
    sources = [t.op.inputs[0].op for m in pending for t in m.tensors]
    if any(op in marking for op in ancestors(sources)):
        return "some gradients depend on other gradients that are applied too"
    return None


def _rewire(markers: Sequence[Marker], job: Job) -> None:
    # An average stands where its gradients do, which may be outside the cond that applies it.
    places: dict[tuple[ops.Graph, int], list[Marker]] = {}
    for marker in markers:
        op = marker.tensors[0].op
        places.setdefault((op.graph, id(op._get_control_flow_context())), []).append(marker)
    for (graph, _), members in places.items():
        with graph.as_default():
            # The order of construction is that of the backward pass, and the same on all ranks.
            members.sort(key=lambda m: m.tensors[0].op.inputs[0].op._id)
            names = [m.name for m in members]
            results = _build([m.gradient for m in members], names, job, beside=members[0].tensors[0].op)
        for marker, result in zip(members, results, strict=True):
            marker.replace(result)


def _build(
    gradients: Sequence[Gradient], names: Sequence[str], job: Job, beside: ops.Operation | None = None
) -> list[Gradient]:
    reducer = reducer_of(job)
    if tf.executing_eagerly():
        return reducer.reduce(gradients, names, job.world)
    with unconstrained(ops.get_default_graph(), beside), tf.name_scope("tfdist/average"):
        return reducer.reduce(gradients, names, job.world)
