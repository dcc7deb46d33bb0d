"""Replicas: the variables that must be the same on all ranks, in a session and outside; see ``replica_variables``.

These are the trained variables, the optimizers' variables, and the other variables that the loss reads. Left out are
those that the framework keeps for each rank (``of_each_rank``), states of random generators, and variables that the
script has given to ``tfdist.keep_own``.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.variables import random_state
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.markers import variable_key, variable_name
from tfdist.replicas.loss_reads import loss_reads
from tfdist.replicas.replica_variables import READ, STATISTIC, TRAINED, ReplicaVariable
from tfdist.replicas.session_variables import SessionVariables, settable
from tfdist.replicas.shared_variables import SharedVariables

_CHUNK_BYTES = 1 << 26  # about the most that one run of a session reads


class EagerReplicas:
    """Replicas outside of sessions; see ``replica_variables.ReplicaVariables``.

    Args:
      known: the variables of this process.
      candidates: variables that a function or an eager step uses.
      reads: keys of the variables that the loss reads; see ``loss_reads``.
    """

    def __init__(self, known: SharedVariables, candidates: Sequence[Any], reads: Collection[Hashable] = ()) -> None:
        self._known = known
        self._candidates = {tf_variables.name(v): weakref.ref(v) for v in candidates}
        self._reads = reads
        trained = (tf_variables.name(v) for v in candidates if tf_variables.key(v) in known.trained)
        self.identity: Hashable = frozenset(trained)

    @property
    def complete(self) -> bool:
        return all(reference() is not None for reference in self._candidates.values())

    def replicas(self) -> list[ReplicaVariable]:
        there = [v for reference in self._candidates.values() if (v := reference()) is not None]
        numbered = [(number, v) for v in there if (number := self._known.number(v)) is not None]
        found = [self._as_replica(variable) for _, variable in sorted(numbered, key=lambda pair: pair[0])]
        return [one for one in found if one is not None]

    def _as_replica(self, variable: Any) -> ReplicaVariable | None:
        key, name, known = tf_variables.key(variable), variable_name(variable), self._known
        if (
            tf_variables.name(variable) in known.own
            or variable.dtype in (tf.string, tf.variant)
            or random_state(variable)
        ):
            return None
        described = f"{variable.dtype.name} {variable.shape}"
        if key in known.trained:
            return ReplicaVariable(name, TRAINED, variable, described)
        if key in known.of_optimizers:
            return ReplicaVariable(name, known.of_optimizers[key], variable, described)
        if key not in self._reads or tf_variables.of_each_rank(variable):
            return None
        return ReplicaVariable(name, _kind(variable), variable, described)

    def read(self, replicas: Sequence[ReplicaVariable]) -> Iterator[np.ndarray]:
        for one in replicas:
            yield np.asarray(one.variable.read_value())  # no copy if the variable is in host memory

    def load(self, replica: ReplicaVariable, value: np.ndarray) -> None:
        with self._known.setting():
            replica.variable.assign(value)

    def keep_own(self, replica: ReplicaVariable) -> None:
        self._known.own.add(tf_variables.name(replica.variable))


_sessions = itertools.count()  # not id(): an address may be used again for another session, on some ranks only


class SessionReplicas:
    """Replicas in a session; see ``replica_variables.ReplicaVariables``.

    Args:
      session: the session.
      run: the original ``Session.run``, without the hook.
    """

    def __init__(self, session: Any, run: Callable[..., Any]) -> None:
        self._session = weakref.ref(session)
        self._run = run
        self.identity: Hashable = next(_sessions)
        self._reads: set[Hashable] = set()
        self._trained: dict[Hashable | None, str] = {}
        self._version = -1  # of the graph, when these were found

    @property
    def complete(self) -> bool:
        return self._session() is not None

    def _variables(self) -> SessionVariables:
        return SessionVariables(self._session(), self._run)

    def replicas(self) -> list[ReplicaVariable]:
        session = self._session()
        assert session is not None
        state = make_state(session.graph)
        if self._version != session.graph.version:
            self._version = session.graph.version
            self._reads = loss_reads([tensor for marker in state.markers.values() for tensor in marker.sources])
            self._trained = _trained(session.graph, state)
        found = []
        for name, variable in settable(session.graph).items():
            key = variable_key(variable)
            kind = self._trained.get(key)
            if name in state.kept_own or random_state(variable) or variable.dtype.base_dtype == tf.string:
                continue
            if kind is None and (key not in self._reads or tf_variables.of_each_rank(variable)):
                continue
            kind = kind or _kind(variable)
            found.append(
                ReplicaVariable(variable.op.name, kind, variable, f"{variable.dtype.base_dtype.name} {variable.shape}")
            )
        return found

    def read(self, replicas: Sequence[ReplicaVariable]) -> Iterator[np.ndarray]:
        chunk: list[ReplicaVariable] = []
        for number, one in enumerate(replicas):
            chunk.append(one)
            size = sum((c.variable.shape.num_elements() or 1) * c.variable.dtype.size for c in chunk)
            if size > _CHUNK_BYTES or number + 1 == len(replicas):
                yield from self._variables().values([c.variable for c in chunk])
                chunk = []

    def load(self, replica: ReplicaVariable, value: np.ndarray) -> None:
        self._variables().load({replica.variable.name: value})

    def keep_own(self, replica: ReplicaVariable) -> None:
        session = self._session()
        if session is not None:
            make_state(session.graph).kept_own.add(replica.variable.name)


def _kind(variable: Any) -> str:
    """Return the kind of a variable that is not trained, and that the loss reads."""
    return STATISTIC if tf_variables.batch_statistic(variable) else READ


def _trained(graph: Any, state: GraphState) -> dict[Hashable | None, str]:
    """Return the kinds of the trained variables of a graph and of the optimizers' variables, by key."""
    found: dict[Hashable | None, str] = {}
    for optimizer in state.optimizers:
        with graph.as_default():
            own = optimizers.variables(optimizer)
        found.update({variable_key(v): f"of {type(optimizer).__name__}" for v in own})
    return found | dict.fromkeys(state.trained, TRAINED)
