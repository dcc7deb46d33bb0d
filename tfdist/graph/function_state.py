"""Function state: what tfdist knows of a ``tf.function``, its communication, functions called inside it included.

A function is traced again for other shapes, which may happen on some ranks only; so its collectives are not numbered
as those of a session's graph are, but known by what they exchange, and one that is traced again is the same one.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import callbacks, compiled, is_of_function
from tfdist.engine.collective import Collective
from tfdist.graph.markers import Marker, handle_key

_ATTRIBUTE = "_tfdist_function"
_COMPILED = "_tfdist_compiled"


_states: weakref.WeakSet[FunctionState] = weakref.WeakSet()


class FunctionState:
    """The communication of one function's graph.

    Attributes:
      collectives: in the order of construction; and the names, in full, of what they exchange here.
      last: the operations after which the next collective may begin.
      marks: gradients with respect to variables.
      applied: the variables that gradients are applied to, by their keys (``markers.variable_key``).
      accumulated: those of them whose gradients are added up over several calls.
      alone: it was traced inside ``tfdist.alone``: its gradients are nobody's average.
      leaves: what it returns is made of averages, of which there are no derivatives.
      counts: how often each collective stands in this very graph.
      callbacks: what its operations call in Python.
      meetings: have the ranks meet before each call for what it exchanges, as XLA cannot compile that; one for each
        collective, which is told the bytes of what the function is called with.
      prepared: what its first calls have found out, until it is gone.
      handles: the keys of the variables that were used, by the names of the tensors that stand for their handles.
    """

    def __init__(self) -> None:
        self.collectives: dict[Collective, tuple[str, ...]] = {}
        self.last: list[tf.Operation] = []
        self.marks: list[Marker] = []
        self.applied: set[Hashable] = set()
        self.accumulated: set[Hashable] = set()
        self.alone = self.leaves = False
        self.counts: Counter[str] = Counter()
        self.callbacks: list[Any] = []
        self.meetings: list[Callable[[int], None]] = []
        self.prepared: Any = None
        self._used = False
        self.handles: dict[str, Hashable | None] = {}

    def used_by(self, function: Any) -> None:
        """It is called as this ``ConcreteFunction``, without which there is nothing that could.

        The graph may live longer: TensorFlow does not give back that of a tape with several sources.
        """
        if not self._used:
            self._used = True
            weakref.finalize(function, self._gone).atexit = False

    def _gone(self) -> None:
        self.collectives, self.last, self.marks, self.callbacks, self.prepared = {}, [], [], [], None
        self.meetings = []

    @property
    def trained(self) -> set[Hashable]:
        """The variables that the function is to train, by their keys."""
        return self.applied | {mark.variable for mark in self.marks}


def in_session() -> bool:
    """Whether what is built now is run by a session, and not by calling a function or at once."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def function_state(graph: Any) -> FunctionState | None:
    """Of a function's graph; None if it neither communicates nor computes gradients with respect to variables."""
    return getattr(graph, _ATTRIBUTE, None)


def around(graph: Any) -> Iterator[FunctionState]:
    """The states of a function under construction, and of those around it, made if need be."""
    while is_of_function(graph):
        state = getattr(graph, _ATTRIBUTE, None)
        if state is None:
            state = FunctionState()
            setattr(graph, _ATTRIBUTE, state)
            _states.add(state)
        yield state
        graph = graph.outer_graph


def in_use() -> set[Collective]:
    """The collectives of all functions that have not been collected."""
    return {collective for state in _states for collective in state.collectives}


def include(
    inner: FunctionState, outside: Mapping[Hashable | None, Hashable | None], except_for: Iterable[Marker] = ()
) -> None:
    """A function is called inside the one under construction.

    Args:
      inner: its state.
      outside: the keys of the variables that are its arguments, by those inside.
      except_for: gradients that are marked anew.
    """
    again = set(except_for)
    for state in around(tf.compat.v1.get_default_graph()):
        state.collectives.update(inner.collectives)
        state.callbacks += inner.callbacks
        state.marks += [m for m in inner.marks if m not in again]
        state.applied |= {key for k in inner.applied if (key := outside.get(k, k)) is not None}
        state.accumulated |= inner.accumulated


@contextlib.contextmanager
def owning_callbacks() -> Iterator[None]:
    """What ``tf.numpy_function`` is to call lives as long as the functions that it is built in.

    TensorFlow gives it to a graph that lives longer (see ``compat.graphs.callbacks``), and so would all that it knows:
    the graph, the buffers, the thread.
    """
    graph = outer = tf.compat.v1.get_default_graph()
    while is_of_function(outer):
        outer = outer.outer_graph
    known = {holder: len(callbacks(holder)) for holder in (graph, outer)}
    yield
    if outer is not graph:
        for holder, number in known.items():
            kept = callbacks(holder)
            for state in around(graph):
                state.callbacks += kept[number:]
            del kept[number:]


def apply_to(keys: Iterable[Hashable | None]) -> None:
    """Gradients are applied to these variables in the function under construction; None stands for no variable."""
    known = {key for key in keys if key is not None}
    for state in around(tf.compat.v1.get_default_graph()):
        state.applied |= known


def accumulate(keys: Iterable[Hashable | None]) -> None:
    """Gradients of these variables are added up over several calls of the function under construction."""
    known = {key for key in keys if key is not None}
    for state in around(tf.compat.v1.get_default_graph()):
        state.accumulated |= known


def made_alone() -> None:
    """Gradients are computed inside ``tfdist.alone``, in the function under construction perhaps."""
    if current() is not None:
        for state in around(tf.compat.v1.get_default_graph()):
            state.alone = True


def tracing() -> None:
    """The tracing of a function begins."""
    name = compiled()
    if name:
        setattr(tf.compat.v1.get_default_graph(), _COMPILED, name)


def compiled_as(graph: Any) -> str:
    """The name of the function with ``jit_compile=True`` that a graph, of a function, is a part of; else empty."""
    return getattr(graph, _COMPILED, "")


def traced() -> None:
    """The tracing of a function ends, after which TensorFlow forgets what handles of its arguments stood for
    (tensorflow/python/framework/func_graph.py, ``pop_capture``): those of the first call's variables.
    """
    graph = tf.compat.v1.get_default_graph()
    state = function_state(graph)
    if state is not None:
        uses = ((inside, known) for known, inside in graph.captures if inside.dtype.name == "resource")
        state.handles = {inside.name: handle_key(known) for inside, known in uses}


def current() -> tf.Graph | None:
    """The graph of the function under construction; None when executing eagerly."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
