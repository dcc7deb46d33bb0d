"""Graph state: collectives and gradients of one TensorFlow graph, and which of them a run's fetches reach."""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import fetched_names, is_reference
from tfdist.engine.collective import Collective
from tfdist.graph.failures import Failures
from tfdist.graph.function_state import Block
from tfdist.graph.markers import Marker, handle_key
from tfdist.graph.traversal import WRITES, ancestors, arguments, bodies, called_functions, outermost

_ATTRIBUTE = "_tfdist_state"
_ASSIGNING = ("Assign", "Scatter", "ResourceScatter")
_RESTORE_OPS = {"RestoreV2", "Restore", "RestoreSlice"}


@dataclasses.dataclass(frozen=True)
class Reach:
    """Effects of a run with certain fetches.

    Attributes:
      collectives: collectives of all ranks that the run executes.
      group_collectives: collectives of some ranks that the run executes.
      unordered: names of two collectives that do not depend on each other; empty if there are none.
      initialised: names of the variables that the run gives the same values on all ranks.
      assigned: names of the variables that the run assigns to, except by such initialisers.
      overwrites: True if the run gives trainable variables values that the other ranks may not have.
      updates: True if the run writes to trained variables.
    """

    collectives: tuple[Collective, ...]
    group_collectives: tuple[Collective, ...]
    unordered: tuple[str, ...]
    initialised: frozenset[str]
    assigned: frozenset[str]
    overwrites: bool
    updates: bool

    @property
    def sets(self) -> bool:
        """Whether the run writes to trained variables without an average, perhaps values that only this rank has."""
        return self.updates and not any(c.averages for c in self.collectives)


@dataclasses.dataclass
class SessionNotes:
    """What the runs of a session have done on this rank.

    Attributes:
      synchronised: True if all ranks have rank 0's values.
      overwritten: True if, since then, this rank may have got other values.
      own: names of the variables that this rank has assigned to since an initialiser of all variables, which gave all
        ranks the same values. None: there was none.
      set_since: number of times this rank has set trained variables since the last step.
    """

    synchronised: bool = False
    overwritten: bool = False
    own: set[str] | None = None
    set_since: int = 0


