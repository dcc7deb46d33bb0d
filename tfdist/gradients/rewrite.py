"""Gradient rewrite: averages replace gradients at the place where they are computed, before clipping.

A script may clip between ``tf.gradients`` and ``apply_gradients``. The average of clipped gradients differs from the
training of one process. So gradients with respect to variables are only marked when they are computed. When an
optimizer applies values that depend on them, their average becomes the input of the marks, upstream of clipping, norms
and summaries. Graphs that do not train do not communicate.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import control_flow, is_symbolic, order, without_control_dependencies
from tfdist.core import exclusions
from tfdist.gradients import marks
from tfdist.gradients.average import reducer_of
from tfdist.graph import function_state
from tfdist.graph.conditions import own_condition
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import REFERENCES, Gradient, Marker, variable_key, variable_name
from tfdist.graph.step_sums import Accumulation
from tfdist.graph.traversal import ancestors


def average_now(gradients: Sequence[Gradient], names: Sequence[str], job: Job) -> list[Gradient]:
    """Return the averages of eager gradients. Collective: all ranks."""
    return _build([marks.dense_if_asked(gradient, job) for gradient in gradients], names, job)


def check_replicas(strategy: Any) -> None:
    """Check that this process computes gradients on one replica.

    Raises:
      RuntimeError: a ``tf.distribute`` strategy has several replicas.
    """
    replicas = getattr(strategy, "num_replicas_in_sync", 1)
    if replicas > 1:
        raise RuntimeError(
            f"{type(strategy).__name__} has {replicas} replicas in this process, but tfdist averages over processes. "
            f"Start a rank for each device (mpirun -n {replicas} python …) and leave the strategy out"
        )


def averaged(
    grads_and_vars: Sequence[tuple[Any, Any]],
    job: Job,
    application: Accumulation | None = None,
    reducer: Reducer | None = None,
) -> list[tuple[Any, Any]]:
    """Put averages behind the marks, and return the pairs that an optimizer is to apply.

    Args:
      grads_and_vars: pairs as given to ``apply_gradients``.
      job: the ranks and settings.
      application: accumulation over several steps; None if each step is applied.
      reducer: reducer of the gradients; None for the job's reducer.
    """
    grads_and_vars = [(_tensor(gradient, variable), variable) for gradient, variable in grads_and_vars]
    function_state.note(variable_key(variable) for _, variable in grads_and_vars)
    state = make_state(tf.compat.v1.get_default_graph())
    behind: dict[Marker, None] = {}
    direct = []
    for index, (gradient, variable) in enumerate(grads_and_vars):
        if gradient is None:
            continue
        markers = marks.markers_behind(_components(gradient), state)
        stored = marks.stored_behind(_components(gradient), state)
        if any(m.variable == variable_key(variable) for m in markers) and not any(m.each for m in markers):
            behind.update(dict.fromkeys(markers))
        elif marks.markers_behind(stored, state):
            average_behind(stored, "a queue or an accumulator", state, job, variable_key(variable))
        else:
            direct.append(index)  # computed in another way (accumulated, for example): averaged when it is applied
    pending = [m for m in behind if not m.averaged]
    reason = _obstacle(pending, state)
    if reason:
        warnings.warn(
            f"tfdist averages gradients where they are applied, after any clipping, because {reason}",
            stacklevel=4,
        )
        direct = [i for i, (gradient, _) in enumerate(grads_and_vars) if gradient is not None]
    else:
        _rewire(pending, state, job, application, reducer)
        for marker in behind:
            if application is not None and marker.due is not None:
                application.due_in(marker.due)
    applied = [g for g, _ in grads_and_vars]
    if direct:
        around = next(function_state.around(tf.compat.v1.get_default_graph()), None)
        unaveraged = {m.variable for m in around.marks if not (m.averaged or m.reduced)} if around else set()
        if any(
            variable_key(grads_and_vars[i][1]) in unaveraged
            and not marks.exchanged_behind(_components(applied[i]), state)
            for i in direct
        ):
            _warn_of_late_average()
        names = [variable_name(grads_and_vars[i][1]) for i in direct]
        own = [marks.dense_if_asked(applied[i], job) for i in direct]
        marks.left_to_optimizer([t for gradient in own for t in _components(gradient)], state)
        for i, gradient in zip(direct, _build(own, names, job, application=application, reducer=reducer), strict=True):
            applied[i] = gradient
        if around is None:
            state.late += [t for gradient in own for t in _components(gradient) if is_symbolic(t)]
    return [(g, v) for g, (_, v) in zip(applied, grads_and_vars, strict=True)]


def warn_of_condition(job: Job) -> None:
    """Warn if an update is inside a condition that may be true on one rank and false on another."""
    found = own_condition(make_state(tf.compat.v1.get_default_graph()).exchanged)
    if found and job.world.size > 1:
        warnings.warn(
            f"an update depends on a condition of this rank's own values, {found}: other ranks may decide differently, "
            "and would then have other weights. Use a value that is the same on all ranks: "
            "tfdist.all_reduce(loss, 'mean')",
            stacklevel=5,
        )


def _tensor(gradient: Any, variable: Any) -> Gradient | None:
    """Return a gradient as a tensor or slices. Optimizers accept variables and arrays as gradients too.

    Gradients that come out of a queue or an accumulator of TensorFlow 1 have no static shape: the variable tells it.
    """
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        values = gradient.values if gradient is not None else None
    else:
        values = gradient = tf.convert_to_tensor(gradient)
    shape = tf.TensorShape(variable.shape)
    if values is not None and values.shape.rank is None and shape.rank is not None:
        values.set_shape(shape if values is gradient else [None, *shape[1:]])
    return gradient


def _warn_of_late_average() -> None:
    """Warn that gradients were computed in an inner function or loop, where averages cannot replace them."""
    warnings.warn(
        "gradients come out of a tf.function or a loop inside this one, so tfdist averages them where they are "
        "applied, after any clipping. Compute and apply them in one function to have the average clipped",
        stacklevel=5,
    )


def average_behind(
    values: Sequence[tf.Tensor], writes: str, state: GraphState, job: Job, variable: Hashable | None = None
) -> bool:
    """Put averages behind all gradients on which these tensors depend, and return whether there were any.

    It serves optimizers that tfdist has no hook for, and scripts that accumulate gradients. An inner gradient, through
    which another one is computed, stays each rank's own, unless it is used directly or updates a trained variable.

    Args:
      values: graph tensors that are stored or returned.
      writes: description of the write, for messages.
      state: state of the graph.
      job: the ranks and settings.
      variable: key of the variable that they are written to; None for other writes.

    Raises:
      RuntimeError: the gradients cannot be averaged any more, or the script combines them before they are averaged.
    """
    updates = any(m.variable == variable for m in state.markers.values())
    behind = (m for m in marks.markers_behind(values, state) if not m.averaged)
    pending = [m for m in behind if updates or marks.uses(m, values, state)]
    reason = _obstacle(pending, state)
    in_loops = [m for m in marks.in_loops(values, state) if updates or marks.uses(m, values, state)]
    if in_loops:
        reason, pending = "they come out of a loop or a condition", in_loops
    if reason:
        raise RuntimeError(
            f"{writes} gets a value computed from gradients of {', '.join(sorted({m.name for m in pending})[:3])}, "
            f"which cannot be averaged here, because {reason}. Apply them by an optimizer's apply_gradients, or "
            "average the value by tfdist.all_reduce(value, 'mean')"
        )
    function_state.note(m.variable for m in pending)
    # Other gradients of the same target will be written next: average them in the same exchange. Gradients of another
    # target must not wait for these, because the script may fetch them alone.
    for of in dict.fromkeys(m.of for m in pending):
        others = (m for m in state.markers.values() if m.of == of and not (m.averaged or m.differentiated))
        siblings = [m for m in others if not _obstacle([m], state)]
        _rewire(list(dict.fromkeys([*(m for m in pending if m.of == of), *siblings])), state, job)
    return bool(pending)


def average_unchanged(tensors: Sequence[Gradient], job: Job) -> list[bool]:
    """Put averages behind the tensors that are unchanged gradients, and return for each tensor whether it is one.

    Values that a script computes from gradients do not count, because each rank may compute them differently, for
    example with weights. With accumulated steps and with blocks, the optimizer decides when gradients are exchanged.
    Then no averages are built here.

    Collective: all ranks, in the same order.

    Args:
      tensors: graph tensors.
      job: the ranks and settings.
    """
    state = make_state(tf.compat.v1.get_default_graph())
    found = [_gradient_itself(tensor, state) for tensor in tensors]
    pending = list(dict.fromkeys(m for m in found if m is not None and not m.averaged))
    settings = job.switches.settings
    if pending and settings.accumulate_steps == 1 and settings.sync == "gradients":
        function_state.note(m.variable for m in pending)
        _rewire(pending, state, job)
    return [marker is not None for marker in found]


def _gradient_itself(gradient: Gradient, state: GraphState) -> Marker | None:
    """Return the marker of an unchanged gradient, if an average is behind it or can be put there; else None."""
    parts = _components(gradient)
    markers = {marks.marker_of(t, state) if is_symbolic(t) else None for t in parts}
    marker = markers.pop()
    if marker is None or markers or len(parts) != len(marker.tensors):
        return None  # for example the values of slices without their indices
    # Must not change any more, for example because another gradient has been computed through it.
    fixed = marker.differentiated or _obstacle([marker], state)
    return marker if marker.averaged or not fixed else None


def combined_behind(tensor: tf.Tensor, state: GraphState) -> bool:
    """Return whether a tensor depends on gradients that the script combines before they are averaged.

    Those are gradients of each example, gradients of a loop's iterations, or gradients that the script has reduced.
    """
    return bool(_obstacle(marks.markers_behind([tensor], state), state) or marks.in_loops([tensor], state))


def late_behind(tensor: tf.Tensor, state: GraphState) -> Marker | None:
    """Return the marker of a gradient, not averaged yet, on which a tensor depends; None if there is none."""
    late = [m for m in marks.markers_behind([tensor], state) if not m.averaged] + marks.in_loops([tensor], state)
    return next((m for m in late if marks.uses(m, [tensor], state)), None)


def _components(gradient: Gradient) -> list[tf.Tensor]:
    return [gradient] if isinstance(gradient, tf.Tensor) else [gradient.values, gradient.indices]


def _obstacle(markers: Sequence[Marker], state: GraphState) -> str | None:
    """Return the reason why gradients must stay this rank's own; None if their average can take their place."""
    if any(m.each for m in markers):
        return "they are the derivatives of each example's loss, which the script combines before the average"
    if any(m.reduced for m in markers):
        return (
            "the script has reduced values over the ranks that it computed from each rank's own gradients "
            "(tfdist.allreduce_n); reduce the gradients first"
        )
    if any(m.version <= state.ran_version for m in markers):
        return "a session has already run this part of the graph; build the optimizer before the first run"
    return None


