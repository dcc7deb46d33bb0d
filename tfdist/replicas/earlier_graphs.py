"""Earlier graphs: refuses to run training steps that were built before the import of tfdist.

Gradients are marked when they are made. A training step that was built, or a function that was traced, before the hooks
existed would silently train each rank alone. Running it raises an error.
"""

from __future__ import annotations

import functools
import re
import weakref
from typing import Any

import tensorflow as tf

from tfdist.compat.objects import existing
from tfdist.graph.traversal import WRITES, ancestors, bodies

_GRADIENTS = re.compile(r"(^|/)gradients?(_tape|_\d+)?/")  # the scopes of tf.gradients, and of tapes in functions
_REFUSED = (
    "{} was {} before tfdist was imported, and trains: its gradients would not be averaged over the ranks. Import "
    "tfdist first, or build the training step after the import (in Keras: model.compile)"
)


class EarlierGraphs:
    """The graphs that train and that existed when this object was made."""

    def __init__(self) -> None:
        graphs = existing(tf.Graph)
        self._updates: weakref.WeakKeyDictionary[Any, frozenset[tf.Operation]] = weakref.WeakKeyDictionary()
        for graph in graphs:
            if updates := _updates(graph):
                self._updates[graph] = updates
        known = 0
        while len(self._updates) > known:  # a graph that calls such a function trains, too
            known = len(self._updates)
            for graph in graphs:
                if graph not in self._updates and (callers := self._callers(graph)):
                    self._updates[graph] = callers

    def __bool__(self) -> bool:
        """Return whether there are such graphs."""
        return bool(self._updates)

    def _callers(self, graph: Any) -> frozenset[tf.Operation]:
        return frozenset(op for op in graph.get_operations() if any(body in self._updates for body in bodies(op)))

    def check_function(self, graph: Any) -> None:
        """Check a function that is about to be called.

        Raises:
          RuntimeError: the function trains, and was traced before the import.
        """
        if graph in self._updates:
            raise RuntimeError(_REFUSED.format(f"the function {graph.name}", "traced"))

    def check_run(self, graph: Any, fetched: list[Any]) -> None:
        """Check operations of a graph that a session is about to run.

        Raises:
          RuntimeError: the operations train, and were built before the import.
        """
        updates = self._updates.get(graph)
        found = next((op for op in ancestors(fetched) if op in updates), None) if updates else None
        if found is not None:
            raise RuntimeError(_REFUSED.format(f"the operation {found.name}", "built"))


def _updates(graph: Any) -> frozenset[tf.Operation]:
    """Return the operations by which a graph writes values computed from gradients to variables."""
    operations = graph.get_operations()
    if not any(_GRADIENTS.search(op.name) for op in operations):
        return frozenset()
    return frozenset(
        op
        for op in operations
        if WRITES.search(op.type) and any(_GRADIENTS.search(o.name) for o in ancestors([op], control=False))
    )


@functools.cache
def earlier_graphs() -> EarlierGraphs:
    """Return the earlier graphs of this process, as found at the first call."""
    return EarlierGraphs()
