"""Session step: hooks around each ``Session.run``.

The initialiser of a training graph ends with one fused broadcast (``initial_broadcast``). Before the first training
step of a session all ranks also meet, compare their graphs, and take rank 0's values. This covers cases that no graph
node can see. Examples are a partial initialisation, or a checkpoint that only rank 0 restores while the others run
their initialisers.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_open
from tfdist.gradients import writes
from tfdist.graph import function_state
from tfdist.graph.graph_state import GraphState, Reach, fetched_operations, make_state, state_of
from tfdist.graph.job import Job
from tfdist.replicas import comparison, initial_sync
from tfdist.replicas.check import ReplicaCheck
from tfdist.replicas.earlier_graphs import earlier_graphs
from tfdist.replicas.session_program import SessionProgram, settable
from tfdist.training.moments import Moments


class SessionSteps:
    """Hooks around each ``Session.run``: the meeting before the first step, and notes on what each run has set.

    Args:
      run: the original ``BaseSession.run``.
      job: the ranks.
      replicas: comparison of the variables between ranks.
      moments: actions of other packages.
    """

    def __init__(self, run: Callable[..., Any], job: Job, replicas: ReplicaCheck, moments: Moments) -> None:
        self._run = run
        self._job = job
        self._replicas = replicas
        self._trained: weakref.ref[Any] | None = None
        self._programs: weakref.WeakKeyDictionary[Any, SessionProgram] = weakref.WeakKeyDictionary()
        self._warned = False
        self._earlier = earlier_graphs()
        self._moments = moments

    @property
    def trained(self) -> Any:
        """Session that has trained last; None if it does not exist any more."""
        return self._trained and self._trained()

    def that_trained(self) -> list[Any]:
        """Return the open sessions that have communicated, in the order of their first step."""
        return [session for session in list(self._programs) if is_open(session)]

    def program(self, session: Any) -> SessionProgram:
        """Return the variables of a session."""
        return self._programs.get(session) or SessionProgram(session, self._run)

    def created(self, session: Any) -> None:
        """Share rank 0's values when a monitored session is ready. Collective: all ranks, if its graph communicates.

        Session hooks read the global step right after this. A rank without the restored step would stop at another
        step.
        """
        state = state_of(session.graph)
        if state is not None and state.world_collectives:
            # A session hook may still set variables, maybe on this rank alone: the first step shares them again.
            self._begin(session)
            state.of_session(session).synchronised = False

    def _begin(self, session: Any) -> None:
        """Bring all ranks together before a session's first step.

        Collective: all ranks. Ranks that run an initialiser may take part too.

        Raises:
          DisagreementError: the ranks' training graphs differ.
        """
        graph = session.graph
        state = make_state(graph)
        plan = [f"{line} in {c.name}" for c in state.world_collectives for line in c.plan]
        trained = {v.op.name for v in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
        notes = state.of_session(session)
        own = tuple(sorted((notes.own or set()) - trained))
        program = self.program(session)
        participant = initial_sync.Participant(initial_sync.STEP, plan, state.broadcasts, own)
        initial_sync.begin(self._job.world.control, participant, program.values, program.set)
        self._job.open(state.world_collectives)
        for collective in state.world_collectives:
            collective.heard.root_only = False  # a collective that does not run in this step would keep an old value
        notes.synchronised, notes.overwritten = True, False
        for action in self._moments.begins:
            action(session)

    def closes(self, session: Any) -> None:
        """Note that a session is about to be closed."""
        if session in self._programs:
            self._replicas.closing(self._programs[session])

    def _warn_of_order(self, names: tuple[str, ...]) -> None:
        """Warn that TensorFlow may start two collectives in another order on each rank."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"one run reaches {names[0]} and {names[1]}. TensorFlow may begin them in another order on each rank, "
                "and the ranks would wait for each other. Run them one after the other, or build the second under "
                "tf.control_dependencies([the first])",
                stacklevel=4,
            )

    def _warn_of_own(self, state: GraphState, fetches: Any) -> None:
        """Warn if a session returns gradients that are not averaged, because tfdist cannot follow NumPy arrays."""
        if state.warned_of_own or not state.pending or not self._job.switches.rewrites:
            return
        marker = writes.fetched(fetches, state)
        if marker is not None:
            state.warned_of_own = True
            unshared = "" if state.broadcasts else ", and in this graph no variable begins with rank 0's value"
            warnings.warn(
                f"a session hands out gradients of {marker.name} that are this rank's own{unshared}. If you set "
                "variables to values computed from them, average them before: tfdist.all_reduce(gradient, 'mean')"
                + (", and begin with tfdist.broadcast(values)" if unshared else ""),
                stacklevel=4,
            )

    def _together(self, session: Any, state: GraphState, reach: Reach, call: Callable[[], Any]) -> Any:
        """Run a call that executes collectives. Collective: the ranks of these collectives."""

        program = self._programs[session] = self.program(session)
        notes = state.of_session(session)
        times_set, notes.set_since = notes.set_since, 0
        compared = program if state.broadcasts else None
        blocks = [state.blocks[c] for c in reach.collectives if c in state.blocks]
        ended = function_state.ending(call, blocks, session)
        in_any_order = self._job.world.waits.unordered() if reach.unordered else contextlib.nullcontext()
        with self._job.training("a session"), in_any_order:
            result = self._replicas.around(
                reach.collectives, compared, not reach.updates, ended, state.failures, times_set
            )
        if any(c.heard.set_apart for c in reach.collectives):
            self._job.say_set_apart()
            if self._job.switches.settings.sync == "gradients":  # in a block each rank has its own values
                self._replicas.now(comparison.PLACE, program, comparison.SET_BY_SCRIPT)
        return result

    def callable_made(self, session: Any) -> None:
        """Note that a callable of a session is about to be made, which later changes of the graph do not reach."""
        writes.before_run(session.graph, self._job)
        state = state_of(session.graph)
        if state is not None:
            state.ran_version = session.graph.version

    def run_in_parts(self, session: Any, fetches: Any) -> None:
        """Check a run in parts, which is about to be set up.

        Raises:
          RuntimeError: it executes an exchange. The ranks meet before a run, and a part does not tell what it runs.
        """
        self.callable_made(session)
        state = state_of(session.graph)
        if state is not None and self._job.switches.rewrites and state.reach(fetches).collectives:
            raise RuntimeError("Session.partial_run cannot execute a training step, in which the ranks meet: use run")

    def around(self, session: Any, fetches: Any, call: Callable[[], Any]) -> Any:
        """Run ``call``, which executes ``fetches`` in ``session``."""
        if self._earlier and self._job.switches.rewrites:
            self._earlier.check_run(session.graph, fetched_operations(session.graph, fetches))
        state = state_of(session.graph)
        if state is None:
            return call()
        notes = state.of_session(session)
        for action in self._moments.runs:
            action()
        writes.before_run(session.graph, self._job)
        self._warn_of_own(state, fetches)
        state.ran_version = session.graph.version
        if not state.collectives:
            return self._job.failing_plainly(call, state.failures)
        reach = state.reach(fetches)
        if reach.collectives:
            if not notes.synchronised or any(c.channel is None for c in reach.collectives):
                self._begin(session)
            elif notes.overwritten:
                notes.overwritten = False
                for collective in reach.collectives:
                    collective.says.overwritten = state.broadcasts and collective.averages
            if self.trained is not session:
                self._trained = weakref.ref(session)
            if reach.unordered:
                self._warn_of_order(reach.unordered)
        if reach.group_collectives:
            self._job.open(reach.group_collectives)
        if reach.collectives or reach.group_collectives:
            result = self._together(session, state, reach, call)
        else:
            result = self._job.failing_plainly(call, state.failures)
        if reach.initialised and reach.initialised >= settable(session.graph).keys():
            notes.own = set()
        elif notes.own is not None and not notes.synchronised:
            notes.own |= reach.assigned
        if notes.synchronised:
            notes.overwritten = notes.overwritten or reach.overwrites
            notes.set_since += reach.sets and not reach.overwrites
        if any(c.heard.root_only for c in reach.collectives):
            notes.synchronised = False
        return result
