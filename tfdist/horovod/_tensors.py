"""Tensors: operations with a name, on tensors; executed eagerly, or built in a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import is_symbolic
from tfdist.engine.other_exchanges import own_copy
from tfdist.horovod._state import ProcessSetState, state
from tfdist.horovod.named.errors import raise_tensorflow_errors
from tfdist.horovod.named.in_graph import build
from tfdist.horovod.named.pending import PendingOperation
from tfdist.horovod.named.requests import Kind, Request, request
from tfdist.horovod.process_sets import number_of

Make = Callable[[Sequence[np.ndarray]], Request]


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
      in_graph: whether it is built in a graph instead of executed eagerly.
    """

    def __init__(
        self, kind: Kind, name: str | None, process_set: Any, tensors: Sequence[Any], ignore_name_scope: bool = False
    ) -> None:
        self.kind: Kind = kind
        self.members, self._negotiation = state.own(number_of(process_set))
        self.rank = self.members.ranks.index(state.job.world.rank)
        self.in_graph = any(is_symbolic(t) for t in tensors) or not tf.executing_eagerly()
        self.name = _name(kind, name, tensors, self.in_graph, self.members, ignore_name_scope)

    @property
    def size(self) -> int:
        """Number of ranks that take part."""
        return len(self.members.ranks)

    def run(
        self, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec], make: Make | None = None, **said: Any
    ) -> list[tf.Tensor]:
        """Execute or build the operation, and return its results.

        Collective: the process set's ranks.

        Args:
          tensors: the arguments.
          outputs: dtypes and static shapes of the results.
          make: function that makes the request from the arguments' values; None for a request with ``said``.
          **said: further arguments of ``requests.request``.

        Raises:
          tf.errors.FailedPreconditionError: the ranks' requests differ.
          tf.errors.InvalidArgumentError: a rank's arguments are wrong, or an operation of this name is under way.
        """

        def begin(arrays: Sequence[np.ndarray]) -> PendingOperation:
            made = make(arrays) if make else request(self.kind, self.name, arrays, in_graph=self.in_graph, **said)
            return self._negotiation.begin(made, arrays, self.members.failures if self.in_graph else None)

        if self.in_graph:
            tensors = [tf.convert_to_tensor(t) for t in tensors]
            return build(begin, tensors, outputs, f"horovod/{self.kind}", state.job, self.kind in ("barrier", "join"))
        with raise_tensorflow_errors():
            results = begin([own_copy(t.numpy()) for t in tensors]).results()
        return [tf.constant(array, spec.dtype) for array, spec in zip(results, outputs, strict=False)]


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
