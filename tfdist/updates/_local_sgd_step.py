"""Local SGD step: operations around an optimizer's update, in a graph or a function, that begin and end blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_of_function
from tfdist.graph import function_state
from tfdist.graph.conditions import do_if
from tfdist.graph.gradient_average import means
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import Gradient, variable_name
from tfdist.training.shared_variables import SharedVariables
from tfdist.transport.interfaces import Group
from tfdist.updates._local_sgd_state import LocalSGDState
from tfdist.updates.bmuf import BlockSettings
from tfdist.updates.conditional import value_now
from tfdist.variables.eager_variables import batch_statistic

# Settings that the ranks compare, because they decide how a block ends.
_MADE_BY = (
    *("sync", "block_steps", "block_momentum", "block_learning_rate", "block_scale", "block_nesterov", "block_state"),
)


class OwnGradients:
    """Reducer inside blocks: gradients stay each rank's own, except in the steps of the warm-up.

    Args:
      state: state of the blocks.
      rule: settings of blocks.
      warmup: reducer for the steps of the warm-up.
    """

    def __init__(self, state: LocalSGDState, rule: BlockSettings, warmup: Reducer) -> None:
        self._state = state
        self._rule = rule
        self._warmup = warmup

    def reduce(self, gradients: Sequence[Gradient], names: Sequence[str], group: Group) -> list[Gradient]:
        """Return this rank's gradients, in warm-up steps reduced ones. See ``job.Reducer``."""
        if not self._rule.warmup or not gradients:
            return list(gradients)

        def parts(of: Sequence[Gradient]) -> list[tf.Tensor]:
            return [t for g in of for t in ([g] if isinstance(g, tf.Tensor) else [g.values, g.indices])]

        own = parts(gradients)
        found = tf.cond(
            self._state.position.read_value() < 0,
            lambda: parts(self._warmup.reduce(gradients, names, group)),
            lambda: [tf.identity(t) for t in own],
        )
        results: list[Gradient] = []
        for gradient in gradients:
            if isinstance(gradient, tf.Tensor):
                results.append(found.pop(0))
                results[-1].set_shape(gradient.shape)
            else:
                results.append(tf.IndexedSlices(found.pop(0), found.pop(0), gradient.dense_shape))
        return results


class LocalSGDStep:
    """One place in a graph where an optimizer applies gradients.

    Args:
      job: the ranks and settings.
      variables: variables of this process, outside sessions.
      state: state of the blocks.
      rule: settings of blocks.
    """

    def __init__(self, job: Job, variables: SharedVariables, state: LocalSGDState, rule: BlockSettings) -> None:
        self._job = job
        self._state = state
        self._rule = rule
        state.statistics = _statistics(variables, state)

    def around(self, apply: Callable[[], Any], applied: Callable[[], None]) -> Any:
        """Build the optimizer's update, with the block's beginning before it and the block's end after it.

        Args:
          apply: function that builds the optimizer's update and returns its result.
          applied: function that is called after ``apply``, before the block's end is built.

        Returns:
          In a session's graph an operation that runs all of this; else the result of ``apply``.
        """
        if function_state.in_session():
            with tf.control_dependencies(self._begin()):
                result = apply()
            applied()
            with tf.control_dependencies([] if result is None else [result]):
                end = self._after()
            together = tf.group(end, *([] if result is None else [result]), name="block_step")
            known = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
            known[:] = [together if op is result else op for op in known]
            return together
        self._state.check_not_taken_over(self._state.position.read_value(), self._state.names[0])
        self._begin()
        result = apply()
        applied()
        own = next(function_state.around(tf.compat.v1.get_default_graph()))
        with tf.control_dependencies(own.last):  # exchanges of a function must run in one order on all ranks
            end = self._after()
        own.last = [end.op]
        return result

    def _begin(self) -> list[Any]:
        """Store the variables' values at a block's beginning."""
        state = self._state
        if not state.starts:
            return []

        def keep() -> tf.Tensor:
            pairs = zip(state.starts, state.variables, strict=True)
            with tf.control_dependencies([_assign(start, value_now(v)) for start, v in pairs]):
                return tf.constant(True)

        return [do_if(tf.equal(state.position.read_value(), 0), keep)]

    def _after(self) -> tf.Tensor:
        """Count the step, and end the block after its last step."""
        position = self._state.position
        with tf.control_dependencies([position.assign_add(1, read_value=False)]):
            done = position.read_value()
        return do_if(done >= self._rule.steps, lambda: self._end(done))

    def _end(self, done: tf.Tensor) -> tf.Tensor:
        state, rule = self._state, self._rule
        averaged = [*state.variables, *state.statistics]
        averaged += [slot.variable for slot in state.slots if rule.state == "average"]
        with tf.control_dependencies([tf.identity(done)]):  # a visible dependency: the reads come after the step
            values = [v.read_value() for v in averaged]
        names = [variable_name(v) for v in averaged]
        found = means(values, names, self._job, self._made_by)
        new: list[tuple[Any, tf.Tensor]] = list(zip(averaged, found, strict=True))
        begun_ahead = 0.0 if state.lookahead is None else state.lookahead.read_value()
        for n, (start, change) in enumerate(zip(state.starts, state.changes, strict=True)):
            mean, lookahead = found[n], tf.cast(begun_ahead, found[n].dtype)
            value, last = rule.filtered(mean, start.read_value(), change.read_value(), lookahead)
            new[n] = averaged[n], value
            new.append((change, last))
        if rule.state == "reset":
            for variable, initial in state.slots:
                new.append((variable, tf.fill(tf.shape(variable), tf.constant(initial, variable.dtype.base_dtype))))
        with tf.control_dependencies([value for _, value in new]):
            written = [_assign(variable, value) for variable, value in new]
            if state.lookahead is not None:
                written.append(_assign(state.lookahead, tf.constant(rule.lookahead)))
            written.append(_assign(state.position, tf.constant(0, tf.int64)))
        with tf.control_dependencies(written):
            return tf.constant(True)

    def _made_by(self) -> dict[str, object]:
        return {name: getattr(self._job.switches.settings, name) for name in _MADE_BY}


def _statistics(variables: SharedVariables, state: LocalSGDState) -> list[Any]:
    """Return the moving statistics of batches in the graph or function, in the order of their creation or use."""
    graph = tf.compat.v1.get_default_graph()
    if function_state.in_session():
        known = graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    else:
        known = []
        while is_of_function(graph):
            handles = [outer for outer, _ in graph.captures if outer.dtype == tf.resource]
            known += [v for h in handles if hasattr(h, "_id") and (v := variables.by_handle(h)) is not None]
            graph = graph.outer_graph
    found = {id(v): v for v in known if batch_statistic(v) and v.dtype.is_floating}
    for variable in state.variables:
        found.pop(id(variable), None)
    return list(found.values())


def _assign(variable: Any, value: tf.Tensor) -> Any:
    if not hasattr(variable, "handle"):
        return tf.compat.v1.assign(variable, value).op
    return variable.assign(value, read_value=False)
