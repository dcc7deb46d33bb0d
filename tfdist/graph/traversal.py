"""Graph traversal: finds the operations that an operation depends on, into and out of functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic


def outermost(graph: tf.Graph) -> tf.Graph:
    """Return the outermost graph around a function body: the graph that a session runs, or that is called."""
    while (outer := getattr(graph, "outer_graph", None)) is not None:
        if not hasattr(outer, "outer_graph") and tf.compat.v1.executing_eagerly_outside_functions():
            break  # TensorFlow's global default graph, which exists in eager execution too, but is not run
        graph = outer
    return graph


def ancestors(
    start: Iterable[tf.Operation],
    stop: Callable[[tf.Operation], bool] = lambda op: False,
    control: bool = True,
) -> Iterator[tf.Operation]:
    """Yield the operations that ``start`` depends on, ``start`` included, nearest first.

    Args:
      start: operations to begin with.
      stop: function that returns True for an operation that is yielded, but whose inputs are not followed.
      control: True: follow control dependencies too.
    """
    queue = list(dict.fromkeys(start))
    seen = set(queue)
    for op in queue:  # grows while it is walked
        yield op
        if stop(op):
            continue
        behind = [tensor.op for tensor in map(outside, op.inputs) if is_symbolic(tensor)]
        for other in behind + list(op.control_inputs) if control else behind:
            if other not in seen:
                seen.add(other)
                queue.append(other)


def outside(tensor: Any) -> Any:
    """Return the tensor that a function body has captured from the graph around it, or the tensor itself."""
    while is_symbolic(tensor) and tensor.op.type == "Placeholder" and hasattr(tensor.graph, "captures"):
        external = next((external for external, internal in tensor.graph.captures if internal is tensor), None)
        if external is None:
            break
        tensor = external
    return tensor


def stored_behind(op: tf.Operation) -> list[tf.Tensor]:
    """Return what a graph puts into the queue, table or accumulator that an operation takes its results from."""
    uses = op.inputs[0].consumers() if _TAKES.search(op.type) else ()
    return [tensor for use in uses if STORES.search(use.type) for tensor in use.inputs[1:]]


def called_functions(op: tf.Operation) -> Iterator[str]:
    """Yield the names of the functions that an operation calls, for example of a loop's body."""
    for value in op.node_def.attr.values():
        if value.HasField("func"):
            yield value.func.name
        for func in value.list.func:
            yield func.name


def bodies(op: tf.Operation) -> Iterator[Any]:
    """Yield the graphs of the functions that an operation calls, if they were made in this process."""
    for name in called_functions(op):
        graph: Any = op.graph
        while graph is not None:
            found = getattr(graph, "_functions", {}).get(name)
            if found is not None:
                if (body := getattr(found, "graph", None)) is not None:
                    yield body
                break
            graph = getattr(graph, "outer_graph", None)


WRITES = re.compile("Assign|Apply|Scatter")  # the types of operations that write to variables
STORES = re.compile(f"{WRITES.pattern}|Enqueue|Insert|Stage$")  # or to queues, tables and staging areas
_TAKES = re.compile("Dequeue|TakeGradient|LookupTableFind")  # out of these, by a handle that is the first input


def arguments(op: tf.Operation) -> int:
    """Return the position of the first input that an operation passes to the functions that it calls."""
    return int(op.type.removeprefix("Stateless") in ("If", "Case"))  # the first input is the condition
