"""Operations with a name, on tensors: executed eagerly, or built in a graph, where TensorFlow begins and ends them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.engine.other_exchanges import own_copy
from tfdist.graph import function_state
from tfdist.graph.op_builder import call_back, failures_of
from tfdist.horovod._state import state
from tfdist.horovod.named.negotiation import Results
from tfdist.horovod.named.requests import Kind, Request, tensors_of
from tfdist.horovod.named.signals import Signal
from tfdist.horovod.process_sets import number_of


class Operation:
    """One operation of a process set.

    Args:
      kind: the kind of operation.
      name: the script's name for the operation, or None.
      process_set: the process set that takes part.
      tensors: its arguments, as tensors.
      ignore_name_scope: do not prefix the name with the graph's name scope.

    Attributes:
      negotiation: negotiation of the process set that takes part.
      name: name by which the ranks match their operations.
      rank: index of this process in the process set.
      size: number of ranks that take part.
    """

    def __init__(
        self, kind: Kind, name: str | None, process_set: Any, tensors: Sequence[Any], ignore_name_scope: bool = False
    ) -> None:
        self._kind: Kind = kind
        self.negotiation = state.own(number_of(process_set))
        self.rank, self.size = self.negotiation.group.rank, self.negotiation.group.size
        self._in_graph = any(is_symbolic(t) for t in tensors) or not tf.executing_eagerly()
        if self._in_graph:
            self.name = _name_in_graph(kind, name, tensors, ignore_name_scope)
        else:
            self.name = name or self.negotiation.next_name(kind)

    def run(
        self,
        tensors: Sequence[Any],
        wrong: Callable[[Sequence[np.ndarray]], str] = lambda arrays: "",
        **said: Any,
    ) -> list[tf.Tensor]:
        """Execute or build the operation, and return its results, one for each argument; or a number without arguments.

        Collective: the process set's ranks.

        Args:
          tensors: the arguments.
          wrong: function that returns an error message about the arguments' values; empty if they are right.
          **said: further attributes of the ``Request``.

        Raises:
          tf.errors.FailedPreconditionError: the ranks' requests differ.
          tf.errors.InvalidArgumentError: a rank's arguments are wrong, or an operation of this name is under way.
        """

        def begin(values: Sequence[Any]) -> Results:
            arrays = [own_copy(value) for value in values]
            request = Request(
                self._kind, self.name, tensors_of(self._kind, arrays), error=wrong(arrays), in_graph=self._in_graph,
                **said,
            )  # fmt: skip
            return self.negotiation.begin(request, arrays)

        if self._in_graph:
            outputs = [self._output(t) for t in tensors] or [tf.TensorSpec([], tf.int32)]
            return self._built(begin, [tf.convert_to_tensor(t) for t in tensors], outputs)
        results = begin([t.numpy() for t in tensors]).result()
        dtypes = [t.dtype for t in tensors] or [tf.int32]
        return [tf.constant(array, dtype) for array, dtype in zip(results, dtypes, strict=True)]

    def _output(self, tensor: tf.Tensor) -> tf.TensorSpec:
        """Return the dtype and static shape of the result for an argument."""
        shape = tensor.shape
        if self._kind in ("allgather", "alltoall", "reducescatter"):
            shape = [None, *shape[1:]] if shape.rank else None
        return tf.TensorSpec(shape, tensor.dtype)

    def _built(
        self, begin: Callable[[Sequence[Any]], Results], tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Build the operation in the current graph or function, and return its results."""
        underway: dict[int, Results] = {}
        numbers = itertools.count()

        def start(*arrays: np.ndarray) -> np.ndarray:
            number = next(numbers)
            underway[number] = begin(arrays)
            underway[number].add_done_callback(lambda _: signal.raise_())
            return np.array(number, np.int64)

        def finish(number: np.ndarray) -> list[np.ndarray]:
            return underway.pop(int(number)).result()

        graph = tf.compat.v1.get_default_graph()
        known, signal, failures = len(graph.get_operations()), Signal(), failures_of(state.job)
        with tf.name_scope(f"horovod/{self._kind}"):
            next(function_state.around(graph), None)  # so that a function raises the original exception of a failure
            with tf.control_dependencies([signal.clear()]):
                number = call_back(start, tensors, [tf.TensorSpec([], tf.int64)], failures)
            with tf.control_dependencies(number):
                ended = signal.wait()
            with tf.control_dependencies([ended]):
                results = call_back(finish, number, outputs, failures)
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None and self._kind not in ("barrier", "join"):
            for op in graph.get_operations()[known:]:  # else they would be executed in sequence, in this rank's order
                manager.run_independently(op)
        return results


def _name_in_graph(kind: str, given: str | None, tensors: Sequence[Any], alone: bool) -> str:
    """Return the name by which the ranks match an operation of a graph: the same on all ranks."""
    graph = tf.compat.v1.get_default_graph()
    scope = "" if alone else graph.get_name_scope()
    if given:
        return f"{scope}/{given}" if scope else given
    of = re.sub(r"[^a-zA-Z0-9_]", "_", tensors[0].op.name) if tensors and is_symbolic(tensors[0]) else "value"
    return str(graph.unique_name(f"Horovod_{kind}_{of}", mark_as_used=True))


def derivative_name(name: str) -> str:
    """Return a name for an operation of a derivative: unique in a graph, which may have several derivatives."""
    return (
        name if tf.executing_eagerly() else str(tf.compat.v1.get_default_graph().unique_name(name, mark_as_used=True))
    )
