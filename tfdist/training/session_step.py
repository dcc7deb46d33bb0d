"""Rank 0's initial and restored values -> every rank.

Two parts. Behind the initialiser of a training graph stands one fused broadcast node. And before the first training
step of a session all ranks meet, compare their graphs, and take rank 0's values: that covers what no node can see,
such as a partial initialisation, or a checkpoint restored on rank 0 alone while the others run their initialisers.

Both are the same meeting, so that a rank in its initialiser and a rank before its first step can meet too: a round
serves those who came from an initialiser, who then go on; ranks before a step stay until all are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tfdist.engine import autotune
from tfdist.engine.collective import Collective
from tfdist.graph.graph_state import GraphState, make_state, state_of, unconstrained
from tfdist.graph.job import Job, Training
from tfdist.transport import agreement
from tfdist.transport.interfaces import DisagreementError

_PLACE = "the exchange of variables"
_one_at_a_time = threading.Lock()
Values = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class _Visitor:
    """What a rank says when it comes to the meeting.

    Attributes:
      purpose: ``step``: about to run its first step; ``initialiser``: has just drawn its own values.
      plan_digest: of the communication (step) or the variables (initialiser) that all must share.
      broadcasts: wants rank 0's values.
      own: names of variables that it has assigned to since a common initialiser, and that are not trained. Those that
        every rank has assigned to, gradients that are being accumulated for example, stay each rank's own.
    """

    purpose: str
    plan_digest: str
    broadcasts: bool
    own: tuple[str, ...] = ()


def _meet(job: Job, visitor: _Visitor, plan: Sequence[str], own_values: Callable[[], Values]) -> tuple[bool, Values]:
    """One round of the meeting; Collective: all ranks.

    Args:
      job: the ranks.
      visitor: this rank.
      plan: the lines behind ``visitor.plan_digest``.
      own_values: called on rank 0 if anybody wants values.

    Returns:
      Whether all ranks came for the same purpose, and rank 0's values by variable name (empty if nobody wants them).
    """
    control = job.world.control
    visitors: list[_Visitor] = control.all_gather_object(visitor, _PLACE)
    purposes = {v.purpose for v in visitors}
    if len(purposes) == 1 and len({v.plan_digest for v in visitors}) > 1:
        if visitor.purpose == "initialiser":
            raise DisagreementError(
                "the ranks are in different initialisers. Run one after the other, in the same order on all ranks, "
                "or all variables together by tf.compat.v1.global_variables_initializer()"
            )
        agreement.check(control.all_gather_object(list(plan), _PLACE))
    values: Values = {}
    if any(v.broadcasts for v in visitors):
        values = send(job, own_values() if job.world.rank == 0 else {})
    for name in set.intersection(*(set(v.own) for v in visitors)):
        values.pop(f"{name}:0", None)
    return len(purposes) == 1, values


def send(job: Job, values: Values, root: int = 0) -> Values:
    """One rank's values, first their names, dtypes and shapes, then the bytes. Collective: all ranks."""
    control = job.world.control
    plain = {n: np.asarray(v, order="C") for n, v in values.items() if v.dtype != object}
    other = {n: v for n, v in values.items() if v.dtype == object}  # strings
    header = ([(n, v.dtype, v.shape) for n, v in plain.items()], other)
    shapes, other = control.broadcast_object(header, _PLACE, root)
    result: Values = dict(other)
    for name, dtype, shape in shapes:
        value = plain[name] if name in plain else np.empty(shape, dtype)
        if value.size:
            control.broadcast(value, root)
        result[name] = value
    return result


