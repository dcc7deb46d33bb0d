"""Local SGD: variables are averaged and filtered once in each block of local steps, instead of gradients in each step.

``bmuf`` computes the new values at a block's end. This module puts blocks around an optimizer's update, in a session's
graph and in a function. It also ends blocks that are cut off.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat import eager, optimizers
from tfdist.compat.variables import native, value
from tfdist.core import exclusions
from tfdist.core.log import announce
from tfdist.core.settings import SettingsError
from tfdist.gradients.average import reducer_of
from tfdist.graph import function_state
from tfdist.graph.markers import variable_key, variable_name
from tfdist.replicas.program import Program
from tfdist.training.steps import Steps
from tfdist.transport import agreement
from tfdist.updates._block_end import cut_off, position_of
from tfdist.updates._local_sgd_state import LocalSGDState, of_graph, of_optimizer, states_of
from tfdist.updates._local_sgd_state import moves as moves
from tfdist.updates._local_sgd_step import LocalSGDStep, OwnGradients
from tfdist.updates.bmuf import BlockSettings
from tfdist.updates.pipeline import GoOn, Stage, Update

_PLACE = "the end of a block"
_DIFFERENT = (
    "the ranks have trained different steps or variables since their blocks began, first at block {}",
    "Run the same training steps on all ranks before a block ends. Give them the same number of batches "
    "(tfdist.shard), and let all of them decide alike what to train (tfdist.all_reduce)",
)


_Open = list[tuple[Program, LocalSGDState, int]]  # open blocks and their positions


class LocalSGD(Stage):
    """Stage that puts a block's beginning and end around an update, for all optimizers of this process.

    Args:
      steps: objects around the training steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._job = steps.job
        self._steps = steps
        self._states: weakref.WeakKeyDictionary[Any, LocalSGDState] = weakref.WeakKeyDictionary()
        # Also states of optimizers that are gone: a block that is open must be ended, and on all ranks. Without those
        # whose variables another optimizer trains now.
        self._every: list[LocalSGDState] = []
        self._told = self._used = False
        steps.moments.begins.append(self._forget_in_flight)

    def update(self, update: Update, go_on: GoOn) -> Any:
        """Let each rank apply its own gradients in a block. See ``Stage``.

        Raises:
          RuntimeError: the update is executed eagerly, or another optimizer trains its variables.
          SettingsError: ``disable_broadcast`` is in effect.
        """
        job, rule, optimizer = self._job, self._rule(), update.optimizer
        if rule is None or not update.trained:
            return go_on(update)
        sync = f"TFDIST_SYNC is {job.switches.settings.sync!r}"
        if tf.executing_eagerly():
            eagerly = f"{type(optimizer).__name__} applies gradients eagerly on rank {job.world.rank}"
            raise RuntimeError(exclusions.LOCAL_AND_EAGER.told(sync, eagerly))
        if not job.switches.broadcasts:
            own = "tfdist.disable_broadcast lets each rank begin with its own variables"
            raise SettingsError(exclusions.LOCAL_AND_OWN_BEGINNING.told(sync, own))
        state = self._state(update, rule)
        state.adopt(rule)
        changed = update.with_(in_block=True, reducer=OwnGradients(state, reducer_of(job)))
        return LocalSGDStep(self._steps, state).around(lambda: go_on(changed), optimizer)

    def built(self, optimizer: Any, variables: Sequence[Any]) -> None:
        # Make the state's variables now: a checkpoint of the optimizer must contain them.
        rule = self._rule()
        if rule is not None and len(variables) and optimizer not in self._states:
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
        self._end(self._sessions)

    def end_or_share(self) -> None:
        """End all open blocks now, unless a rank has another position: rank 0's variables are then taken next.

        A checkpoint that one rank restores has a position. Collective: all ranks.
        """
        self._end(self._sessions, unless_different=True)

    def end_in(self, session: Any) -> None:
        """End the open blocks of a session that has trained. Collective: all ranks."""
        if session in self._steps.sessions.that_trained():
            self._end(lambda: [session])

    def _sessions(self) -> list[Any]:
        """Return the sessions that have trained, and None for the variables outside sessions."""
        return [*self._steps.sessions.that_trained(), None]

    def _at(self, session: Any) -> list[LocalSGDState]:
        """Return the states of a session's graph, or those outside sessions."""
        if session is not None:
            return states_of(session.graph)
        return self._kept()

    def _end(self, sessions: Callable[[], Sequence[Any]], unless_different: bool = False) -> None:
        """End the open blocks there. The ranks compare first what is open."""
        job = self._job
        if job.switches.settings.sync == "gradients" and not self._used:
            return
        with eager.mode():  # also where a graph is the default
            open_ = self._open(sessions())
            if self._ranks_differ(open_):
                open_ = []
                gc.collect()  # each rank may have kept another session that its script has dropped
                open_ = self._open(sessions())
                if unless_different and self._ranks_differ(open_):
                    return
                agreement.agree(job.world.control, _described(open_), _PLACE, _DIFFERENT)
            for program, state, _ in open_:
                cut_off(program, state, job)
            for program, *_ in open_:
                self._steps.replicas.now(_PLACE, program)

    def _open(self, sessions: Sequence[Any]) -> _Open:
        there = ((session, state) for session in sessions for state in self._at(session))
        every = [(self._steps.program(session, state.variables), state) for session, state in there]
        found = [(program, state, position_of(program, state)) for program, state in every]
        return [(program, state, done) for program, state, done in found if done > 0 or state.keeps_back]

    def _ranks_differ(self, open_: _Open) -> bool:
        return len(set(self._job.world.control.arrive(_PLACE, agreement.number(_described(open_))))) > 1

    def added(self, optimizer: Any) -> int:
        """Return the number of variables that blocks have added to an optimizer."""
        return len(self._states[optimizer].made) if optimizer in self._states else 0

    def before_end(self) -> None:
        """Log, at the end of the program, that a block is open: each rank has other variables."""
        with contextlib.suppress(Exception):  # what TensorFlow has closed already cannot be read
            self._tell(self._sessions(), "the program ends", "Its last results are those of each rank alone", 1)

    def before_saving(self, session: Any = None) -> None:
        """Log, before a checkpoint is written, what it lacks: the other ranks' steps in an open block, or roundings."""
        if not self._job.switches.alone_depth:
            self._tell([session], "a checkpoint is written", "It contains what this rank has alone")

    def _tell(self, sessions: Sequence[Any], what: str, why: str, least: int = 0) -> None:
        """Log once that blocks are open there, the longest for ``least`` steps or more."""
        if self._told or not self._used:
            return
        with eager.mode():
            done = max((done for *_, done in self._open(sessions)), default=-1)
        if done >= least:
            self._told = True
            state = f"{done} steps after the ranks had the same values of all variables"
            rounding = f"while each rank keeps rounding errors of {self._job.switches.settings.compression}"
            announce(f"{what} {state if done else rounding}. {why}. Call tfdist.end_block() on all ranks before")

    def _forget_in_flight(self, session: Any) -> None:
        """Drop what an earlier session of a graph has begun, before a session's first step."""
        for state in states_of(session.graph):
            state.in_flight = None
            state.reached.clear()

    def _rule(self) -> BlockSettings | None:
        switches = self._job.switches
        return None if switches.alone_depth else BlockSettings.of(switches.settings, self._job.world.size)

    def _state(self, update: Update, rule: BlockSettings) -> LocalSGDState:
        optimizer, variables = update.optimizer, update.trained
        if function_state.in_session():
            self._used = True
            return of_graph(variables, rule)
        if optimizer not in self._states:
            if optimizers.of_keras_3(optimizer) and not optimizer.built:  # build calls ``built`` above
                optimizer.build([variable for _, variable in update.pairs])
                optimizer.built = True
            if optimizer not in self._states:
                self._add(optimizer, optimizers.trained_by(optimizer) or variables, rule)
        state = self._states[optimizer]
        new = [variable_name(v) for v in variables if variable_key(native(v)) not in state.keys]
        if new:
            raise RuntimeError(
                f"{type(optimizer).__name__} is to train {new[0]} too. With "
                f"TFDIST_SYNC={self._job.switches.settings.sync} an optimizer must train the same variables from its "
                "first step on, and no other optimizer may train them. Make an optimizer for each set of variables"
            )
        return state

    def _add(self, optimizer: Any, variables: Sequence[Any], rule: BlockSettings) -> None:
        keys = {variable_key(native(v)) for v in variables}
        for other in self._kept():
            if keys.isdisjoint(other.keys):
                continue
            done = int(value(other.position))
            if done > 0:
                raise RuntimeError(
                    f"{type(optimizer).__name__} is to train {other.names[0]} after {done} steps of another "
                    "optimizer's block. Call tfdist.end_block() on all ranks before"
                )
            other.taken_over = True
            self._every.remove(other)
        state = self._states[optimizer] = of_optimizer(optimizer, variables, rule)
        self._used = True
        self._every.append(state)

    def _kept(self) -> list[LocalSGDState]:
        """Return the states outside sessions; those of optimizers that are gone only if a block is open.

        Each rank collects garbage at another time. The states with an open block are the same on all ranks.
        """
        there = set(self._states.values())
        self._every = [s for s in self._every if s in there or value(s.position) > 0 or s.keeps_back]
        return list(self._every)


def _described(open_: _Open) -> list[str]:
    return [state.described(done) for _, state, done in open_]


local_sgd_of = functools.cache(LocalSGD)  # the one of this process