def _rewire(
    markers: Sequence[Marker],
    state: GraphState,
    job: Job,
    application: Accumulation | None = None,
    reducer: Reducer | None = None,
) -> None:
    # Operations that compute the gradients keep this rank's own values, also where they read other gradients.
    before = set(ancestors([t.op.inputs[0].op for m in markers for t in m.tensors]))
    # An average is built in the graph and condition of its gradients, maybe outside the cond that applies it.
    places: dict[tuple[tf.Graph, int], list[Marker]] = {}
    for marker in markers:
        op = marker.tensors[0].op
        places.setdefault((op.graph, id(control_flow(op))), []).append(marker)
    for (graph, _), members in places.items():
        with graph.as_default():
            # The order of construction is the order of the backward pass, and is the same on all ranks.
            members.sort(key=lambda m: order(m.tensors[0].op.inputs[0].op))
            names = [m.name for m in members]
            beside = members[0].tensors[0].op
            after = _others_of(members, beside, state)
            results = _build([m.gradient for m in members], names, job, beside, after, application, reducer)
        for marker, result in zip(members, results, strict=True):
            marker.replace(result, before)
            marker.due = None if application is None else application.due


def _others_of(markers: Sequence[Marker], beside: tf.Operation, state: GraphState) -> list[tf.Operation]:
    """Return the operations of other gradients of the same target, which must be computed before these are exchanged.

    Operations read a reference variable in place. While an exchange waits, an update of these gradients could change
    the variable before the other gradients are computed.
    """
    targets = {m.of for m in markers if isinstance(m.variable, tf.Operation) and m.variable.type in REFERENCES}
    context = control_flow(beside)
    others = (m for m in state.markers.values() if m.of in targets and not m.differentiated and m not in markers)
    sources = dict.fromkeys(t.op for m in others for t in m.sources)
    return [op for op in sources if op.graph is beside.graph and control_flow(op) is context]


def _build(
    gradients: Sequence[Gradient],
    names: Sequence[str],
    job: Job,
    beside: tf.Operation | None = None,
    after: Sequence[tf.Operation] = (),
    application: Accumulation | None = None,
    reducer: Reducer | None = None,
) -> list[Gradient]:
    steps = job.switches.settings.accumulate_steps
    if steps > 1 and application is None:
        here = f"gradients of {', '.join(names[:3])} are to be averaged here in each step"
        raise RuntimeError(exclusions.HELD_AND_ASSIGNED.told(f"accumulate_steps={steps}", here))
    reducer = reducer or reducer_of(job, application)
    if tf.executing_eagerly():
        return reducer.reduce(gradients, names, job.world)
    graph = tf.compat.v1.get_default_graph()
    with (
        without_control_dependencies(graph, beside),
        graph.control_dependencies(after),
        tf.name_scope("tfdist/average"),
    ):
        return reducer.reduce(gradients, names, job.world)
