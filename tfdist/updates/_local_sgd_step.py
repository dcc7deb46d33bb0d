"""Local SGD step: an optimizer's update in a block. Its graph counts the steps, and blocks end between two calls.

A graph keeps the values with which a block begins, and notes a step after which something is exchanged. The exchange
follows when the session's run or the function's call is done (``_block_end``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.graphs import is_of_function
from tfdist.core.settings import CONFIGURABLE
from tfdist.core.wires import FORMATS
from tfdist.engine.engines import DEVICE
from tfdist.graph import function_state
from tfdist.graph.conditions import do_if
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import Gradient, variable_name
from tfdist.graph.op_builder import call_back, check_made
from tfdist.graph.variable_average import VariableAverage
from tfdist.replicas.shared_variables import SharedVariables
from tfdist.training.steps import Steps
from tfdist.transport.interfaces import Group
from tfdist.updates import _optimizer_state
from tfdist.updates._block_end import BlockEnd, land, position_of
from tfdist.updates._local_sgd_state import LocalSGDState
from tfdist.updates._optimizer_state import Slot
from tfdist.updates.conditional import value_now

_SETTINGS = tuple(n for n in CONFIGURABLE if n in ("sync", "compression") or n.startswith("block_"))


class OwnGradients:
    """Reducer inside blocks: gradients stay each rank's own, except in the steps of the warm-up.

    Args:
      state: state of the blocks.
      warmup: reducer for the steps of the warm-up.
    """

    def __init__(self, state: LocalSGDState, warmup: Reducer) -> None:
        self._state = state
        self._warmup = warmup

    def reduce(self, gradients: Sequence[Gradient], names: Sequence[str], group: Group) -> list[Gradient]:
        """Return this rank's gradients, in warm-up steps reduced ones. See ``job.Reducer``."""
        if not self._state.rule.warmup or not gradients:
            return list(gradients)
        results: list[Gradient] = tf.cond(
            self._state.position.read_value() < 0,
            lambda: self._warmup.reduce(gradients, names, group),
            lambda: [tf.identity(gradient) for gradient in gradients],
        )
        for result, gradient in zip(results, gradients, strict=True):
            if isinstance(gradient, tf.Tensor):
                result.set_shape(gradient.shape)
        return results


