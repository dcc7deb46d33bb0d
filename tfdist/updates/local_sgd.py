"""Local SGD: variables are averaged and filtered once in each block of local steps, instead of gradients in each step.

``bmuf`` computes the new values at a block's end. This module puts blocks around an optimizer's update, in a session's
graph and in a function. It also ends blocks that are cut off.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import eager
from tfdist.compat.graphs import is_open
from tfdist.compat.variables import native
from tfdist.core import exclusions
from tfdist.core.log import announce
from tfdist.core.settings import SettingsError
from tfdist.graph import function_state
from tfdist.graph.gradient_average import reducer_of
from tfdist.graph.markers import variable_key, variable_name
from tfdist.training.steps import Steps
from tfdist.updates import _local_sgd_state, _optimizer_state
from tfdist.updates._local_sgd_state import LocalSGDState
from tfdist.updates._local_sgd_step import LocalSGDStep, OwnGradients
from tfdist.updates.bmuf import BlockSettings
from tfdist.updates.pipeline import GoOn, Pairs, Stage, Update
from tfdist.variables.eager_variables import mean_of_ranks

_ATTRIBUTE = "_tfdist_blocks"  # attribute of a session's graph: a list of its states
_PLACE = "the end of a block that is cut off"


class LocalSGD(Stage):
    """Stage that puts a block's beginning and end around an update, for all optimizers of this process.

    Args:
      steps: objects around the training steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._job = steps.job
        self._steps = steps
        self._states: weakref.WeakKeyDictionary[Any, LocalSGDState] = weakref.WeakKeyDictionary()
        self._building_for_nothing = False
        self._told = False

    def update(self, update: Update, go_on: GoOn) -> Any:
        if update.block is None:
            return go_on(update)
        state, rule = update.block
        block = LocalSGDStep(self._job, self._steps.variables, state, rule)

        def built() -> None:
            state.slots = _optimizer_state.slots(update.optimizer, rule.state, state.variables, state.made)

        with self._quietly():
            return block.around(lambda: go_on(update), built)

    def begun(self, update: Update) -> Update:
        """Return the update as a step of a block, with each rank's own gradients; unchanged without local SGD.

        Raises:
          RuntimeError: the update is executed eagerly, or another optimizer trains its variables.
          SettingsError: ``disable_broadcast`` is in effect.
        """
        rule = self._rule()
        if rule is None or not update.trained:
            return update
        settings, kind = self._job.switches.settings, type(update.optimizer).__name__
        if tf.executing_eagerly():
            eagerly = f"{kind} applies gradients eagerly on rank {self._job.world.rank}"
            raise RuntimeError(exclusions.LOCAL_AND_EAGER.told(f"TFDIST_SYNC is {settings.sync!r}", eagerly))
        if not self._job.switches.broadcasts:
            own = "tfdist.disable_broadcast lets each rank begin with its own variables"
            raise SettingsError(exclusions.LOCAL_AND_OWN_BEGINNING.told(f"TFDIST_SYNC is {settings.sync!r}", own))
        state = self._state(update.optimizer, update.pairs, rule)
        return update.with_(block=(state, rule), reducer=OwnGradients(state, rule, reducer_of(self._job)))

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        # Make the state's variables now: a checkpoint of the optimizer must contain them.
        rule = self._rule()
        if rule is not None and len(variables) and not self._building_for_nothing and optimizer not in self._states:
            self._add(optimizer, variables, rule)

    def end(self) -> None:
        """End all open blocks now. Collective: all ranks.

        Raises:
          RuntimeError: it is called inside ``tfdist.alone``.
        """
        if self._job.switches.alone_depth:
            raise RuntimeError(
                f"rank {self._job.world.rank} ends a block inside tfdist.alone, but all ranks must end it: call "
                "tfdist.end_block() outside"
            )
        session = self._steps.sessions.trained
        if session is not None and is_open(session):
            self.end_in(session)
        with eager.mode(), self._steps.variables.setting():  # also where a graph is the default
            for state in list(self._states.values()):
                if state.position.numpy() > 0 and not state.taken_over:
                    every = {id(v): v for v in state.all}
                    for key, value in self._ended(state, {k: v.numpy() for k, v in every.items()}, id).items():
                        every[key].assign(value)

    def end_in(self, session: Any) -> None:
        """End the open blocks of a session's graph. Collective: all ranks."""
        for state in _states_of(session.graph):
            variables = self._steps.sessions.variables(session)
            if _open(variables.value(state.position)):
                variables.load(self._ended(state, variables.read(), lambda v: v.name))

    def before_saving(self, session: Any = None) -> None:
        """Log, before a checkpoint is written in an open block, that it contains this rank's variables only."""
        if session is None:
            with eager.mode():
                positions = [state.position.numpy() for state in self._states.values() if not state.taken_over]
        else:
            read = self._steps.sessions.variables(session).value
            positions = [read(state.position) for state in _states_of(session.graph)]
        done = next((int(position) for position in positions if _open(position)), 0)
        if done and not self._told and not self._job.switches.alone_depth:
            self._told = True
            steps = self._job.switches.settings.block_steps
            announce(
                f"a checkpoint is written after {done} of the {steps} steps of a block. It contains the variables of "
                "this rank alone. Call tfdist.end_block() on all ranks before, or save after whole blocks"
            )

    def _rule(self) -> BlockSettings | None:
        switches = self._job.switches
        return None if switches.alone_depth else BlockSettings.of(switches.settings, self._job.world.size)

    def _state(self, optimizer: Any, pairs: Pairs, rule: BlockSettings) -> LocalSGDState:
        variables = [variable for gradient, variable in pairs if gradient is not None]
        if function_state.in_session():
            return _of_graph(variables, rule)
        if optimizer not in self._states:
            if hasattr(optimizer, "stateless_apply") and not optimizer.built:  # Keras 3: build calls ``built`` above
                optimizer.build([variable for _, variable in pairs])
                optimizer.built = True
            if optimizer not in self._states:
                self._add(optimizer, getattr(optimizer, "_trainable_variables", None) or variables, rule)
        state = self._states[optimizer]
        keys = {variable_key(native(v)) for v in variables}
        if state.taken_over or not keys <= set(state.keys):
            new = next(
                (variable_name(v) for v in variables if variable_key(native(v)) not in state.keys), "its variables"
            )
            raise RuntimeError(
                f"{type(optimizer).__name__} is to train {new} too, or again after another optimizer. With "
                f"TFDIST_SYNC={self._job.switches.settings.sync} an optimizer must train the same variables from its "
                "first step on, and no other optimizer may train them. Make an optimizer for each set of variables"
            )
        return state

    def _add(self, optimizer: Any, variables: Sequence[Any], rule: BlockSettings) -> None:
        keys = {variable_key(native(v)) for v in variables}
        for other in self._states.values():
            if other.taken_over or keys.isdisjoint(other.keys):
                continue
            with tf.init_scope(), self._steps.variables.setting():
                if other.position.numpy() > 0:
                    raise RuntimeError(
                        f"{type(optimizer).__name__} is to train {other.names[0]} after {int(other.position.numpy())} "
                        "steps of another optimizer's block. Call tfdist.end_block() on all ranks before"
                    )
                other.take_over()
        self._states[optimizer] = _local_sgd_state.make_for(optimizer, variables, rule)

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        self._building_for_nothing = True
        try:
            yield
        finally:
            self._building_for_nothing = False

    def _ended(self, state: LocalSGDState, values: Any, key: Callable[[Any], Any]) -> dict[Any, np.ndarray]:
        """Return the new values of a state's variables at a block's end, by key. Collective: all ranks."""
        rule = self._rule()
        if rule is None:
            raise SettingsError(f"{_PLACE}: TFDIST_SYNC is 'gradients' now, but was different when the block began")
        new: dict[Any, Any] = {}
        averaged = [*state.variables, *state.statistics]
        averaged += [slot.variable for slot in state.slots if rule.state == "average"]
        for variable in averaged:
            new[key(variable)] = mean_of_ranks(np.asarray(values[key(variable)]), self._job)
        for variable, start, change in zip(state.variables, state.starts, state.changes, strict=False):
            begun, last = values[key(start)], values[key(change)]
            lookahead = np.asarray(values[key(state.lookahead)]).astype(begun.dtype)
            filtered = rule.filtered(new[key(variable)], begun, last, lookahead)
            new[key(variable)], new[key(change)] = (np.asarray(x, begun.dtype) for x in filtered)
        for variable, initial in state.slots if rule.state == "reset" else ():
            new[key(variable)] = np.full_like(values[key(variable)], initial)
        if state.lookahead is not None:
            new[key(state.lookahead)] = np.float32(rule.lookahead)
        new[key(state.position)] = np.int64(0)
        return {name: np.asarray(value) for name, value in new.items()}


