"""Function state: collectives and gradients of a ``tf.function``, functions called inside it included.

A function is traced again for other shapes, perhaps on some ranks only. So its collectives are not numbered like the
collectives of a session's graph. Their plans identify them, and a function that is traced again finds them again.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import tensorflow as tf

from tfdist.compat.graphs import compiled, is_of_function
from tfdist.engine.collective import Collective
from tfdist.graph.markers import Marker, handle_key

_ATTRIBUTE = "_tfdist_function"


_states: weakref.WeakSet[FunctionState] = weakref.WeakSet()


class Block(Protocol):
    """A block of local steps, around the calls of a function and the runs of a session that train in it."""

    def before(self) -> None:
        """Check the block before a call."""

    def after(self, session: Any) -> None:
        """End the block after a call, if it is due. Collective, if it is due: all ranks.

        Args:
          session: the session that has run the step; None outside sessions.
        """


def ending(call: Callable[[], Any], blocks: Iterable[Block], session: Any = None) -> Callable[[], Any]:
    """Return a function that runs ``call``, and then ends the blocks that are due."""

    def ended() -> Any:
        result = call()
        for block in blocks:
            block.after(session)
        return result

    return ended


class FunctionState:
    """Collectives and gradients of one function's graph.

    Attributes:
      collectives: collectives in the order of construction, each with the full names of the tensors exchanged here.
      last: operations after which the next collective may begin.
      marks: markers of gradients with respect to variables.
      applied: keys (``markers.variable_key``) of the variables that gradients are applied to.
      accumulated: keys of the variables whose gradients are added up over several calls.
      alone: True if it was traced inside ``tfdist.alone``: its gradients are not averaged.
      leaves: True if it returns values that are made of averages, which have no derivatives.
      counts: number of collectives in this graph, by their key.
      callbacks: Python functions that its operations call.
      meetings: functions that let the ranks meet before each call, as XLA cannot compile a meeting. There is one for
        each collective. Its argument is the number of bytes of the call's arguments.
      blocks: blocks of local steps that it trains in.
      averaged_by: the collective that averages the gradients that it returns, if it does.
      prepared: what its calls need, by the variables that are its arguments; kept until the function is gone.
      handles: keys of the variables that were used, by the name of the tensor that is the variable's handle inside.
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
        self.blocks: list[Block] = []
        self.averaged_by: list[Collective] = []
        self.prepared: dict[tuple[int, ...], Any] = {}
        self._used = False
        self.handles: dict[str, Hashable | None] = {}

    def used_by(self, function: Any) -> None:
        """Empty this state when ``function``, the ``ConcreteFunction`` that runs the graph, is gone.

        The graph may live longer: TensorFlow does not free the graph of a tape with several sources.
        """
        if not self._used:
            self._used = True
            weakref.finalize(function, self._gone).atexit = False

    def _gone(self) -> None:
        self.collectives, self.last, self.marks, self.callbacks, self.prepared = {}, [], [], [], {}
        self.meetings, self.blocks, self.averaged_by = [], [], []

    @property
    def trained(self) -> set[Hashable]:
        """Keys of the variables that the function trains."""
        return self.applied | {mark.variable for mark in self.marks}


def in_session() -> bool:
    """Return whether a session runs the operations built now, not a function and not eager execution."""
    return not tf.compat.v1.executing_eagerly_outside_functions()


def function_state(graph: Any) -> FunctionState | None:
    """Return the state of a function's graph; None if it has no collectives and no gradients of variables."""
    return getattr(graph, _ATTRIBUTE, None)


def around(graph: Any) -> Iterator[FunctionState]:
    """Yield the states of a function under construction and of the functions around it; create missing states.

    A session's graph has none, also in the bodies of its conditions and loops.
    """
    while is_of_function(graph) and not in_session():
        state = getattr(graph, _ATTRIBUTE, None)
        if state is None:
            state = FunctionState()
            setattr(graph, _ATTRIBUTE, state)
            _states.add(state)
        yield state
        graph = graph.outer_graph


def in_use() -> set[Collective]:
    """Return the collectives of all functions that are not garbage-collected yet."""
    return {collective for state in _states for collective in state.collectives}


def include(
    inner: FunctionState, outside: Mapping[Hashable | None, Hashable | None], except_for: Iterable[Marker] = ()
) -> None:
    """Add the state of a called function to the function under construction and to those around it.

    Args:
      inner: state of the called function.
      outside: keys of the variables that are its arguments, by their keys inside it.
      except_for: markers of ``inner`` that are left out, because their gradients get new markers.
    """
    again = set(except_for)
    for state in around(tf.compat.v1.get_default_graph()):
        state.collectives.update(inner.collectives)
        state.callbacks += inner.callbacks
        state.blocks += inner.blocks
        state.marks += [m for m in inner.marks if m not in again]
        state.applied |= {key for k in inner.applied if (key := outside.get(k, k)) is not None}
        state.accumulated |= inner.accumulated


def owned(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback for ``tf.numpy_function`` that lives only as long as the functions that contain it.

    TensorFlow keeps it in a graph that may live as long as the process (tensorflow/python/ops/script_ops.py). All that
    the callback refers to would live as long: the graph, the buffers, the thread.
    """
    known, states = weakref.ref(call), list(around(tf.compat.v1.get_default_graph()))
    for state in states:
        state.callbacks.append(call)

    def called(*arrays: Any) -> Any:
        found = known()
        assert found is not None  # TensorFlow does not run a function that is gone
        return found(*arrays)

    return called if states else call


def note(
    applied: Iterable[Hashable | None] = (), accumulated: Iterable[Hashable | None] = (), alone: bool = False
) -> None:
    """Add to what is known of the function under construction, if there is one, by keys; None is no variable's key.

    The arguments are described at ``FunctionState``.
    """
    applied, accumulated = set(applied) - {None}, set(accumulated) - {None}
    for state in around(tf.compat.v1.get_default_graph()):
        state.applied |= applied
        state.accumulated |= accumulated
        state.alone |= alone


def compiled_as() -> str:
    """Return the name of the function with ``jit_compile=True`` under construction; empty if there is none."""
    return (compiled() or "") if is_of_function(tf.compat.v1.get_default_graph()) else ""


def traced() -> None:
    """Keep the keys of the variables behind a function's handles, as its tracing ends.

    TensorFlow then drops this relation for arguments (tensorflow/python/framework/func_graph.py, ``pop_capture``). The
    keys are those of the first call's variables.
    """
    graph = tf.compat.v1.get_default_graph()
    state = function_state(graph)
    if state is not None:
        uses = ((inside, known) for known, inside in graph.captures if inside.dtype.name == "resource")
        state.handles = {inside.name: handle_key(known) for inside, known in uses}
