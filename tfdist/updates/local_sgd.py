"""Local SGD: variables are averaged and filtered once in each block of local steps, instead of gradients in each step.

``bmuf`` computes the new values at a block's end. This module puts blocks around an optimizer's update, in a session's
graph and in a function. It also ends blocks that are cut off.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.compat import eager, optimizers
from tfdist.compat.variables import native, value
from tfdist.core import exclusions
from tfdist.core.log import announce
from tfdist.core.settings import SettingsError
from tfdist.graph import function_state
from tfdist.graph.gradient_average import reducer_of
from tfdist.graph.markers import variable_key, variable_name
from tfdist.training.steps import Steps
from tfdist.transport import agreement
from tfdist.updates import _local_sgd_state, _optimizer_state
from tfdist.updates._block_places import InSession, Outside, Place
from tfdist.updates._local_sgd_state import LocalSGDState
from tfdist.updates._local_sgd_state import moves as moves
from tfdist.updates._local_sgd_step import LocalSGDStep, OwnGradients
from tfdist.updates.bmuf import BlockSettings
from tfdist.updates.pipeline import GoOn, Pairs, Stage, Update
from tfdist.variables.eager_variables import mean_of_ranks

_ATTRIBUTE = "_tfdist_blocks"  # attribute of a session's graph: a list of its states
_PLACE = "the end of a block"
_DIFFERENT = (
    "the ranks have trained different steps or variables since their blocks began, first at block {}",
    "Run the same training steps on all ranks before a block ends. Give them the same number of batches "
    "(tfdist.shard), and let all of them decide alike what to train (tfdist.all_reduce)",
)


class _Open(NamedTuple):
    """Open block: its state, where it is, and its position."""

    place: Place
    state: LocalSGDState
    position: int


class LocalSGD(Stage):
    """Stage that puts a block's beginning and end around an update, for all optimizers of this process.

    Args:
      steps: objects around the training steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._job = steps.job
        self._steps = steps
        self._states: weakref.WeakKeyDictionary[Any, LocalSGDState] = weakref.WeakKeyDictionary()
        # Also states of optimizers that are gone: a block that is open must be ended, and on all ranks.
        self._every: list[tuple[weakref.ref[Any], LocalSGDState]] = []
        self._building_for_nothing = self._told = self._used = False
        steps.moments.begins.append(self._forget_in_flight)

    def update(self, update: Update, go_on: GoOn) -> Any:
        if update.block is None:
            return go_on(update)
        state, rule = update.block
        block = LocalSGDStep(self._job, self._steps.variables, state, rule)

        def built() -> None:
            state.statistics += map(native, optimizers.moving_averages(update.optimizer))
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
        state.adopt(rule)
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
          DisagreementError: the ranks are in different steps of their blocks, or have trained different variables.
        """
        if self._job.switches.alone_depth:
            raise RuntimeError(
                f"rank {self._job.world.rank} ends a block inside tfdist.alone, but all ranks must end it: call "
                "tfdist.end_block() outside"
            )
        self._end(self._places)

    def end_or_share(self) -> None:
        """End all open blocks now, unless a rank has another position: rank 0's variables are then taken next.

        A checkpoint that one rank restores has a position. Collective: all ranks.
        """
        self._end(self._places, unless_different=True)

    def end_in(self, session: Any) -> None:
        """End the open blocks of a session that has trained. Collective: all ranks."""
        if session in self._steps.sessions.that_trained():
            self._end(lambda: [self._in(session)])

    def _places(self) -> list[Place]:
        return [*map(self._in, self._steps.sessions.that_trained()), self._outside()]

    def _outside(self) -> Place:
        states = [state for state in self._kept() if not state.taken_over]
        return Outside(self._steps.variables, self._steps.holder_of, states)

    def _in(self, session: Any) -> Place:
        sessions = self._steps.sessions
        return InSession(sessions.variables(session), sessions.holder(session), _states_of(session.graph))

    def _end(self, places: Callable[[], Sequence[Place]], unless_different: bool = False) -> None:
        """End the open blocks there. The ranks compare first what is open."""
        job = self._job
        if job.switches.settings.sync == "gradients" and not self._used:
            return
        with eager.mode():  # also where a graph is the default
            open_ = self._open(places())
            if self._ranks_differ(open_):
                open_ = []
                gc.collect()  # each rank may have kept another session that its script has dropped
                open_ = self._open(places())
                if unless_different and self._ranks_differ(open_):
                    return
                agreement.agree(job.world.control, _described(open_), _PLACE, _DIFFERENT)
            for place, state, _ in open_:
                place.load(state.all, self._ended(state, place.read(state.all), place.key))
            for place, state, _ in open_:
                self._steps.replicas.now(_PLACE, place.holder(state))

    @staticmethod
    def _open(places: Sequence[Place]) -> list[_Open]:
        found = [_Open(p, state, p.position(state)) for p in places for state in p.states]
        return [one for one in found if one.position > 0 or one.state.keeps_back]

    def _ranks_differ(self, open_: Sequence[_Open]) -> bool:
        return len(set(self._job.world.control.arrive(_PLACE, agreement.number(_described(open_))))) > 1

    def added(self, optimizer: Any) -> int:
        """Return the number of variables that blocks have added to an optimizer."""
        return len(self._states[optimizer].made) if optimizer in self._states else 0

    def before_end(self) -> None:
        """Log, at the end of the program, that a block is open: each rank has other variables."""
        if not self._used or self._told:
            return
        with contextlib.suppress(Exception), eager.mode():  # what TensorFlow has closed already cannot be read
            done = max((p.position(state) for p in self._places() for state in p.states), default=0)
            if done > 0:
                announce(
                    f"the program ends {done} steps after the ranks had the same values of all variables. Its last "
                    "results are those of each rank alone. Call tfdist.end_block() on all ranks before"
                )

    def before_saving(self, session: Any = None) -> None:
        """Log, before a checkpoint is written, what it lacks: the other ranks' steps in an open block, or roundings."""
        with eager.mode():
            place = self._outside() if session is None else self._in(session)
            done = next((position for state in place.states if (position := place.position(state)) > 0), 0)
        kept = any(state.keeps_back for state in place.states)
        if not (done or kept) or self._told or self._job.switches.alone_depth:
            return
        self._told = True
        settings, remedy = self._job.switches.settings, "Call tfdist.end_block() on all ranks before"
        own = "It contains the variables of this rank alone"
        if done and settings.block_fragments == 1 and not settings.block_delay:
            told = (
                f"after {done} of the {settings.block_steps} steps of a block. {own}. {remedy}, or save after whole "
                "blocks"
            )
        elif done:
            told = f"{done} steps after the ranks had the same values of all variables. {own}. {remedy}"
        else:
            told = (
                f"while each rank keeps rounding errors of {settings.compression} for its next exchange. It does not "
                f"contain them. {remedy}"
            )
        announce(f"a checkpoint is written {told}")

    def _forget_in_flight(self, session: Any) -> None:
        """Drop what an earlier session of a graph has begun, before a session's first step."""
        for state in _states_of(session.graph):
            state.in_flight = None

    def _rule(self) -> BlockSettings | None:
        switches = self._job.switches
        return None if switches.alone_depth else BlockSettings.of(switches.settings, self._job.world.size)

    def _state(self, optimizer: Any, pairs: Pairs, rule: BlockSettings) -> LocalSGDState:
        variables = [variable for gradient, variable in pairs if gradient is not None]
        if function_state.in_session():
            self._used = True
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
        for other in self._kept():
            if other.taken_over or keys.isdisjoint(other.keys):
                continue
            done = int(value(other.position))
            if done > 0:
                raise RuntimeError(
                    f"{type(optimizer).__name__} is to train {other.names[0]} after {done} steps of another "
                    "optimizer's block. Call tfdist.end_block() on all ranks before"
                )
            with tf.init_scope(), self._steps.variables.setting():
                other.take_over()
        state = self._states[optimizer] = _local_sgd_state.make_for(optimizer, variables, rule)
        self._used = True
        self._every.append((weakref.ref(optimizer), state))

    def _kept(self) -> list[LocalSGDState]:
        """Return the states outside sessions; those of optimizers that are gone only if a block is open.

        Each rank collects garbage at another time. The states with an open block are the same on all ranks.
        """
        self._every = [
            (optimizer, state)
            for optimizer, state in self._every
            if optimizer() is not None or value(state.position) > 0 or state.keeps_back
        ]
        return [state for _, state in self._every]

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        self._building_for_nothing = True
        try:
            yield
        finally:
            self._building_for_nothing = False

    def _ended(self, state: LocalSGDState, values: Any, key: Callable[[Any], Any]) -> dict[Any, np.ndarray]:
        """Return new values of a state's variables, with which all ranks have the same. Collective: all ranks.

        All fragments are exchanged, and also what rounding has lost in earlier exchanges. Before that, the result of an
        exchange in flight is merged.
        """
        rule, size = state.rule, self._job.world.size
        now = {key(v): np.asarray(values[key(v)]) for v in state.all}
        if state.in_flight is not None:
            _use(state, rule, now, key)
        new, lost = {key(state.position): np.asarray(now[key(state.position)])}, state.take_lost()
        open_ = now[key(state.position)] > 0
        for n, (variable, start) in enumerate(zip(state.variables, state.starts, strict=True)):
            own, begun = now[key(variable)], now[key(start)]
            rest = size * lost[n].reshape(own.shape) if n in lost else np.zeros((), own.dtype)
            last = now[key(state.changes[n])] if state.changes else np.zeros((), own.dtype)
            if open_:
                mean = mean_of_ranks(own - begun + rest, self._job)
                filtered, change = rule.filtered(mean, begun, last)
            elif n in lost:  # the last block lacks it: the formula is linear
                more, changed = rule.filtered(mean_of_ranks(rest, self._job), np.zeros_like(own), np.zeros_like(own))
                filtered, change = own + more, last + changed
            else:
                continue
            new[key(variable)] = new[key(start)] = np.asarray(filtered, own.dtype)
            if state.changes:
                new[key(state.changes[n])] = np.asarray(change, own.dtype)
        if open_:
            whole = [
                *state.statistics,
                *state.moving,
                *(slot.variable for slot in state.slots if rule.state == "average"),
            ]
            new.update({key(v): mean_of_ranks(now[key(v)], self._job) for v in whole})
            for variable, initial in state.slots if rule.state == "reset" else ():
                value = new.get(key(initial), now[key(initial)]) if hasattr(initial, "read_value") else initial
                new[key(variable)] = np.full_like(now[key(variable)], value)
            new[key(state.position)] = np.array(0, np.int64)
        return new


