"""Held variables: the variables that must be the same on all ranks, in a session and outside: see ``variables.held``.

These are the trained variables, the optimizers' variables, and the other variables that the loss reads. Variables that
each rank is meant to have for itself are excluded. They are states of random generators, statistics of batches (moving
means and variances), and metrics and other variables that TensorFlow keeps for each replica. States of samples, with a
row for each sample of the batch, are excluded too. So are variables that the script has given to ``tfdist.keep_own``,
or has set between steps to arrays of this rank.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence, Set
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat import variables as tf_variables
from tfdist.core.log import announce
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.markers import variable_key, variable_name
from tfdist.training.shared_variables import SharedVariables
from tfdist.variables.eager_variables import batch_statistic, metric_state, random_state
from tfdist.variables.loss_reads import loss_reads
from tfdist.variables.replica_variables import READ, TRAINED, ReplicaVariable
from tfdist.variables.session_variables import SessionVariables, settable

_SAMPLES = (
    "%s has a row for each sample of a rank's batch. It is treated as state of the samples, which each rank has for "
    "itself. Call tfdist.keep_own(variable) to confirm this and to remove this message"
)
_INPUTS = ("Placeholder", "IteratorGetNext", "QueueDequeue")
_CHUNK_BYTES = 1 << 26  # about the most that one run of a session reads


def left_out(variable: Any) -> bool:
    """Return whether a variable that the loss reads is meant to differ between ranks.

    Its name decides, or its ``synchronization``. With ``ON_READ`` (totals of metrics) each replica has its own value.
    """
    by_replica = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return by_replica or random_state(variable) or batch_statistic(variable) or metric_state(variable)


class EagerReplicas:
    """Held variables outside of sessions; see ``held.ReplicaVariables``.

    Args:
      known: the variables of this process.
      candidates: variables that a function or an eager step uses.
      reads: keys of the variables that the loss reads.
      batch_sizes: numbers of rows of a function's inputs.
    """

    def __init__(
        self,
        known: SharedVariables,
        candidates: Sequence[Any],
        reads: Collection[Hashable] = (),
        batch_sizes: Set[int] = frozenset(),
    ) -> None:
        self._known = known
        self._candidates = {tf_variables.name(v): weakref.ref(v) for v in candidates}
        self._reads = reads
        self._batch_sizes = known.batch_sizes | batch_sizes
        trained = (tf_variables.name(v) for v in candidates if tf_variables.key(v) in known.trained)
        self.identity: Hashable = frozenset(trained)

    @property
    def complete(self) -> bool:
        return all(reference() is not None for reference in self._candidates.values())

    def held(self) -> list[ReplicaVariable]:
        there = [v for reference in self._candidates.values() if (v := reference()) is not None]
        numbered = [(number, v) for v in there if (number := self._known.number(v)) is not None]
        found = [self._as_held(variable) for _, variable in sorted(numbered, key=lambda pair: pair[0])]
        return [one for one in found if one is not None]

    def _as_held(self, variable: Any) -> ReplicaVariable | None:
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
        if key not in self._reads or left_out(variable):
            return None
        if _of_samples(name, variable, self._batch_sizes):
            return None
        return ReplicaVariable(name, READ, variable, described)

    def read(self, held: Sequence[ReplicaVariable]) -> Iterator[np.ndarray]:
        for one in held:
            yield np.asarray(one.variable.read_value())  # no copy if the variable is in host memory

    def load(self, held: ReplicaVariable, value: np.ndarray) -> None:
        with self._known.setting():
            held.variable.assign(value)

    def given(self, held: ReplicaVariable) -> bool:
        return tf_variables.name(held.variable) in self._known.given

    def keep_own(self, held: ReplicaVariable) -> None:
        self._known.own.add(tf_variables.name(held.variable))


_sessions = itertools.count()  # not id(): an address may be used again for another session, on some ranks only
_told_of_samples: set[str] = set()


def rows_of(values: Iterable[Any]) -> set[int]:
    """Return the numbers of rows of tensors or variables that are more than one: possible batch sizes."""
    shapes = (value.shape for value in values if value.dtype not in (tf.resource, tf.variant))
    # With TensorFlow 1's behaviour an element of a shape is a Dimension, not a number.
    rows = (tf.compat.dimension_value(shape[0]) for shape in shapes if shape.rank)
    return {number for number in rows if (number or 1) > 1}


def _of_samples(name: str, variable: Any, batch_sizes: Set[int]) -> bool:
    """Return whether a variable has a row for each sample of a batch, and log this once for each name."""
    if not rows_of([variable]) & batch_sizes:
        return False
    if name not in _told_of_samples:
        _told_of_samples.add(name)
        announce(_SAMPLES % name)
    return True


class SessionReplicas:
    """Held variables in a session; see ``held.ReplicaVariables``.

    Args:
      session: the session.
      run: the original ``Session.run``, without the hook.
    """

    def __init__(self, session: Any, run: Callable[..., Any]) -> None:
        self._session = weakref.ref(session)
        self._run = run
        self.identity: Hashable = next(_sessions)
        self._kinds: tuple[int, dict[Hashable | None, str]] = -1, {}
        self._batch_sizes: set[int] = set()

    @property
    def complete(self) -> bool:
        return self._session() is not None

    def _variables(self) -> SessionVariables:
        return SessionVariables(self._session(), self._run)

    def held(self) -> list[ReplicaVariable]:
        session = self._session()
        assert session is not None
        state = make_state(session.graph)
        if self._kinds[0] != session.graph.version:
            self._kinds = session.graph.version, _kinds(session.graph, state)
            self._batch_sizes = _batch_sizes(session.graph)
        kinds = self._kinds[1]
        found = []
        for name, variable in settable(session.graph).items():
            kind = kinds.get(variable_key(variable))
            if kind is None or random_state(variable) or variable.dtype.base_dtype == tf.string:
                continue
            if name in state.kept_own or (kind == READ and left_out(variable)):
                continue
            if kind == READ and _of_samples(variable.op.name, variable, self._batch_sizes):
                continue
            found.append(
                ReplicaVariable(variable.op.name, kind, variable, f"{variable.dtype.base_dtype.name} {variable.shape}")
            )
        return found

    def read(self, held: Sequence[ReplicaVariable]) -> Iterator[np.ndarray]:
        chunk: list[ReplicaVariable] = []
        for number, one in enumerate(held):
            chunk.append(one)
            size = sum((c.variable.shape.num_elements() or 1) * c.variable.dtype.size for c in chunk)
            if size > _CHUNK_BYTES or number + 1 == len(held):
                yield from self._variables().values([c.variable for c in chunk])
                chunk = []

    def load(self, held: ReplicaVariable, value: np.ndarray) -> None:
        self._variables().load({held.variable.name: value})

    def given(self, held: ReplicaVariable) -> bool:
        session = self._session()
        return session is not None and held.variable.op.name in make_state(session.graph).given.get(session, ())

    def keep_own(self, held: ReplicaVariable) -> None:
        session = self._session()
        if session is not None:
            make_state(session.graph).kept_own.add(held.variable.name)


def _kinds(graph: Any, state: GraphState) -> dict[Hashable | None, str]:
    """Return the kind of each held variable of a graph, by key: trained, read by the loss, or an optimizer's."""
    sources = [tensor for marker in state.markers.values() for tensor in marker.sources]
    found: dict[Hashable | None, str] = dict.fromkeys(loss_reads(sources), READ)
    for optimizer in state.optimizers:
        with graph.as_default():
            own = optimizers.variables(optimizer)
        found.update({variable_key(v): f"of {type(optimizer).__name__}" for v in own})
    found.update(dict.fromkeys(state.trained, TRAINED))
    return found


def _batch_sizes(graph: Any) -> set[int]:
    """Return the numbers of rows of a graph's inputs (feeds, queues, datasets) that have static shapes."""
    inputs = (op for op in graph.get_operations() if op.type.startswith(_INPUTS))
    return rows_of(tensor for op in inputs for tensor in op.outputs)