def broadcast_behind(initializer: ops.Operation, variables: Sequence[Any], job: Job) -> ops.Operation:
    """Put the fused broadcast node behind an initialiser, if it belongs to a training graph.

    Args:
      initializer: the operation that runs the variables' own initialisers.
      variables: of which the global ones take part; local ones are each rank's own.
      job: the ranks.

    Returns:
      The operation to run instead: all ranks then hold rank 0's values.
    """
    graph = ops.get_default_graph()
    state = state_of(graph)
    shared = {id(v) for v in graph.get_collection(ops.GraphKeys.GLOBAL_VARIABLES)}
    chosen = [v for v in variables if id(v) in shared and hasattr(v, "read_value")]
    in_function = getattr(graph, "outer_graph", None) is not None
    if not (job.broadcasts and chosen and state and state.broadcasts) or in_function:
        return initializer
    names = [v.name for v in chosen]
    plan = [f"variable {v.name} {v.dtype.base_dtype.name} {v.shape}" for v in chosen]
    visitor = _Visitor("initialiser", agreement.digest(plan), True)

    def call(*values: np.ndarray) -> list[np.ndarray]:
        own = {name: _array(value) for name, value in zip(names, values, strict=True)}
        try:
            with _one_at_a_time:  # several initialisers of one run are threads of TensorFlow's
                _, received = _meet(job, visitor, plan, lambda: own)
            return [_fitting(name, own[name], received) for name in names]
        except BaseException as error:
            state.failure = error
            raise

    with unconstrained(graph), tf.name_scope("tfdist/broadcast"):
        with tf.control_dependencies([initializer]):
            values = [v.read_value() for v in chosen]
        with tf.device("/device:CPU:0"):
            received = tf.numpy_function(call, values, [v.dtype for v in values], stateful=True)
        for value, variable in zip(received, chosen, strict=True):
            value.set_shape(variable.shape)
        assignments = [tf.compat.v1.assign(v, value).op for v, value in zip(chosen, received, strict=True)]
        result = tf.group(initializer, *assignments, name="init")
    state.add_init_op(result, names)
    return result


def _array(value: Any) -> np.ndarray:
    """TensorFlow hands scalar strings out as plain bytes."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)


def _fitting(name: str, own: np.ndarray, received: Values) -> np.ndarray:
    value = received.get(name, own)  # rank 0 has not initialised it yet: the first step's meeting will have it
    if value.shape != own.shape or value.dtype != own.dtype:
        raise DisagreementError(
            f"variable {name} is {value.dtype} {value.shape} on rank 0 and {own.dtype} {own.shape} here. "
            "Every rank must build the same graph."
        )
    return value


def synchronise(session: Any, run: Callable[..., Any], job: Job) -> None:
    """Bring all ranks together before a session's first step.

    Collective: all ranks; those that are in an initialiser may join for a round.

    Args:
      session: whose variables are meant.
      run: ``Session.run`` itself, without the hook that calls this.
      job: the ranks.

    Raises:
      DisagreementError: the ranks' training graphs differ.
    """
    graph = session.graph
    state = make_state(graph)
    plan = [f"{line} in {c.name}" for c in state.world_collectives for line in c.plan]
    own = state.own.get(session, set()) - {v.op.name for v in graph.get_collection(ops.GraphKeys.TRAINABLE_VARIABLES)}
    visitor = _Visitor("step", agreement.digest(plan), state.broadcasts, tuple(sorted(own)))
    variables = _settable(graph)
    complete = False
    while not complete:
        complete, values = _meet(job, visitor, plan, lambda: _read(session, run, variables))
        if job.world.rank and values:
            _load(session, run, variables, values)
    if any(c.shared_tensors for c in state.world_collectives):
        autotune.ensure(job)
    for collective in state.world_collectives:
        if collective.channel is None:
            collective.open()
    state.synchronised.add(session)
    state.overwritten.discard(session)


def take_from(root: int, session: Any, run: Callable[..., Any], job: Job) -> None:
    """Give every rank one rank's variables. Collective: all ranks."""
    variables = _settable(session.graph)
    values = send(job, _read(session, run, variables) if job.world.rank == root else {}, root)
    if job.world.rank != root:
        _load(session, run, variables, values)


