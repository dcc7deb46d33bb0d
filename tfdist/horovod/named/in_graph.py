"""In graph: named operations as TensorFlow operations, which TensorFlow's threads begin and end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.engine.other_exchanges import own_copy
from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.horovod.named.errors import raise_tensorflow_errors
from tfdist.horovod.named.pending import PendingOperation
from tfdist.horovod.named.signals import Signal

Begin = Callable[[Sequence[np.ndarray]], PendingOperation]


def build(
    begin: Begin, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.TensorSpec], name: str, job: Job, ordered: bool
) -> list[tf.Tensor]:
    """Build an operation in the current graph or function, and return its results.

    Args:
      begin: function that begins the operation with the values of its arguments.
      tensors: arguments of the operation.
      outputs: dtypes and static shapes of the results.
      name: name scope of the operation.
      job: the job of this process.
      ordered: whether a function executes it after the stateful operations before it.
    """
    underway: dict[int, PendingOperation] = {}
    numbers = itertools.count()
    graph = tf.compat.v1.get_default_graph()
    failures = make_state(graph).failures if function_state.in_session() else job.functions.failures

    def start(*arrays: np.ndarray) -> np.ndarray:
        number = next(numbers)
        try:
            with raise_tensorflow_errors():
                one = underway[number] = begin([own_copy(array) for array in arrays])
            one.then(signal.raise_)
        except BaseException as error:
            failures.note(error)
            raise
        return np.array(number, np.int64)

    def finish(number: np.ndarray) -> list[np.ndarray]:
        try:
            with raise_tensorflow_errors():
                return underway.pop(int(number)).results() or [np.array(True)]
        except BaseException as error:
            failures.note(error)
            raise

    known, signal = len(graph.get_operations()), Signal()
    with tf.name_scope(name), function_state.owning_callbacks():
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
    if manager is not None and not ordered:  # else a function executes the operations in sequence, in this rank's order
        for op in graph.get_operations()[known:]:
            manager.run_independently(op)
    results = list(results) if isinstance(results, list | tuple) else [results]
    for result, spec in zip(results, outputs, strict=False):
        result.set_shape(spec.shape)
    return results
