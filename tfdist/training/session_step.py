"""Session step: what happens around each ``Session.run``; before the first one that trains, ``first_step``.

Behind the initialiser of a training graph stands one fused broadcast (``initial_broadcast``). And before the first
training step of a session all ranks meet, compare their graphs, and take rank 0's values: that covers what no node can
see, such as a partial initialisation, or a checkpoint restored on rank 0 alone while the others run their initialisers.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.core.log import announce
from tfdist.graph.graph_state import GraphState, Reach, fetched_operations, make_state, state_of
from tfdist.graph.job import Job
from tfdist.training import variable_writes
from tfdist.training._held import HeldInSession
from tfdist.training.moments import Moments
from tfdist.training.replica_check import ReplicaCheck
from tfdist.variables import initial_sync
from tfdist.variables.earlier_graphs import earlier_graphs
from tfdist.variables.session_variables import SessionVariables, settable

_SET_APART = (
    "variables that are trained were set in a session on some ranks, between two steps: rank 0's are taken, and one "
    "step is rank 0's alone; so it is where this happens again. Set them on all ranks, or before the first step"
)


class SessionSteps:
    """What happens around each ``Session.run``: the meeting before the first step, and what is learnt from the run.

    Args:
      run: the original ``BaseSession.run``.
      job: the ranks.
      replicas: compares what they hold.
      moments: at which others have their part done.
    """

    def __init__(self, run: Callable[..., Any], job: Job, replicas: ReplicaCheck, moments: Moments) -> None:
        self._run = run
        self._job = job
        self._replicas = replicas
        self._trained: weakref.ref[Any] | None = None
        self._held: weakref.WeakKeyDictionary[Any, HeldInSession] = weakref.WeakKeyDictionary()
        self._warned = self._told_of_set = False
        self._earlier = earlier_graphs()
        self._moments = moments

    @property
    def trained(self) -> Any:
        """The session that has trained last, if it still exists."""
        return self._trained and self._trained()

    def variables(self, session: Any) -> SessionVariables:
        """Of a session."""
        return SessionVariables(session, self._run)

    def created(self, session: Any) -> None:
        """A monitored session is ready. Collective: all ranks, if its graph communicates.

        Hooks read the global step right after this: a rank that has restored nothing would stop elsewhere.
        """
        state = state_of(session.graph)
        if state is not None and state.world_collectives:
            # A hook may set variables yet, on this rank alone perhaps: the first step begins so once more.
            self._begin(session)
            state.synchronised.discard(session)

    def _begin(self, session: Any) -> None:
        """Bring all ranks together before a session's first step.

        Collective: all ranks; those that are in an initialiser may join for a round.

        Raises:
          DisagreementError: the ranks' training graphs differ.
        """
        graph = session.graph
        state = make_state(graph)
        plan = [f"{line} in {c.name}" for c in state.world_collectives for line in c.plan]
        trained = {v.op.name for v in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
        own = tuple(sorted(state.own.get(session, set()) - trained))
        initial_sync.begin(
            self._job.world.control,
            initial_sync.Visitor(initial_sync.STEP, plan, state.broadcasts, own),
            self.variables(session),
        )
        self._job.open(state.world_collectives)
        for collective in state.world_collectives:
            collective.root_only = False  # one that is not run in each step would say so until its next
        state.synchronised.add(session)
        state.overwritten.discard(session)
        for action in self._moments.begins:
            action(session)

    def closes(self, session: Any) -> None:
        """A session is about to be closed."""
        if session in self._held:
            self._replicas.closing(self._held[session])

    def _warn_of_order(self, names: tuple[str, ...]) -> None:
        """TensorFlow may take two operations that wait for other ranks up in another order on each rank."""
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"one run reaches {names[0]} and {names[1]}, and TensorFlow may begin them in another order on each "
                "rank, which would then wait for each other: run them one after the other, or build the second under "
                "tf.control_dependencies([the first])",
                stacklevel=4,
            )

    def _warn_of_own(self, state: GraphState, fetches: Any) -> None:
        """What a script makes of arrays is not seen any more."""
        if state.warned_of_own or not state.pending or not self._job.switches.rewrites:
            return
        marker = variable_writes.fetched(fetches, state)
        if marker is not None:
            state.warned_of_own = True
            unshared = "" if state.broadcasts else ", and in this graph no variable begins with rank 0's value"
            warnings.warn(
                f"a session hands out gradients of {marker.name} that are this rank's own{unshared}: if variables are "
                "set to what is made of them, average them before, tfdist.all_reduce(gradient, 'mean')"
                + (", and begin with tfdist.broadcast(values)" if unshared else ""),
                stacklevel=4,
            )

    def _failing_plainly(self, state: GraphState, call: Callable[[], Any]) -> Any:
        """Run it; what has gone wrong in an exchange is raised as it was, without TensorFlow's wrapping."""
        try:
            return call()
        except tf.errors.OpError as error:
            failure = self._job.failure(state.failures, error)
            if failure is not None:
                raise failure from None
            raise

    def _together(self, session: Any, state: GraphState, reach: Reach, call: Callable[[], Any]) -> Any:
        """Run what all ranks run together."""

        if session not in self._held:
            self._held[session] = HeldInSession(session, self._run)
        holder = self._held[session]
        for collective in reach.collectives:
            collective.evaluates = not reach.updates
        in_any_order = self._job.world.unordered() if reach.unordered else contextlib.nullcontext()
        with self._job.thread_guard.running("a session"), in_any_order:
            carrier = self._replicas.before(reach.collectives, holder) if state.broadcasts else None
            times_set = state.set_since.pop(session, 0)
            if carrier is not None and times_set:
                carrier.asks, carrier.times_set = True, times_set
            result = self._failing_plainly(state, call)
            self._replicas.after(carrier)
        if any(c.set_apart for c in reach.collectives) and not self._told_of_set:
            self._told_of_set = True
            announce(_SET_APART)
        return result

    def around(self, session: Any, fetches: Any, call: Callable[[], Any]) -> Any:
        """Run ``call``, which executes ``fetches`` in ``session``."""
        if self._earlier and self._job.switches.rewrites:
            self._earlier.check_run(session.graph, fetched_operations(session.graph, fetches))
        state = state_of(session.graph)
        if state is None:
            return call()
        state.sessions.add(session)
        for action in self._moments.runs:
            action()
        variable_writes.before_run(session.graph, self._job)
        self._warn_of_own(state, fetches)
        state.ran_version = session.graph.version
        if not state.collectives:
            return self._failing_plainly(state, call)
        reach = state.reach(fetches)
        if reach.collectives:
            if session not in state.synchronised or any(c.channel is None for c in reach.collectives):
                self._begin(session)
            elif session in state.overwritten:
                state.overwritten.discard(session)
                for collective in reach.collectives:
                    collective.overwritten = state.broadcasts and collective.averages
            if self.trained is not session:
                self._trained = weakref.ref(session)
            if reach.unordered:
                self._warn_of_order(reach.unordered)
        if reach.group_collectives:
            self._job.open(reach.group_collectives)
        if reach.collectives or reach.group_collectives:
            result = self._together(session, state, reach, call)
        else:
            result = self._failing_plainly(state, call)
        if reach.overwrites and session in state.synchronised:
            state.overwritten.add(session)
        elif reach.sets and session in state.synchronised:
            state.set_since[session] = state.set_since.get(session, 0) + 1
        if reach.initialised and reach.initialised >= settable(session.graph).keys():
            state.own[session] = set()
        elif session in state.own and session not in state.synchronised:
            state.own[session] |= reach.assigned
        if reach.given and session in state.synchronised:
            state.given.setdefault(session, set()).update(reach.given)
        if any(c.root_only for c in reach.collectives):
            state.synchronised.discard(session)
        return result
