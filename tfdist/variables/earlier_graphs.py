"""Earlier graphs: what was built before the import, and trains without the other ranks: nothing of it is averaged.

Gradients are marked when they are made. A training step that was built, or a function that was traced, before the hooks
were there would train each rank alone, in silence: running it is refused.
"""

from __future__ import annotations

import functools
import gc
import re
import weakref
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import GRAPHS
from tfdist.graph.traversal import WRITES, ancestors, bodies

_GRADIENTS = re.compile(r"(^|/)gradients?(_tape|_\d+)?/")  # the scopes of tf.gradients, and of tapes in functions
_REFUSED = (
    "{} was {} before tfdist was imported, and trains: its gradients would not be averaged over the ranks. Import "
    "tfdist first, or build the training step after the import (in Keras: model.compile)"
)


class EarlierGraphs:
    """The graphs that were there when this was made, and train."""

    def __init__(self) -> None:
        # (Not isinstance: some lazy modules are imported when asked for their class, and dead proxies have none.)
        graphs = [o for o in gc.get_objects() if issubclass(type(o), GRAPHS)]
        self._updates: weakref.WeakKeyDictionary[Any, frozenset[tf.Operation]] = weakref.WeakKeyDictionary()
        for graph in graphs:
            if updates := _updates(graph):
                self._updates[graph] = updates
        known = 0
        while len(self._updates) > known:  # what calls such a function trains, too
            known = len(self._updates)
            for graph in graphs:
                if graph not in self._updates and (callers := self._callers(graph)):
                    self._updates[graph] = callers

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._updates)

    def _callers(self, graph: Any) -> frozenset[tf.Operation]:
        return frozenset(op for op in graph.get_operations() if any(body in self._updates for body in bodies(op)))

    def check_function(self, graph: Any) -> None:
        """A function is about to be called.

        Raises:
          RuntimeError: it trains, and was traced before.
        """
        if graph in self._updates:
            raise RuntimeError(_REFUSED.format(f"the function {graph.name}", "traced"))

    def check_run(self, graph: Any, fetched: list[Any]) -> None:
        """A session is about to run operations of a graph.

        Raises:
          RuntimeError: they train, and were built before.
        """
        updates = self._updates.get(graph)
        found = next((op for op in ancestors(fetched) if op in updates), None) if updates else None
        if found is not None:
            raise RuntimeError(_REFUSED.format(f"the operation {found.name}", "built"))


def _updates(graph: Any) -> frozenset[tf.Operation]:
    """The operations by which a graph writes what is made of gradients."""
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
    """Those of this process, as of the first call."""
    return EarlierGraphs()