def _settable(graph: Any) -> dict[str, Any]:
    """The global variables that can be set through their initialisers, by name."""
    return {
        v.name: v
        for v in graph.get_collection(ops.GraphKeys.GLOBAL_VARIABLES)
        if getattr(v, "initializer", None) is not None and len(v.initializer.inputs) > 1
    }


def open_in_agreement(collective: Collective, job: Job) -> None:
    """Compare one collective's plans between its ranks, and open it. Collective: its ranks."""
    control = (collective.group or job.world).control
    plan = [f"{line} in {collective.name}" for line in collective.plan]
    agreement.check(control.all_gather_object(plan, "the first run of an exchange"))
    if collective.shared_tensors:
        autotune.ensure(job)
    collective.open()


def _read(session: Any, run: Callable[..., Any], variables: Mapping[str, Any]) -> Values:
    """The values of all initialised variables."""
    try:
        read = run(session, list(variables.values()))
    except tf.errors.FailedPreconditionError:
        values = {}
        for name, variable in variables.items():
            # One that is not initialised: if the step needs it, it will say so itself.
            with contextlib.suppress(tf.errors.FailedPreconditionError):
                values[name] = _array(run(session, variable))
        return values
    return {name: _array(value) for name, value in zip(variables, read, strict=True)}


def _load(session: Any, run: Callable[..., Any], variables: Mapping[str, Any], values: Values) -> None:
    """Set variables through their initialisers, which adds nothing to a graph that may be finalised."""
    known = [name for name in variables if name in values]
    for name in known:
        if not variables[name].shape.is_compatible_with(values[name].shape):
            raise DisagreementError(
                f"variable {name} has shape {values[name].shape} on rank 0 and {variables[name].shape} here. "
                "Every rank must build the same graph."
            )
    while known:
        # Several variables may be made from one tensor, which can be fed one value at a time.
        feed = {variables[name].initializer.inputs[1].ref(): name for name in reversed(known)}
        run(
            session,
            [variables[name].initializer for name in feed.values()],
            feed_dict={tensor.deref(): values[name] for tensor, name in feed.items()},
        )
        known = [name for name in known if name not in feed.values()]


class SessionHook:
    """What happens around each ``Session.run``: the meeting before the first step, and what is learnt from the run.

    Args:
      run: the original ``BaseSession.run``.
      job: the ranks.
    """

    def __init__(self, run: Callable[..., Any], job: Job) -> None:
        self._run = run
        self._job = job
        self._trained: Any = None
        self._warned = False

    def _remember(self, session: Any) -> None:
        if self._trained is None or self._trained() is not session:
            self._trained = known = weakref.ref(session)
            self._job.training = lambda: None if known() is None else Training(known(), self._run)

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

    def around(self, session: Any, fetches: Any, call: Callable[[], Any]) -> Any:
        """Run ``call``, which executes ``fetches`` in ``session``."""
        state: GraphState | None = getattr(session.graph, "_tfdist_state", None)
        if state is None:
            return call()
        state.ran_version = session.graph.version
        if not state.collectives:
            return call()
        reach = state.reach(fetches)
        if reach.collectives:
            if session not in state.synchronised or any(c.channel is None for c in reach.collectives):
                synchronise(session, self._run, self._job)
            elif session in state.overwritten:
                state.overwritten.discard(session)
                for collective in reach.collectives:
                    collective.overwritten = state.broadcasts and collective.averages
            self._remember(session)
            if reach.unordered:
                self._warn_of_order(reach.unordered)
        for collective in reach.group_collectives:
            if collective.channel is None:
                open_in_agreement(collective, self._job)
        try:
            result = call()
        except tf.errors.OpError:
            failure, state.failure = state.failure, None
            if failure is not None:
                raise failure from None
            raise
        if reach.overwrites and session in state.synchronised:
            state.overwritten.add(session)
        if reach.initialised and reach.initialised >= _settable(session.graph).keys():
            state.own[session] = set()
        elif session in state.own and session not in state.synchronised:
            state.own[session] |= reach.assigned
        if any(c.root_only for c in reach.collectives):
            state.synchronised.discard(session)
        return result
