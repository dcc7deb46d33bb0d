"""Block places: where the variables of blocks are, in a session or outside sessions, with one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tfdist.compat.variables import value
from tfdist.training.shared_variables import SharedVariables
from tfdist.updates._local_sgd_state import LocalSGDState
from tfdist.variables.replica_variables import ReplicaVariables
from tfdist.variables.session_variables import SessionVariables

Values = dict[Any, np.ndarray]


class Place(Protocol):
    """Where states of blocks have their variables.

    Attributes:
      states: the states there, in the order of their making.
    """

    @property
    def states(self) -> Sequence[LocalSGDState]: ...  # noqa: D102

    def key(self, variable: Any) -> Any:
        """Return the key of a variable in ``read`` and ``load``."""

    def position(self, state: LocalSGDState) -> int:
        """Return a state's position in its block; 0 if it is not initialised."""

    def read(self, variables: Sequence[Any]) -> Values:
        """Return the values of variables."""

    def load(self, variables: Sequence[Any], values: Values) -> None:
        """Set those of the variables that have a new value."""

    def holder(self, state: LocalSGDState) -> ReplicaVariables:
        """Return a holder of the variables that must be the same on all ranks after the end of a state's block."""


class InSession:
    """A session; see ``Place``.

    Args:
      variables: variables of the session.
      holder: see ``holder``.
      states: states of its graph.
    """

    def __init__(
        self,
        variables: SessionVariables,
        holder: ReplicaVariables,
        states: Sequence[LocalSGDState],
    ) -> None:
        self._variables, self._holder = variables, holder
        self.states = states

    def key(self, variable: Any) -> Any:
        return variable.name

    def position(self, state: LocalSGDState) -> int:
        found = self._variables.value(state.position)
        return 0 if found is None else int(found)

    def read(self, variables: Sequence[Any]) -> Values:
        return {v.name: value for v, value in zip(variables, self._variables.values(variables), strict=True)}

    def load(self, variables: Sequence[Any], values: Values) -> None:
        self._variables.load(values)

    def holder(self, state: LocalSGDState) -> ReplicaVariables:
        return self._holder


class Outside:
    """Outside sessions; see ``Place``.

    Args:
      known: the variables of this process.
      holder_of: function that returns a holder of variables.
      states: all states outside sessions.
    """

    def __init__(
        self,
        known: SharedVariables,
        holder_of: Callable[[Sequence[Any]], ReplicaVariables],
        states: Sequence[LocalSGDState],
    ) -> None:
        self._known, self._holder_of = known, holder_of
        self.states = states

    def key(self, variable: Any) -> Any:
        return id(variable)

    def position(self, state: LocalSGDState) -> int:
        return int(value(state.position))

    def read(self, variables: Sequence[Any]) -> Values:
        return {id(v): value(v) for v in variables}

    def load(self, variables: Sequence[Any], values: Values) -> None:
        with self._known.setting():
            for variable in {id(v): v for v in variables if id(v) in values}.values():
                variable.assign(values[id(variable)])

    def holder(self, state: LocalSGDState) -> ReplicaVariables:
        return self._holder_of(state.variables)
