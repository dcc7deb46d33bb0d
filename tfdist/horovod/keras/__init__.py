"""Horovod's Python interface for Keras 3 and tf_keras: ``import tfdist.horovod.keras as hvd``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.horovod import basics, collectives, ops, process_sets
from tfdist.horovod.basics import *  # noqa: F403
from tfdist.horovod.compression import Compression
from tfdist.horovod.functions import allgather_object, broadcast_object, broadcast_variables
from tfdist.horovod.functions import broadcast_global_variables as _in_graph
from tfdist.horovod.keras import callbacks, elastic
from tfdist.horovod.ops import *  # noqa: F403
from tfdist.horovod.optimizers import DistributedOptimizer, PartialDistributedOptimizer
from tfdist.horovod.process_sets import *  # noqa: F403
from tfdist.horovod.sync_batch_norm import SyncBatchNormalization


def _value(result: Any) -> Any:
    """Return a result's value as an array; in a graph, run it in Keras's session."""
    return result.numpy() if tf.executing_eagerly() else tf.compat.v1.keras.backend.get_session().run(result)


def broadcast_global_variables(root_rank: int) -> None:
    """Assign one rank's values to all global variables, in Keras's session.

    Raises:
      RuntimeError: TensorFlow executes eagerly; use ``broadcast_variables``.
    """
    operation = _in_graph(root_rank)
    tf.compat.v1.keras.backend.get_session().run(operation)


def allreduce(value: Any, name: str | None = None, average: bool | None = None, **options: Any) -> np.ndarray:
    """Return a value reduced over the ranks: see ``tfdist.horovod.allreduce``. Collective: all ranks."""
    return _value(collectives.allreduce(tf.constant(value), average, name=name, **options))


def allgather(value: Any, name: str | None = None) -> np.ndarray:
    """Return the rows of all ranks: see ``tfdist.horovod.allgather``. Collective: all ranks."""
    return _value(collectives.allgather(tf.constant(value), name))


def broadcast(value: Any, root_rank: int, name: str | None = None) -> np.ndarray:
    """Return the root rank's value: see ``tfdist.horovod.broadcast``. Collective: all ranks."""
    return _value(collectives.broadcast(tf.constant(value), root_rank, name))


def reducescatter(value: Any, name: str | None = None, op: Any = ops.Average) -> np.ndarray:
    """Return this rank's rows of the reduced value: see ``tfdist.horovod.reducescatter``. Collective: all ranks."""
    return _value(collectives.reducescatter(tf.constant(value), op=op, name=name))


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[Any] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a saved model with its optimizer's state, and wrap the optimizer.

    Args:
      filepath: file of a model that Keras has saved, with a wrapped optimizer or not.
      custom_optimizers: the script's own classes of optimizers, or None.
      custom_objects: the script's other classes and functions, by name, or None.
      compression: compression of gradients: see ``DistributedOptimizer``.
      legacy_opts: has no meaning here.
    """
    known = {cls.__name__: cls for cls in custom_optimizers or ()}
    model = tf.keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model


__all__ = [
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
__all__ += basics.__all__
__all__ += ops.__all__
__all__ += process_sets.__all__
