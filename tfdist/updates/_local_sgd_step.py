"""Local SGD step: operations around an optimizer's update, in a graph or a function, that begin and end blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_of_function
from tfdist.core.wires import FORMATS
from tfdist.graph import function_state
from tfdist.graph.conditions import do_if
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import Gradient, variable_name
from tfdist.graph.op_builder import call_back
from tfdist.graph.variable_average import VariableAverage
from tfdist.training.shared_variables import SharedVariables
from tfdist.transport.interfaces import Group
from tfdist.updates._local_sgd_state import InFlight, LocalSGDState
from tfdist.updates.bmuf import BlockSettings
from tfdist.updates.conditional import value_now

# Settings that the ranks compare, because they decide how a block ends.
_MADE_BY = (
    *("sync", "block_steps", "block_momentum", "block_learning_rate", "block_scale", "block_nesterov", "block_state"),
    *("block_fragments", "block_delay", "block_alpha", "compression"),
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
        not_taken_over = self._state.check_not_taken_over(self._state.position.read_value(), self._state.names[0])
        with tf.control_dependencies([not_taken_over]):
            self._begin()
            result = apply()
        applied()
        own = next(function_state.around(tf.compat.v1.get_default_graph()))
        with tf.control_dependencies(own.last):  # exchanges of a function must run in one order on all ranks
            end = self._after()
        own.last = [end.op]
        return result

    def _begin(self) -> list[Any]:
        """Store the variables' values where all ranks have the same."""
        state = self._state

        def keep() -> tf.Tensor:
            pairs = zip(state.starts, state.variables, strict=True)
            with tf.control_dependencies([_assign(start, value_now(v)) for start, v in pairs]):
                return tf.constant(True)

        return [do_if(tf.equal(state.position.read_value(), 0), keep)]

    def _after(self) -> tf.Tensor:
        """Count the step, use an exchange that has come to its end, and exchange what is due."""
        position, rule = self._state.position, self._rule
        with tf.control_dependencies([position.assign_add(1, read_value=False)]):
            done = position.read_value()
        if not rule.streams:
            return do_if(done >= rule.steps, lambda: self._exchange(0, done))
        if not rule.delay:
            return self._in_turn(done, lambda number: self._exchange(number, done))
        begun = done - rule.delay
        used = self._in_turn(begun, lambda number: self._use(number, begun))
        with tf.control_dependencies([used]):
            return self._in_turn(done, lambda number: self._exchange(number, done))

    def _in_turn(self, position: tf.Tensor, build: Callable[[int], tf.Tensor]) -> tf.Tensor:
        """Build operations for the fragment whose turn it is at a position, if there is one."""
        between, count = self._rule.between, self._rule.fragments

        def turn() -> tf.Tensor:
            number, done = tf.math.floormod(position // between - 1, count), tf.constant(False)
            for one in range(count):
                with tf.control_dependencies([done]):  # exchanges run in one order
                    done = do_if(tf.equal(number, one), functools.partial(build, one))
            return done

        return do_if((position > 0) & tf.equal(tf.math.floormod(position, between), 0), turn)

    def _values(self, number: int) -> list[Any]:
        """Return variables whose whole values are averaged together with a fragment."""
        state = self._state
        if number < len(state.fragments) - 1:
            return []
        return [*state.statistics, *(slot.variable for slot in state.slots if self._rule.state == "average")]

    def _exchange(self, number: int, done: tf.Tensor) -> tf.Tensor:
        """Average what a fragment's block has changed: now, or begin to, if there is a delay."""
        state, job = self._state, self._job
        own, whole = state.fragments[number], self._values(number)
        with tf.control_dependencies([tf.identity(done)]):  # a visible dependency: the reads come after the step
            values = [state.variables[n].read_value() - state.starts[n].read_value() for n in own]
            values += [v.read_value() for v in whole]
        names = [*(state.names[n] for n in own), *map(_name, whole)]
        place = f", blocks {state.number}" if self._rule.delay else ""
        format = FORMATS[job.switches.settings.compression]
        # A collective waits for other ranks with its release: it must not hold this step and its variables.
        made_by = functools.partial(_made_by, job)
        average = VariableAverage(values, len(own), names, format, job, made_by, place, f"blocks: {self._rule}")
        collective, layout = average.collective, average.layout
        state.averages(number, average)
        if not self._rule.delay:
            return self._merge(number, average.now())

        def note(position: np.ndarray) -> np.ndarray:
            state.in_flight = InFlight(number, int(position), collective, layout)
            return np.array(True)

        with tf.control_dependencies([average.begin()]):
            return call_back(note, [tf.TensorSpec([], tf.bool)], job, [done])[0]

    def _use(self, number: int, begun: tf.Tensor) -> tf.Tensor:
        """Merge the result of the exchange that was begun at a position, if this process has begun one there."""
        state = self._state
        variables = [*(state.variables[n] for n in state.fragments[number]), *self._values(number)]

        def begun_there(position: np.ndarray) -> np.ndarray:
            flying = state.in_flight
            return np.array(flying is not None and (flying.fragment, flying.position) == (number, int(position)))

        def land() -> list[np.ndarray]:
            flying, state.in_flight = state.in_flight, None
            assert flying is not None
            return flying.land()

        def merge() -> tf.Tensor:
            specs = [tf.TensorSpec(v.shape, v.dtype.base_dtype) for v in variables]
            return self._merge(number, call_back(land, specs, self._job))

        found = call_back(begun_there, [tf.TensorSpec([], tf.bool)], self._job, [begun])[0]
        return do_if(found, merge)

    def _merge(self, number: int, means: Sequence[tf.Tensor]) -> tf.Tensor:
        """Set a fragment's variables: to the filtered values, or to a mixture with what a delay has changed."""
        state, rule = self._state, self._rule
        own, new = state.fragments[number], []
        for n, mean in zip(own, means, strict=False):
            last = state.changes[n].read_value() if state.changes else None
            filtered, change = rule.filtered(mean, state.starts[n].read_value(), last)
            new += [(state.starts[n], filtered), (state.variables[n], self._mixed(state.variables[n], filtered))]
            new += [(state.changes[n], change)] if state.changes else []
        for variable, mean in zip(self._values(number), means[len(own) :], strict=True):
            new.append((variable, self._mixed(variable, mean)))
        if rule.state == "reset":
            values = {id(variable): value for variable, value in new}
            for variable, initial in state.slots:
                copied = hasattr(initial, "read_value")
                value = (
                    values.get(id(initial), initial.read_value()) if copied else tf.fill(tf.shape(variable), initial)
                )
                new.append((variable, tf.cast(value, variable.dtype.base_dtype)))
        with tf.control_dependencies([value for _, value in new]):
            written = [_assign(variable, value) for variable, value in new]
            if not rule.streams:
                written.append(_assign(state.position, tf.constant(0, tf.int64)))
        with tf.control_dependencies(written):
            return tf.constant(True)

    def _mixed(self, variable: Any, value: tf.Tensor) -> tf.Tensor:
        return self._rule.mixed(variable.read_value(), value) if self._rule.delay else value


def _made_by(job: Job) -> dict[str, object]:
    return {name: getattr(job.switches.settings, name) for name in _MADE_BY}


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
    found = {id(v): v for v in known if tf_variables.batch_statistic(v) and v.dtype.is_floating}
    for variable in state.variables:
        found.pop(id(variable), None)
    return list(found.values())


def _name(variable: Any) -> str:
    """Return a variable's name; outside sessions without the model's, which a loaded model does not have."""
    name = variable_name(variable)
    return name if function_state.in_session() else "/".join(name.split("/")[-2:])


def _assign(variable: Any, value: tf.Tensor) -> Any:
    if not hasattr(variable, "handle"):
        return tf.compat.v1.assign(variable, value).op
    return variable.assign(value, read_value=False)