def _use(state: LocalSGDState, rule: BlockSettings, now: dict[Any, np.ndarray], key: Callable[[Any], Any]) -> None:
    """Merge the result of the exchange in flight into values, by key."""
    assert state.in_flight is not None
    flying, state.in_flight = state.in_flight, None
    own, means = state.fragments[flying.fragment], flying.land()
    for n, mean in zip(own, means, strict=False):
        start, variable = key(state.starts[n]), key(state.variables[n])
        last = now[key(state.changes[n])] if state.changes else None
        filtered, change = rule.filtered(mean, now[start], last)
        now[variable] = np.asarray(rule.mixed(now[variable], filtered), mean.dtype)
        now[start] = np.asarray(filtered, mean.dtype)
        if state.changes:
            now[key(state.changes[n])] = np.asarray(change, mean.dtype)
    for variable, mean in zip(state.statistics, means[len(own) :], strict=False):
        now[key(variable)] = np.asarray(rule.mixed(now[key(variable)], mean), mean.dtype)


class LocalSteps(Stage):
    """Stage that keeps each rank's own gradients in a block of local steps.

    Args:
      blocks: the ``LocalSGD`` of this process.
    """

    def __init__(self, blocks: LocalSGD) -> None:
        self._blocks = blocks

    def update(self, update: Update, go_on: GoOn) -> Any:
        return go_on(self._blocks.begun(update))


def _described(open_: Sequence[_Open]) -> list[str]:
    return [one.state.described(one.position) for one in open_]


def _states_of(graph: Any) -> list[LocalSGDState]:
    return list(getattr(graph, _ATTRIBUTE, ()))


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
