"""Session variables: reads and sets the values of a session's variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.replicas.initial_sync import Values
from tfdist.transport.errors import DisagreementError


class SessionVariables:
    """The global variables of a session that can be set through their initialisers; see ``initial_sync.Variables``.

    Args:
      session: session that holds the values.
      run: ``Session.run`` itself, without the hook around it.
    """

    def __init__(self, session: Any, run: Callable[..., Any]) -> None:
        self._session = session
        self._run = run
        self._by_name = settable(session.graph)

    def read(self) -> dict[str, np.ndarray]:
        """Return the values of all initialised variables, by name."""
        try:
            read = self._run(self._session, list(self._by_name.values()))
        except tf.errors.FailedPreconditionError:
            values = {}
            for name, variable in self._by_name.items():
                # An uninitialised variable is skipped: if the step needs it, TensorFlow raises an error.
                with contextlib.suppress(tf.errors.FailedPreconditionError):
                    values[name] = array(self._run(self._session, variable))
            return values
        return {name: array(value) for name, value in zip(self._by_name, read, strict=True)}

    def value(self, variable: Any) -> np.ndarray | None:
        """Return the value of one variable; None if it is not initialised."""
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            return array(self._run(self._session, variable))
        return None

    def values(self, variables: Sequence[Any]) -> list[np.ndarray]:
        """Return values of variables; zeros for an uninitialised one, which another part of the program may train."""
        try:
            return [array(value) for value in self._run(self._session, list(variables))]
        except tf.errors.FailedPreconditionError:
            found = ((v, self.value(v)) for v in variables)
            return [_zeros(v) if value is None else value for v, value in found]

    def load(self, values: Values) -> None:
        """Set variables through their initialisers. This adds no operation to the graph, which may be finalised."""
        variables = self._by_name
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
                self._session,
                [variables[name].initializer for name in feed.values()],
                feed_dict={tensor.deref(): values[name] for tensor, name in feed.items()},
            )
            known = [name for name in known if name not in feed.values()]


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