class LocalSteps(Stage):
    """Stage that keeps each rank's own gradients in a block of local steps.

    Args:
      blocks: the ``LocalSGD`` of this process.
    """

    def __init__(self, blocks: LocalSGD) -> None:
        self._blocks = blocks

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(self._blocks.begun(update))


def _states_of(graph: Any) -> list[LocalSGDState]:
    return list(getattr(graph, _ATTRIBUTE, ()))


def _open(position: Any) -> bool:
    return position is not None and position > 0


def _of_graph(variables: Sequence[Any], rule: BlockSettings) -> LocalSGDState:
    """Return the state for variables in a session's graph. Two places that train the same variables share one state."""
    with tf.init_scope():
        graph = tf.compat.v1.get_default_graph()
    known = getattr(graph, _ATTRIBUTE, [])
    setattr(graph, _ATTRIBUTE, known)
    keys = [variable_key(v) for v in variables]
    for state in known:
        if state.keys == keys:
            return state
        if not set(keys).isdisjoint(state.keys):
            both = next(name for name, key in zip(state.names, state.keys, strict=True) if key in keys)
            raise RuntimeError(
                f"{both} is trained in two places of this graph, with different other variables. A block needs the "
                "same variables in both places: apply gradients of the same variables, or use TFDIST_SYNC=gradients"
            )
    known.append(_local_sgd_state.of_graph(variables, rule))
    return known[-1]


@functools.cache
def local_sgd_of(steps: Steps) -> LocalSGD:
    """Return the ``LocalSGD`` of this process."""
    return LocalSGD(steps)
