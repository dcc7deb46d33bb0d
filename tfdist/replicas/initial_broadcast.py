"""Initial broadcast: rank 0's values after an initialiser, in its graph. Values set otherwise: see ``session_step``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import without_control_dependencies
from tfdist.graph.graph_state import state_of
from tfdist.graph.job import Job
from tfdist.replicas.initial_sync import INITIALISER, Participant, Values, meet
from tfdist.replicas.session_program import array
from tfdist.transport.errors import DisagreementError

_one_at_a_time = threading.Lock()


def broadcast_behind(initializer: tf.Operation, variables: Sequence[Any], job: Job) -> tf.Operation:
    """Put one fused broadcast after an initialiser, if it belongs to a training graph.

    Args:
      initializer: operation that runs the variables' own initialisers.
      variables: variables of the initialiser. Global variables are broadcast; local variables stay each rank's own.
      job: the ranks.

    Returns:
      The operation to run instead: after it all ranks have rank 0's values.
    """
    graph = tf.compat.v1.get_default_graph()
    state = state_of(graph)
    shared = {id(v) for v in graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)}
    chosen = [v for v in variables if id(v) in shared and hasattr(v, "read_value")]
    chosen.sort(key=lambda v: v.name)  # scripts may pass a Python set, which has another order on each rank
    in_function = getattr(graph, "outer_graph", None) is not None
    if not (job.switches.shares and chosen and state and state.broadcasts) or in_function:
        return initializer
    names = [v.name for v in chosen]
    plan = [f"variable {v.name} {v.dtype.base_dtype.name} {v.shape}" for v in chosen]
    visitor = Participant(INITIALISER, plan)

    def call(*values: np.ndarray) -> list[np.ndarray]:
        own = {name: array(value) for name, value in zip(names, values, strict=True)}
        # TensorFlow runs several initialisers in parallel threads.
        with job.world.waits.callers.acting(), _one_at_a_time:
            _, received = meet(job.world.control, visitor, lambda: own)
        return [_fitting(name, own[name], received) for name in names]

    with without_control_dependencies(graph), tf.name_scope("tfdist/broadcast"):
        with tf.control_dependencies([initializer]):
            values = [_read(v) for v in chosen]
        with tf.device("/device:CPU:0"):
            noted = state.failures.noting(call)
            received = tf.numpy_function(noted, values, [v.dtype for v in values], stateful=True)
        assignments = [_assign(v, value) for v, value in zip(chosen, received, strict=True)]
        result = tf.group(initializer, *assignments, name="init")
    state.add_init_op(result, names)
    return result


# The variables' own methods add twice as many operations, which costs time in large graphs.
def _read(variable: Any) -> tf.Tensor:
    if not hasattr(variable, "handle"):
        return variable.read_value()
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def _assign(variable: Any, value: tf.Tensor) -> tf.Operation:
    if not hasattr(variable, "handle"):
        value.set_shape(variable.shape)
        return tf.compat.v1.assign(variable, value).op
    return tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def _fitting(name: str, own: np.ndarray, received: Values) -> np.ndarray:
    value = received.get(name, own)  # if rank 0 has not initialised the variable, the first step shares it
    if value.shape != own.shape or value.dtype != own.dtype:
        raise DisagreementError(
            f"variable {name} is {value.dtype} {value.shape} on rank 0 and {own.dtype} {own.shape} here. "
            "Every rank must build the same graph."
        )
    return value
