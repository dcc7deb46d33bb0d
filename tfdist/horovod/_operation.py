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
from tfdist.graph.graph_state import make_state
from tfdist.horovod._state import ProcessSetState, state
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
      members: the process set that takes part.
      name: name by which the ranks match their operations.
      rank: index of this process in the process set.
      size: number of ranks that take part.
    """

    def __init__(
        self, kind: Kind, name: str | None, process_set: Any, tensors: Sequence[Any], ignore_name_scope: bool = False
    ) -> None:
        self._kind: Kind = kind
        self.members, self._negotiation = state.own(number_of(process_set))
        self.rank, self.size = self.members.ranks.index(state.job.world.rank), len(self.members.ranks)
        self._in_graph = any(is_symbolic(t) for t in tensors) or not tf.executing_eagerly()
        self.name = _name(kind, name, tensors, self._in_graph, self.members, ignore_name_scope)

    def run(
        self,
        tensors: Sequence[Any],
        outputs: Sequence[tf.TensorSpec],
        wrong: Callable[[Sequence[np.ndarray]], str] = lambda arrays: "",
        **said: Any,
    ) -> list[tf.Tensor]:
        """Execute or build the operation, and return its results.

        Collective: the process set's ranks.

        Args:
          tensors: the arguments.
          outputs: dtypes and static shapes of the results.
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
            return self._negotiation.begin(request, arrays, self.members.failures if self._in_graph else None)

        if self._in_graph:
            return self._built(begin, [tf.convert_to_tensor(t) for t in tensors], outputs)
        results = begin([t.numpy() for t in tensors]).result()
        return [tf.constant(array, spec.dtype) for array, spec in zip(results, outputs, strict=False)]

    def _built(
        self, begin: Callable[[Sequence[Any]], Results], tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec]
    ) -> list[tf.Tensor]:
        """Build the operation in the current graph or function, and return its results."""
        underway: dict[int, Results] = {}
        numbers = itertools.count()
        graph = tf.compat.v1.get_default_graph()
        failures = make_state(graph).failures if function_state.in_session() else state.job.functions.failures

        def start(*arrays: np.ndarray) -> np.ndarray:
            number = next(numbers)
            try:
                underway[number] = begin(arrays)
                underway[number].add_done_callback(lambda _: signal.raise_())
            except BaseException as error:
                failures.note(error)
                raise
            return np.array(number, np.int64)

        def finish(number: np.ndarray) -> list[np.ndarray]:
            try:
                return underway.pop(int(number)).result() or [np.array(True)]
            except BaseException as error:
                failures.note(error)
                raise

        known, signal = len(graph.get_operations()), Signal()
        with tf.name_scope(f"horovod/{self._kind}"), function_state.owning_callbacks():
            if not function_state.in_session():
                next(function_state.around(graph))  # so that the function raises the original exception of a failure
            with tf.control_dependencies([signal.clear()]):
                number = tf.numpy_function(start, tensors, tf.int64)
            number.set_shape([])
            with tf.control_dependencies([number]):
                ended = signal.wait()
            with tf.control_dependencies([ended]):
                results = tf.numpy_function(finish, [number], [spec.dtype for spec in outputs] or [tf.bool])
        manager = getattr(graph, "experimental_acd_manager", None)
        if manager is not None and self._kind not in ("barrier", "join"):
            for op in graph.get_operations()[known:]:  # else they would be executed in sequence, in this rank's order
                manager.run_independently(op)
        results = list(results) if isinstance(results, list | tuple) else [results]
        for result, spec in zip(results, outputs, strict=False):
            result.set_shape(spec.shape)
        return results


def _name(
    kind: str, given: str | None, tensors: Sequence[Any], in_graph: bool, members: ProcessSetState, alone: bool
) -> str:
    """Return the name by which the ranks match this operation: the same on all ranks."""
    if not in_graph:
        return given or members.next_name(kind)
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


def spec(tensor: Any, rows: bool = False) -> tf.TensorSpec:
    """Return the dtype and static shape of a result that is like its argument; with ``rows``, any number of rows."""
    shape = tensor.shape
    return tf.TensorSpec([None, *shape[1:]] if rows and shape.rank else None if rows else shape, tensor.dtype)
