"""Functions: broadcast_variables, BroadcastGlobalVariablesHook, broadcast_object, allgather_object and others."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from tfdist.compat import eager
from tfdist.compat.variables import native
from tfdist.graph import function_state
from tfdist.horovod import basics, collectives
from tfdist.horovod._operation import Operation
from tfdist.horovod.process_sets import global_process_set

v1 = tf.compat.v1


def broadcast_variables(
    variables: Iterable[Any], root_rank: int = 0, process_set: Any = global_process_set, inplace: bool = False
) -> Any:
    """Assign one rank's values to variables, in one exchange.

    Collective: the process set's ranks, with variables of the same dtypes and shapes in the same order.

    Args:
      variables: variables of TensorFlow or Keras, or a function that returns them, such as an optimizer's method.
      root_rank: rank in the job that has the values.
      process_set: the process set that takes part.
      inplace: has no meaning here.

    Returns:
      In a session's graph, an operation; else None.

    Raises:
      tf.errors.FailedPreconditionError: on all ranks: the ranks' variables differ.
    """
    assigned = broadcast_(variables() if callable(variables) else variables, root_rank, None, process_set)
    return tf.group(*assigned) if function_state.in_session() else None


def broadcast_(
    variables: Iterable[Any], root_rank: int, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """Assign one rank's values to variables, and return what the assignments return: see ``broadcast_variables``."""
    known = [native(variable) for variable in variables]
    if not known:
        return []
    values = [variable.read_value() if hasattr(variable, "read_value") else variable for variable in known]
    operation = Operation("broadcast", name, process_set, values)
    found = operation.run(values, root=root_rank)
    return [variable.assign(value) for variable, value in zip(known, found, strict=True)]


def broadcast_global_variables(root_rank: int) -> Any:
    """Return an operation that assigns one rank's values to all global variables of a graph.

    Raises:
      RuntimeError: TensorFlow executes eagerly; use ``broadcast_variables``.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "hvd.broadcast_global_variables is for graphs, and this executes eagerly: use "
            "hvd.broadcast_variables(model.variables, root_rank) instead"
        )
    return broadcast_variables(v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(v1.train.SessionRunHook):  # type: ignore[misc,name-defined]
    """Session hook that assigns one rank's values to all global variables when a session begins.

    Args:
      root_rank: rank in the job that has the values.
      device: has no meaning here.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        """Build the broadcast operation."""
        if self.bcast_op is None or self.bcast_op.graph is not v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Broadcast. Collective: all ranks."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> Any:
    """Return one rank's object on all ranks, without a session.

    Collective: the process set's ranks.

    Args:
      obj: object that can be pickled; only the root's is used.
      root_rank: rank in the job that has the object.
      session: has no meaning here.
      name: name by which the ranks match their calls.
      process_set: the process set that takes part.
    """
    own = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL) if basics.rank() == root_rank else b""
    with eager.mode():
        found = collectives.broadcast(tf.constant(own), root_rank, name, process_set=process_set)
    return pickle.loads(found.numpy())


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> Callable[[Any], Any]:
    """Return ``broadcast_object`` as a function of the object."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(
    obj: Any, session: Any = None, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    """Return the objects of all ranks, in the order of the ranks, without a session.

    Collective: the process set's ranks. Arguments: see ``broadcast_object``.
    """
    own = pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    with eager.mode():
        found = collectives.allgather(tf.constant([own]), name, process_set=process_set)
    return [pickle.loads(one) for one in found.numpy()]


__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
]
