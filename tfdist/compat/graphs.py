"""Graphs, functions and sessions: what stands in a graph, is traced, or is fetched; changes of what is built."""

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
    """Whether a tensor stands in a graph, and is not one that has a value (tensorflow/python/types/core.py)."""
    return not isinstance(tensor, core.Value)


def is_of_function(graph: Any) -> bool:
    """Whether a graph is a function's, or a part of one (tensorflow/python/framework/func_graph.py)."""
    return isinstance(graph, func_graph.FuncGraph)


def is_plain_function(graph: Any) -> bool:
    """Whether it is a function's own graph, and not that of a condition's branch or of a loop's body."""
    return type(graph) is func_graph.FuncGraph


# The kinds of all graphs.
GRAPHS: tuple[type, ...] = (tf.Graph, func_graph.FuncGraph)


def is_reference(dtype: tf.DType) -> bool:
    """Whether it is of a tensor that is a variable of TensorFlow 1 itself (tensorflow/python/framework/dtypes.py)."""
    return bool(dtype._is_ref_dtype)


def order(op: tf.Operation) -> int:
    """Operations of one graph have these numbers in the order in which they were built
    (tensorflow/python/framework/ops.py)."""
    return int(op._id)


def replace_input(op: tf.Operation, number: int, tensor: tf.Tensor) -> None:
    """Let an operation that has been built read another tensor (tensorflow/python/framework/ops.py)."""
    op._update_input(number, tensor)


def control_flow(of: tf.Graph | tf.Operation) -> Any:
    """The innermost v1 ``cond`` or ``while_loop`` that an operation stands in, or in which a graph is being built; None
    outside of all (tensorflow/python/ops/control_flow_ops.py)."""
    return of._get_control_flow_context()


def control_flow_around(graph: tf.Graph) -> list[Any]:
    """Those around what is under construction, from the innermost on, and None for outside of all.

    What was built in one of these may be used here.
    """
    here, found = control_flow(graph), []
    while here is not None:
        found.append(here)
        here = here.outer_context
    return [*found, None]


@contextlib.contextmanager
def unconstrained(graph: tf.Graph, beside: tf.Operation | None = None) -> Iterator[None]:
    """Build without the caller's control dependencies and colocation, which could close a cycle.

    Args:
      graph: where.
      beside: the operation in whose v1 ``cond`` or ``while_loop`` to build; None: in the present one.
    """
    context = control_flow(graph if beside is None else beside)
    # (The public one of this name logs that it is deprecated.)
    with graph.control_dependencies(None), ops.colocate_with(None, ignore_existing=True):
        graph._set_control_flow_context(context)
        yield


def callbacks(graph: Any) -> list[Any]:
    """What ``tf.numpy_function`` calls, as a graph keeps it: the one around all functions, which lives as long as the
    process; from 2.22 on the function's own (tensorflow/python/ops/script_ops.py, ``_internal_py_func``)."""
    kept: list[Any] = getattr(graph, "_py_funcs_used_in_graph", [])
    return kept


def compiled() -> str | None:
    """The name of the function that is being traced with ``jit_compile=True``, if one is.

    A traced function does not know its own flag: its owner, whose method calls it, does
    (tensorflow/python/eager/polymorphic_function/polymorphic_function.py).
    """
    frame = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, polymorphic_function.Function) and owner._jit_compile:
            return str(owner.python_function.__name__)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def is_open(session: Any) -> bool:
    """Whether a session of TensorFlow 1 has not been closed (tensorflow/python/client/session.py)."""
    return not session._closed


def fetched_names(graph: tf.Graph, fetches: Any) -> tuple[str, ...]:
    """The names of the tensors and operations in any structure that ``Session.run`` takes (see ``is_open``)."""
    with graph.as_default():  # strings and variables are looked up there
        mapper = tf_session._FetchMapper.for_fetch(fetches)
    return tuple(f if isinstance(f, str) else f.name for f in mapper.unique_fetches())
