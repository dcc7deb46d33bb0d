"""Conditional updates: an optimizer's update inside a condition. Its slots, steps and moving averages change only in
steps that are updates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import control_flow, control_flow_around
from tfdist.graph.conditions import do_if
from tfdist.graph.graph_state import make_state
from tfdist.graph.markers import variable_key
from tfdist.updates.pipeline import GoOn, JobStage, Update

_MOVED = (
    "moving averages (tf.train.ExponentialMovingAverage) of trained variables were built before the optimizer. Not "
    "each step is an update ({}), but they would move in each step. Build them after the optimizer, under "
    "tf.control_dependencies([train_op])"
)


class ConditionalUpdates(JobStage):
    """Stage that puts an update into a condition if it is not due in each step."""

    def update(self, update: Update, go_on: GoOn) -> Any:
        if update.due is None:
            return go_on(update)
        inside, why = update.with_(name=f"{update.name}/update"), self._job.switches.settings.not_each_step
        return update_if(update.due, update.trained, lambda: go_on(inside), update.name, why)


def update_if(due: tf.Tensor, trained: Iterable[Any], call: Callable[[], Any], name: str | None, why: str) -> Any:
    """Apply gradients only in the steps in which the update is due.

    Args:
      due: bool tensor: whether the update is due.
      trained: variables that it updates.
      call: function that builds or executes the update.
      name: name of the returned operation.
      why: setting because of which some steps are not updates.

    Returns:
      The result of ``call``. If it is an operation or tensor of a graph, a no-op that runs after the condition.
    """
    if tf.executing_eagerly():
        return call() if due else None
    state = make_state(tf.compat.v1.get_default_graph())
    keys = {variable_key(variable) for variable in trained} - {None}
    if state.moved & keys:
        raise RuntimeError(_MOVED.format(why))
    state.due.update(dict.fromkeys(keys, due))
    return _if_due(due, call, name)


def _if_due(due: tf.Tensor, call: Callable[[], Any], name: str | None = None) -> Any:
    """Build the operations of ``call`` inside a condition. See ``update_if``."""
    graph = tf.compat.v1.get_default_graph()
    scope = graph.get_name_scope()
    if due.graph is graph and control_flow(due.op) not in control_flow_around(graph):
        raise RuntimeError(
            "gradients are computed inside a condition or a loop of TensorFlow and applied outside, where tfdist "
            "cannot read whether they are due. Compute and apply them in one place, or leave "
            "TFDIST_ACCUMULATE_STEPS out"
        )
    returned: list[Any] = []

    def build() -> tf.Tensor:
        with tf.compat.v1.get_default_graph().name_scope(
            f"{scope}/" if scope else None
        ):  # variables get the same names as without a condition
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
        train_ops[:] = [*known, result]  # operations inside the condition cannot be fetched
    return result


def move_if_due(variables: Sequence[Any], move: Callable[[], Any]) -> Any:
    """Build moving averages of variables, which move in the steps that update the variables.

    Without an update before them they move in each step. A later update in some steps only is then refused.

    Args:
      variables: the variables.
      move: function that builds the moving averages.
    """
    state, keys = make_state(tf.compat.v1.get_default_graph()), [variable_key(variable) for variable in variables]
    due = next((state.due[key] for key in keys if key in state.due), None)
    if due is not None:
        return _if_due(due, move)
    state.moved.update(key for key in keys if key is not None)
    return move()


def value_now(variable: Any) -> tf.Tensor:
    """Return a variable's value, which later writes do not change. Reference variables are written in place."""
    value = variable.read_value()
    return value if hasattr(variable, "handle") else tf.raw_ops.DeepCopy(x=value)