class LocalSGDStep:
    """One place in a graph where an optimizer applies gradients; see ``function_state.Block``.

    Args:
      steps: objects around the training steps of this process.
      state: state of the blocks.
    """

    def __init__(self, steps: Steps, state: LocalSGDState) -> None:
        self._steps = steps
        self._job = steps.job
        self._of = weakref.ref(state)  # TensorFlow does not free the graphs of all functions: they must not hold it
        self._reached = state.reached
        self._rule = state.rule
        self._made = _made_by(steps.job)
        self._exchanges: list[VariableAverage] = []  # of the fragments
        state.statistics = _statistics(steps.variables, state)

    @property
    def _state(self) -> LocalSGDState:
        state = self._of()
        assert state is not None  # TensorFlow does not call a function whose variables are gone
        return state

    def around(self, apply: Callable[[], Any], optimizer: Any) -> Any:
        """Build the optimizer's update in a block.

        Args:
          apply: function that builds the optimizer's update and returns its result.
          optimizer: the optimizer. It has its own variables after ``apply``.

        Returns:
          In a session's graph an operation that runs all of this; else the result of ``apply``.
        """
        state, rule, slots = self._state, self._rule, list[Slot]()
        with tf.control_dependencies([self._keep()]):
            result = apply()
        state.statistics += map(tf_variables.native, optimizers.moving_averages(optimizer))
        for one in optimizers.innermost(optimizer) if rule.state != "keep" else ():
            slots += _optimizer_state.slots(one, rule.state, state.variables, state.made, self._job)
        state.slots = slots
        built = [] if result is None else [result]
        with tf.control_dependencies(built if function_state.in_session() else []):
            counted = self._count()
        self._exchanges = [self._exchange(number) for number in range(rule.fragments)]
        graph = tf.compat.v1.get_default_graph()
        if not function_state.in_session():
            for outer in function_state.around(graph):
                outer.blocks.append(self)
            return result
        of_graph, ends = make_state(graph), [counted]
        for average in self._exchanges:
            with tf.control_dependencies(ends[-1:]):
                ends.append(tf.no_op())
            of_graph.add_op(ends[-1], average.collective)
            of_graph.blocks[average.collective] = self
        together = tf.group(*ends, *built, name="block_step")
        known = tf.compat.v1.get_collection_ref(tf.compat.v1.GraphKeys.TRAIN_OP)
        known[:] = [together if op is result else op for op in known]
        return together

    def _keep(self) -> tf.Tensor:
        """Store the variables' values where all ranks have the same."""
        state = self._state

        def keep() -> tf.Tensor:
            pairs = zip(state.starts, state.variables, strict=True)
            kept = [start.assign(value_now(v), read_value=False) for start, v in pairs]
            # The filter's changes are read too: the ranks share the variables that a function uses.
            with tf.control_dependencies([*kept, *(change.read_value() for change in state.changes)]):
                return tf.constant(True)

        return do_if(tf.equal(state.position.read_value(), 0), keep)

    def _count(self) -> tf.Tensor:
        """Count the step, and note it if something is exchanged or merged after it."""
        state, rule = self._state, self._rule
        with tf.control_dependencies([state.position.assign_add(1, read_value=False)]):
            done = state.position.read_value()
        reached = self._reached

        def note(position: np.ndarray) -> np.ndarray:
            reached.append(int(position))
            return np.array(True)

        def noted() -> tf.Tensor:
            with tf.device(DEVICE):
                return call_back(note, [done], [tf.TensorSpec([], tf.bool)])[0]

        due = done >= rule.between
        if rule.streams:
            past = tf.math.floormod(done, rule.between)
            due &= tf.equal(past, 0) | tf.equal(past, rule.delay)
        return do_if(due, noted)

    def _exchange(self, number: int) -> VariableAverage:
        """Make the average of what a fragment's block has changed; the last one also averages whole variables."""
        state, job, rule, own = self._state, self._job, self._rule, self._state.fragments[number]
        whole = state.averaged_whole if number == rule.fragments - 1 else []
        average = VariableAverage(
            number,
            [state.variables[n] for n in own],
            whole,
            [*(state.names[n] for n in own), *map(_name, whole)],
            FORMATS[job.switches.settings.compression],
            job,
            f", blocks {state.number}" if rule.delay else "",
            f"blocks: {rule}",
            deferred=rule.delay > 0,
        )
        state.averages[average.collective] = average
        return average

    def before(self) -> None:
        """Check that this place still trains its variables in the same way, before a call of a function.

        Raises:
          RuntimeError: another optimizer has begun to train them.
          SettingsError: the script has changed a setting of blocks.
        """
        check_made(self._made, _made_by(self._job), "a block of local steps")
        state = self._state
        if state.taken_over:
            raise RuntimeError(
                f"another optimizer has begun to train {state.names[0]}: with blocks, only one optimizer may train a "
                "variable"
            )

    def after(self, session: Any) -> None:
        """Exchange and merge what is due after a call. Collective, if something is due: all ranks.

        Raises:
          RuntimeError: it was due inside the call.
        """
        if not self._reached:
            return
        state, rule, reached = self._state, self._rule, list(self._reached)
        self._reached.clear()
        program = self._steps.program(session, state.variables)
        position = position_of(program, state)
        if reached != [position]:
            raise RuntimeError(
                f"the block of {state.names[0]} is due after step {reached[0]}, and the call on rank "
                f"{self._job.world.rank} went on to step {position}. Blocks end between two calls. Let block_steps / "
                f"block_fragments (now {rule.between}) and block_delay (now {rule.delay}) be multiples of the steps of "
                "one call (steps_per_execution, or a loop in the function)"
            )
        if state.in_flight is not None and state.in_flight_since == position - rule.delay:
            land(program, state)
        if rule.streams and position % rule.between:
            return
        number = (position // rule.between - 1) % rule.fragments
        average = self._exchanges[number]
        end = BlockEnd(program, state, state.fragments[number], average.whole)
        if rule.delay:
            average.begin(end.brought())
            state.in_flight, state.in_flight_since = average, position
            return
        end.merge(average.now(end.brought()))
        if not rule.streams:
            end.close()
        end.store()


def _made_by(job: Job) -> dict[str, object]:
    return {name: getattr(job.switches.settings, name) for name in _SETTINGS}


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
