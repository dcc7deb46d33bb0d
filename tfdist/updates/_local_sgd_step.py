"""Block step: what stands around an optimizer's application in a graph or a function, and closes a block in its end."""

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
from tfdist.updates.bmuf import Rule
from tfdist.updates.conditional import value_now
from tfdist.variables.eager_variables import batch_statistic

# What batch normalisation keeps of its batches, in Keras and in TensorFlow's layers.
_MADE_BY = ("sync", "block_steps", "block_momentum", "block_learning_rate", "block_nesterov", "block_state")


class OwnGradients:
    """The reducer inside blocks: gradients stay each rank's own, but for the steps of the warm-up.

    Args:
      state: of the blocks.
      rule: how.
      warmup: the reducer of the warm-up.
    """

    def __init__(self, state: LocalSGDState, rule: Rule, warmup: Reducer) -> None:
        self._state = state
        self._rule = rule
        self._warmup = warmup

    def reduce(self, gradients: Sequence[Gradient], names: Sequence[str], group: Group) -> list[Gradient]:
        """See ``job.Reducer``."""
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
    """One place where an optimizer applies gradients.

    Args:
      job: the ranks and settings.
      variables: of this process, outside sessions.
      state: of the blocks.
      rule: how.
    """

    def __init__(self, job: Job, variables: SharedVariables, state: LocalSGDState, rule: Rule) -> None:
        self._job = job
        self._state = state
        self._rule = rule
        state.statistics = _statistics(variables, state)

    def around(self, apply: Callable[[], Any], applied: Callable[[], None]) -> Any:
        """Build the application, and what comes before and after it.

        Args:
          apply: builds the optimizer's own, and returns what stands for it.
          applied: called when it is built, before a block's end is.

        Returns:
          What stands for all.
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
        with tf.control_dependencies(own.last):  # two exchanges of one function have one order
            end = self._after()
        own.last = [end.op]
        return result

    def _begin(self) -> list[Any]:
        """Keep what a block begins with."""
        state = self._state
        if not state.starts:
            return []

        def keep() -> tf.Tensor:
            pairs = zip(state.starts, state.variables, strict=True)
            with tf.control_dependencies([_assign(start, value_now(v)) for start, v in pairs]):
                return tf.constant(True)

        return [do_if(tf.equal(state.position.read_value(), 0), keep)]

    def _after(self) -> tf.Tensor:
        """Count the step, and end the block that it completes."""
        position = self._state.position
        with tf.control_dependencies([position.assign_add(1, read_value=False)]):
            done = position.read_value()
        return do_if(done >= self._rule.steps, lambda: self._end(done))

    def _end(self, done: tf.Tensor) -> tf.Tensor:
        state, rule = self._state, self._rule
        averaged = [*state.variables, *state.statistics]
        averaged += [slot.variable for slot in state.slots if rule.state == "average"]
        with tf.control_dependencies([tf.identity(done)]):  # after the step, also where the order is looked for
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
    """The moving statistics of batches that the graph or the function has, in the order of their making or use."""
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
