"""Session program: the variables of a session, which are read by a run and set through their initialisers."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.graph.graph_state import GraphState, make_state
from tfdist.graph.markers import variable_key
from tfdist.replicas.initial_sync import Values
from tfdist.replicas.loss_reads import loss_reads
from tfdist.replicas.program import TRAINED, Replica, replica
from tfdist.transport.errors import DisagreementError

_CHUNK_BYTES = 1 << 26  # about the most that one run of a session reads
_sessions = itertools.count()  # not id(): an address may be used again for another session, on some ranks only


class SessionProgram:
    """The global variables of a session that can be set through their initialisers; see ``program.Program``.

    Args:
      session: session that holds the values.
      run: ``Session.run`` itself, without the hook around it.
    """

    def __init__(self, session: Any, run: Callable[..., Any]) -> None:
        self._session = weakref.ref(session)
        self._run = run
        self.identity: Hashable = next(_sessions)
        self._reads: set[Hashable] = set()
        self._kinds: dict[Hashable | None, str] = {}
        self._version = -1  # of the graph, when these were found

    @property
    def complete(self) -> bool:
        return self._session() is not None

    @property
    def _graph(self) -> Any:
        session = self._session()
        assert session is not None
        return session.graph

    def replicas(self) -> list[Replica]:
        graph = self._graph
        state = make_state(graph)
        if self._version != graph.version:
            self._version = graph.version
            self._reads = loss_reads([tensor for marker in state.markers.values() for tensor in marker.sources])
            self._kinds = _kinds(graph, state)
        candidates = [(v, variable_key(v)) for name, v in settable(graph).items() if name not in state.kept_own]
        found = (replica(v, v.op.name, self._kinds.get(key), key in self._reads) for v, key in candidates)
        return [one for one in found if one is not None]

    def values(self) -> dict[str, np.ndarray]:
        """Return the values of all initialised variables, by name."""
        variables = settable(self._graph)
        found = zip(variables, self._values(list(variables.values())), strict=True)
        # An uninitialised variable is skipped: if the step needs it, TensorFlow raises an error.
        return {name: value for name, value in found if value is not None}

    def value(self, variable: Any) -> np.ndarray | None:
        """Return the value of one variable; None if it is not initialised."""
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            return array(self._run(self._session(), variable))
        return None

    def read(self, variables: Sequence[Any]) -> Iterator[np.ndarray]:
        chunk: list[Any] = []
        for number, variable in enumerate(variables):
            chunk.append(variable)
            size = sum((v.shape.num_elements() or 1) * v.dtype.size for v in chunk)
            if size > _CHUNK_BYTES or number + 1 == len(variables):
                values = zip(chunk, self._values(chunk), strict=True)
                yield from (_zeros(one) if value is None else value for one, value in values)
                chunk = []

    def _values(self, variables: list[Any]) -> list[np.ndarray | None]:
        """Return the values of variables, None for one that is not initialised."""
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            return [array(value) for value in self._run(self._session(), variables)]
        return [self.value(variable) for variable in variables]

    def load(self, values: Iterable[tuple[Any, np.ndarray]]) -> None:
        self.set({variable.name: value for variable, value in values})

    def set(self, values: Values) -> None:
        """Set variables by name, through their initialisers. Names that this graph does not have are skipped.

        This adds no operation to the graph, which may be finalised.
        """
        variables = settable(self._graph)
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
            self._run(
                self._session(),
                [variables[name].initializer for name in feed.values()],
                feed_dict={tensor.deref(): values[name] for tensor, name in feed.items()},
            )
            known = [name for name in known if name not in feed.values()]

    def keep_own(self, variable: Any) -> None:
        make_state(self._graph).kept_own.add(variable.name)


def _kinds(graph: Any, state: GraphState) -> dict[Hashable | None, str]:
    """Return the kinds of the trained variables of a graph and of the optimizers' variables, by key."""
    found: dict[Hashable | None, str] = {}
    for optimizer in state.optimizers:
        with graph.as_default():
            own = optimizers.variables(optimizer)
        found.update({variable_key(v): f"of {type(optimizer).__name__}" for v in own})
    return found | dict.fromkeys(state.trained, TRAINED)


def settable(graph: Any) -> dict[str, Any]:
    """Return the global variables that can be set through their initialisers, by name."""
    return {
        v.name: v
        for v in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
        if getattr(v, "initializer", None) is not None and len(v.initializer.inputs) > 1
    }


def _zeros(variable: Any) -> np.ndarray:
    shape = variable.shape.as_list() if variable.shape.is_fully_defined() else [0]
    return np.zeros(shape, variable.dtype.base_dtype.as_numpy_dtype)


def array(value: Any) -> np.ndarray:
    """Return a value as an array; TensorFlow returns scalar strings as plain bytes."""
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)
