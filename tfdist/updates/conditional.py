"""Conditional updates: what an optimizer does stands in a condition, so that its slots, its step and its averages see
the updates alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import control_flow, control_flow_around
from tfdist.graph.conditions import do_if
from tfdist.graph.graph_state import make_state, state_of
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_key
from tfdist.updates.pipeline import GoOn, Stage, Update

_MOVED = (
    "moving averages (tf.train.ExponentialMovingAverage) of what is trained here were built before, and it is not "
    "updated in each step ({}): they would move with each step, instead of each update. Build them after the "
    "optimizer, under tf.control_dependencies([train_op])"
)


class WhenDue(Stage):
    """An update that is not due in each step stands in a condition.

    Args:
      job: the settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def update(self, update: Update, go_on: GoOn) -> Any:
        if update.due is None:
            return go_on(update)
        keys, why = [variable_key(variable) for variable in update.trained], self._job.switches.settings.not_each_step
        inside = update.with_(name=f"{update.name}/update")
        return update_if(update.due, keys, lambda: go_on(inside), update.name, why)


def update_if(
    due: tf.Tensor, keys: Sequence[Hashable | None], call: Callable[[], Any], name: str | None, why: str
) -> Any:
    """Have an optimizer apply gradients in the steps in which that is due.

    Args:
      due: whether it is.
      keys: of the variables.
      call: builds it, or does it.
      name: of the operation that is returned.
      why: some steps are not updates: the setting.

    Returns:
      What ``call`` returns; in its place, if it is of a graph, an operation that stands for it.
    """
    if tf.executing_eagerly():
        return call() if due else None
    state = make_state(tf.compat.v1.get_default_graph())
    if state.moved.intersection(keys):
        raise RuntimeError(_MOVED.format(why))
    state.due.update({key: due for key in keys if key is not None})
    return if_due(due, call, name)


def if_due(due: tf.Tensor, call: Callable[[], Any], name: str | None = None) -> Any:
    """Have what ``call`` builds done when a condition is true. See ``update_if``."""
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()
    if due.graph is graph and control_flow(due.op) not in control_flow_around(graph):
        raise RuntimeError(
            "gradients are computed inside a condition or a loop of TensorFlow and applied outside, where it is not "
            "known whether they are due: compute and apply them in one place, or leave TFDIST_ACCUMULATE_STEPS out"
        )
    returned: list[Any] = []

    def build() -> tf.Tensor:
        with tf.compat.v1.get_default_graph().name_scope(
            f"{scope}/" if scope else None
        ):  # variables are named as without a condition
            returned.append(call())
        built = [returned[0]] if isinstance(returned[0], tf.Operation | tf.Tensor) else []
        with tf.control_dependencies(built):
            return tf.constant(True)

    train_ops = graph.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
    known = list(train_ops)
    with tf.name_scope("tfdist/update"):
        done = do_if(due, build)
    if not isinstance(returned[0], tf.Operation | tf.Tensor):
        return returned[0]
    with tf.control_dependencies([done]):
        result = tf.no_op(name=name)
    if len(train_ops) > len(known) or graph.building_function:
        train_ops[:] = [*known, result]  # what stands in the condition cannot be fetched
    return result


def due_of(variables: Sequence[Any]) -> tf.Tensor | None:
    """Whether the variables are updated in this step of the graph under construction; None: in each."""
    state = state_of(tf.compat.v1.get_default_graph())
    if state is None or not state.due:
        return None
    return next((state.due[key] for v in variables if (key := variable_key(v)) in state.due), None)


def move_each_step(variables: Sequence[Any]) -> None:
    """Moving averages of variables are built in the graph under construction, of which no update is known."""
    make_state(tf.compat.v1.get_default_graph()).moved.update(
        key for v in variables if (key := variable_key(v)) is not None
    )


def value_now(variable: Any) -> tf.Tensor:
    """Its value, which stays when it is written to: a reference variable's memory is written to where it lies."""
    value = variable.read_value()
    return value if hasattr(variable, "handle") else tf.raw_ops.DeepCopy(x=value)
