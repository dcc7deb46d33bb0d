"""Variables outside sessions: their identity, TensorFlow's variable of a Keras variable, and all that exist."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from tfdist.compat import eager, objects
from tfdist.compat.graphs import is_symbolic


def handle_number(handle: Any) -> int:
    """Return the number of an eager handle. No other tensor of this process has the same number."""
    return int(handle._id)


def key(variable: Any) -> Hashable:
    """Return a key that identifies an eager variable: the number of its handle."""
    return handle_number(variable.handle)


def name(variable: Any) -> str:
    """Return a name that no other variable of this process has, unlike ``variable.name``
    (tensorflow/python/ops/resource_variable_ops.py)."""
    return str(variable._unique_id)


def has_name(variable: Any) -> bool:
    """Return whether ``name`` can name a variable. Reference variables of TensorFlow 1 have no such name."""
    return hasattr(variable, "_unique_id")


def native(variable: Any) -> Any:
    """Return TensorFlow's variable of a Keras 3 variable, which has a path (keras/src/backend/common/variables.py)."""
    return variable.value if hasattr(variable, "path") else variable


def is_overwritten(variable: Any) -> bool:
    """Return whether a Keras 3 variable gets its gradient as its new value, such as the largest values that float8
    is scaled by (keras/src/layers/core/dense.py; keras/src/optimizers/base_optimizer.py)."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


EACH_RANK = "_tfdist_of_each_rank"  # the framework keeps a variable for each rank
STATISTIC = "_tfdist_statistic"  # of batches in Keras 3, which a training step reads only if its layer is frozen
RANDOM = "_tfdist_random"  # state of a random generator: the ranks draw different numbers, as parts of a batch do
MOVED = "_tfdist_moved"  # TensorFlow's ``assign_moving_average`` moves it


def note(variables: Iterable[Any], what: str) -> None:
    """Note ``EACH_RANK``, ``STATISTIC``, ``RANDOM`` or ``MOVED`` of variables."""
    for variable in variables:
        setattr(variable, what, True)
        hand_on_notes(variable)


def hand_on_notes(variable: Any) -> None:
    """Note of a Keras 3 variable's TensorFlow variable what is noted of the variable.

    While Keras only infers shapes, it makes no TensorFlow variable yet (``Variable`` of keras/src/backend/tensorflow).
    """
    made = getattr(variable, "_value", None) if hasattr(variable, "path") else None
    for what in (EACH_RANK, STATISTIC, RANDOM) if made is not None else ():
        if hasattr(variable, what):
            setattr(made, what, True)


def of_each_rank(variable: Any) -> bool:
    """Return whether the framework keeps a variable for each rank: it notes this, or says so by ``ON_READ``.

    With ``ON_READ`` (totals of metrics) each replica has its own value (tensorflow/python/ops/variables.py).
    """
    by_replica = getattr(variable, "synchronization", None) == tf.VariableSynchronization.ON_READ
    return by_replica or hasattr(variable, EACH_RANK)


def random_state(variable: Any) -> bool:
    """Return whether a variable is the state of a random generator, which is each rank's own."""
    return hasattr(variable, RANDOM)


def batch_statistic(variable: Any) -> bool:
    """Return whether a variable is a moving statistic of batches: it is noted, or its replicas are to be averaged.

    (tf_keras/src/layers/normalization/batch_normalization.py; tensorflow/python/ops/variables.py.)
    """
    averaged = getattr(variable, "aggregation", None) == tf.VariableAggregation.MEAN
    noted = hasattr(variable, STATISTIC) or hasattr(variable, MOVED)
    return noted or (averaged and of_each_rank(variable))


def reads_own_table(variable: Any) -> bool:
    """Return whether a variable holds rows of a hash table that each process has for itself: the dynamic embeddings of
    TensorFlow Recommenders Addons (dynamic_embedding/python/ops/embedding_weights.py, ``TrainableWrapper``)."""
    kinds = type(variable).__mro__
    return any(k.__name__ == "TrainableWrapper" and k.__module__.startswith("tensorflow_recommenders") for k in kinds)


def value(variable: Any) -> np.ndarray:
    """Return the value of an eager variable, without a copy if it is in host memory.

    Unlike ``variable.numpy()`` it does not note the variable as one of a function that is traced now
    (``FuncGraph.watch_variable``, tensorflow/python/framework/func_graph.py). Such a function could not be called after
    the end of the variable.
    """
    with eager.mode(), eager.unrecorded():
        read = tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)
        return np.asarray(read)


def existing() -> list[Any]:
    """Return all eager variables that exist, in the order in which they were made."""
    found = objects.existing(resource_variable_ops.BaseResourceVariable)
    # Variables of graphs have no value in this process.
    found = [o for o in found if (handle := getattr(o, "_handle", None)) is not None and not is_symbolic(handle)]
    return sorted(found, key=lambda v: int(name(v).rpartition("_")[2]))