class GraphState:
    """State of one graph, functions inside it included.

    Attributes:
      collectives: collectives in the order of construction, the same on all ranks.
      blocks: by a collective of local steps, their block.
      broadcasts: True if rank 0's values are to be sent before the first step, because an average needs it.
      markers: markers of gradients with respect to variables, by the marking operation.
      of_tensors: differentiated tensors that are no variables, by the operation that has computed the gradient.
      exchanged: operations that execute collectives, in functions too. Their results come from all ranks.
      late: gradients made in another way, which are averaged when they are applied.
      examined: number of the graph's operations that were searched for writes of gradients to variables.
      examined_version: ``graph.version`` at that search.
      ran_version: ``graph.version`` when a session last ran the graph; older operations cannot be rewired any more.
      notes: notes of each session that has run the graph.
      failures: exceptions inside collectives.
      moved: variables whose moving averages move in each step, as they were not known to be updated in some steps only.
      due: by variables that are not updated in each step, a bool tensor: True if they are updated in this step.
      warned_of_own: True if the script was warned that it gets this rank's own gradients.
      trained: keys of the variables that gradients are applied to.
      optimizers: optimizers that apply gradients. They are kept as long as the graph: the ranks collect garbage at
        different times, and must have the same optimizers.
      kept_own: names of variables that may differ between ranks, as the script has declared.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = weakref.ref(graph)
        self.collectives: list[Collective] = []
        self.blocks: dict[Collective, Block] = {}
        self.broadcasts = False
        self.markers: dict[tf.Operation, Marker] = {}
        self._averaged = 0
        self.of_tensors: dict[tf.Operation, tf.Tensor] = {}
        self.exchanged: set[tf.Operation] = set()
        self.late: list[Any] = []
        self.examined = 0
        self.examined_version = -1
        self.ran_version = -1
        self.notes: weakref.WeakKeyDictionary[Any, SessionNotes] = weakref.WeakKeyDictionary()
        self.failures = Failures()
        self.moved: set[Any] = set()
        self.due: dict[Any, Any] = {}
        self.warned_of_own = False
        self.trained: dict[Hashable, None] = {}
        self.optimizers: list[Any] = []
        self.kept_own: set[str] = set()
        self._executes: dict[tf.Operation | str, list[Collective]] = {}  # by operation, or name of a body
        self._in_bodies = False
        self._init_ops: dict[tf.Operation, frozenset[str]] = {}
        self._reaches: dict[tuple[str, ...], Reach] = {}

    def add_collective(self, collective: Collective, broadcasts: bool) -> None:
        """Register a collective under construction in the current default graph."""
        self.broadcasts |= broadcasts
        self.collectives.append(collective)
        graph = tf.compat.v1.get_default_graph()
        while getattr(graph, "outer_graph", None) is not None:  # fetches reach a function body through its callers
            self._executes.setdefault(graph.name, []).append(collective)
            self._in_bodies = True
            graph = graph.outer_graph

    def of_session(self, session: Any) -> SessionNotes:
        """Return the notes of a session."""
        return self.notes.setdefault(session, SessionNotes())

    @property
    def pending(self) -> bool:
        """Whether some gradient has not been averaged yet."""
        if self._averaged < len(self.markers):  # each run and each write asks
            self._averaged = sum(m.averaged for m in self.markers.values())
        return self._averaged < len(self.markers)

    @property
    def world_collectives(self) -> list[Collective]:
        """Collectives of all ranks, in the order of construction."""
        return [c for c in self.collectives if c.everyone]

    def add_op(self, op: tf.Operation, collective: Collective) -> None:
        """Register one graph operation that executes a collective."""
        self._executes[op] = [collective]
        self._reaches.clear()

    def add_init_op(self, op: tf.Operation, names: Iterable[str]) -> None:
        """Register an initialiser that already gives all ranks the same values of the variables with these names."""
        self._init_ops[op] = frozenset(names)
        self._reaches.clear()

    def reach(self, fetches: Any) -> Reach:
        """Return the effects of a run with these fetches (any structure that ``Session.run`` takes); cached."""
        graph = self._graph()
        assert graph is not None
        key = fetched_names(graph, fetches)
        if key not in self._reaches:
            self._reaches[key] = self._walk(_operations(graph, key))
        return self._reaches[key]

    def _walk(self, fetched: list[tf.Operation]) -> Reach:
        graph = self._graph()
        assert graph is not None
        initializers = {
            v.initializer
            for v in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
            if hasattr(v, "initializer")
        }
        places: dict[Collective, set[tf.Operation]] = {}  # in this graph, also of a body's collectives
        overwrites = False
        initialised: frozenset[str] = frozenset()
        assigned, updates = set(), False
        for op in ancestors(fetched):  # an initial value may be a collective's result
            updates |= self._updates(op)
            for one in (op, *(called_functions(op) if self._in_bodies else ())):
                for collective in self._executes.get(one, ()):
                    places.setdefault(collective, set()).add(op)
        for op in ancestors(fetched, stop=self._init_ops.__contains__):
            overwrites |= op in initializers or op.type in _RESTORE_OPS
            initialised |= self._init_ops.get(op, frozenset())
            if op.type.startswith(_ASSIGNING) and op.inputs:
                assigned.add(op.inputs[0].op.name)
        unordered = _unordered({c: ops for c, ops in places.items() if c not in self.blocks})
        return Reach(
            tuple(c for c in places if c.everyone),
            tuple(c for c in places if not c.everyone),
            unordered,
            initialised,
            frozenset(assigned),
            overwrites,
            updates,
        )

    def _updates(self, op: tf.Operation) -> bool:
        """Return whether an operation, or a function that it calls, writes to a trained variable."""
        trained = {number for number, tensor in enumerate(op.inputs) if self._is_trained(tensor)}
        return bool(trained and trained & _written(op))

    def _is_trained(self, tensor: Any) -> bool:
        return handle_key(tensor) in self.trained and (tensor.dtype == tf.resource or is_reference(tensor.dtype))


def _unordered(places: Mapping[Collective, set[tf.Operation]]) -> tuple[str, ...]:
    """Return names of two collectives that may begin in any order: neither depends on an operation of the other."""
    behind = {collective: set(ancestors(ops)) for collective, ops in places.items()} if len(places) > 1 else {}
    for first, second in itertools.combinations(behind, 2):
        if behind[second].isdisjoint(places[first]) and behind[first].isdisjoint(places[second]):
            return first.name, second.name
    return ()


def _operations(graph: Any, names: tuple[str, ...]) -> list[tf.Operation]:
    elements = [graph.as_graph_element(name, allow_tensor=True, allow_operation=True) for name in names]
    return [getattr(element, "op", element) for element in elements]


def fetched_operations(graph: Any, fetches: Any) -> list[tf.Operation]:
    """Return the operations that these fetches (any structure that ``Session.run`` takes) name."""
    return _operations(graph, fetched_names(graph, fetches))


def state_of(graph: tf.Graph) -> GraphState | None:
    """Return the state of a graph, or of the graph around a function body; None if tfdist has done nothing in it."""
    return getattr(outermost(graph), _ATTRIBUTE, None)


def make_state(graph: tf.Graph) -> GraphState:
    """Return the state of a graph; create it if there is none."""
    graph = outermost(graph)
    state = getattr(graph, _ATTRIBUTE, None)
    if state is None:
        state = GraphState(graph)
        setattr(graph, _ATTRIBUTE, state)
    return state


def _written(op: tf.Operation) -> set[int]:
    """Return positions of the inputs that are variables to which an operation, or a function it calls, writes."""
    if WRITES.search(op.type):
        return {
            number
            for number, tensor in enumerate(op.inputs)
            if tensor.dtype == tf.resource or is_reference(tensor.dtype)
        }
    found = set()
    for body in bodies(op):
        places = {id(tensor): number for number, tensor in enumerate(body.inputs, arguments(op))}
        for inner in body.get_operations():
            found |= {places.get(id(inner.inputs[number]), -1) for number in _written(inner)}
    return found
