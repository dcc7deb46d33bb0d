"""Eager program: variables of this process outside sessions, which a function, an eager step or ``fit`` uses."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tfdist.compat import variables as tf_variables
from tfdist.graph.markers import variable_name
from tfdist.replicas.program import TRAINED, Replica, replica
from tfdist.replicas.shared_variables import SharedVariables


class EagerProgram:
    """Variables outside sessions; see ``program.Program``.

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

    def replicas(self) -> list[Replica]:
        known = self._known
        there = [(name, v) for name, reference in self._candidates.items() if (v := reference()) is not None]
        numbered = [(n, v) for name, v in there if (n := known.number(v)) is not None and name not in known.own]
        found = []
        for _, variable in sorted(numbered, key=lambda pair: pair[0]):
            key = tf_variables.key(variable)
            kind = TRAINED if key in known.trained else known.of_optimizers.get(key)
            found.append(replica(variable, variable_name(variable), kind, key in self._reads))
        return [one for one in found if one is not None]

    def read(self, variables: Sequence[Any]) -> Iterator[np.ndarray]:
        return map(tf_variables.value, variables)

    def load(self, values: Iterable[tuple[Any, np.ndarray]]) -> None:
        with self._known.setting():
            for variable, value in values:
                variable.assign(value)

    def keep_own(self, variable: Any) -> None:
        self._known.own.add(tf_variables.name(variable))
