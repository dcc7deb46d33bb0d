"""Graphs, functions and sessions: whether a tensor is symbolic, what is traced or fetched, and changes of a graph."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.types import core


def is_symbolic(tensor: Any) -> bool:
    """Return whether a tensor belongs to a graph and has no value (tensorflow/python/types/core.py)."""
    return not isinstance(tensor, core.Value)


def is_of_function(graph: Any) -> bool:
    """Return whether a graph belongs to a function or to a part of one (tensorflow/python/framework/func_graph.py)."""
    return isinstance(graph, func_graph.FuncGraph)


def is_plain_function(graph: Any) -> bool:
    """Return whether a graph is a function's whole graph, not the graph of a condition's branch or a loop's body."""
    return type(graph) is func_graph.FuncGraph


def is_reference(dtype: tf.DType) -> bool:
    """Return whether a dtype is of a reference variable of TensorFlow 1 (tensorflow/python/framework/dtypes.py)."""
    return bool(dtype._is_ref_dtype)


def order(op: tf.Operation) -> int:
    """Return the number of an operation. A graph numbers its operations in the order of their construction
    (tensorflow/python/framework/ops.py)."""
    return int(op._id)


def replace_input(op: tf.Operation, number: int, tensor: tf.Tensor) -> None:
    """Replace an input of an existing operation (tensorflow/python/framework/ops.py)."""
    op._update_input(number, tensor)


def control_flow(of: tf.Graph | tf.Operation) -> Any:
    """Return the innermost v1 ``cond`` or ``while_loop`` around an operation, or around the present point of building a
    graph; None if there is none (tensorflow/python/ops/control_flow_ops.py)."""
    return of._get_control_flow_context()


def control_flow_around(graph: tf.Graph) -> list[Any]:
    """Return all v1 control flow around the present point of building a graph, innermost first, and then None.

    Tensors that were built in one of these, or outside of all (None), may be used here.
    """
    here, found = control_flow(graph), []
    while here is not None:
        found.append(here)
        here = here.outer_context
    return [*found, None]


@contextlib.contextmanager
def without_control_dependencies(graph: tf.Graph, beside: tf.Operation | None = None) -> Iterator[None]:
    """Build in a graph without the caller's control dependencies and colocation, which could close a cycle.

    If ``beside`` is an operation, build in its v1 ``cond`` or ``while_loop``; if it is None, in the present one.
    """
    context = control_flow(graph if beside is None else beside)
    # (The public ``colocate_with`` logs that it is deprecated.)
    with graph.control_dependencies(None), ops.colocate_with(None, ignore_existing=True):
        graph._set_control_flow_context(context)
        yield


def compiled() -> str | None:
    """Return the name of the function that is being traced with ``jit_compile=True``; None if there is none.

    The flag is an attribute of the ``tf.function`` object, whose method is on the call stack
    (tensorflow/python/eager/polymorphic_function/polymorphic_function.py). Only there are local variables read: a
    frame whose ``f_locals`` was read keeps what it has deleted since.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == polymorphic_function.__name__:
            owner = frame.f_locals.get("self")
            if isinstance(owner, polymorphic_function.Function) and owner._jit_compile:
                return str(owner.python_function.__name__)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def is_open(session: Any) -> bool:
    """Return whether a session of TensorFlow 1 is still open (tensorflow/python/client/session.py)."""
    return not session._closed


def fetched_names(graph: tf.Graph, fetches: Any) -> tuple[str, ...]:
    """Return the names of the tensors and operations in the fetches of ``Session.run`` (file: see ``is_open``)."""
    with graph.as_default():  # strings and variables are looked up there
        mapper = tf_session._FetchMapper.for_fetch(fetches)
    return tuple(f if isinstance(f, str) else f.name for f in mapper.unique_fetches())
