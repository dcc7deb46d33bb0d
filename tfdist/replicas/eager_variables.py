"""Eager variables, outside sessions: describes them, averages them, and sends one rank's values to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.compat import variables as tf_variables
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless, variable_name
from tfdist.replicas import initial_sync
from tfdist.transport import agreement


def described(variable: Any) -> str:
    """Return a line that describes a variable, and must be the same on all ranks."""
    own = tf_variables.native(variable)
    return f"variable {numberless(variable_name(variable))} {own.dtype.name} {own.shape}"


def take_values(wanted: Sequence[Any], root: int, job: Job) -> None:
    """Set variables on every rank to one rank's values.

    They are identified by their position. Keras's names for an optimizer's variables depend on what else a rank has
    built.

    Collective: all ranks, with variables of the same dtypes and shapes in the same order.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    plan = [f"variable {n}, {v.dtype.name} {v.shape}" for n, v in enumerate(wanted)]

    def read() -> dict[str, np.ndarray]:
        return {str(n): np.asarray(v.numpy()) for n, v in enumerate(wanted)}

    def load(values: initial_sync.Values) -> None:
        for position, value in values.items():
            wanted[int(position)].assign(value)

    initial_sync.begin(job.world.control, initial_sync.Participant("values", plan, root=root), read, load)


def average_values(wanted: Sequence[Any], job: Job) -> None:
    """Set floating-point variables to their mean over the ranks. Collective: all ranks."""
    wanted = [v for v in wanted if v.dtype.is_floating]
    agreement.agree(job.world.control, [described(v) for v in wanted], "the averaging of variables")
    for variable in wanted:
        variable.assign(mean_of_ranks(variable.numpy(), job))


def mean_of_ranks(value: np.ndarray, job: Job) -> np.ndarray:
    """Return the mean over the ranks, computed at least in float32. Collective: all ranks, same dtype and shape."""
    wide = np.array(value, np.float32 if value.itemsize < 4 else value.dtype, order="C").reshape(-1)
    job.world.control.all_reduce(wide, "mean", job.world.size)
    return wide.reshape(value.shape).astype(value.dtype)


def variables_of(given: Any, attribute: str = "weights") -> list[Any]:
    """Return a list with the ``tf.Variable`` of each TensorFlow or Keras variable, or of an object's attribute."""
    found = getattr(given, attribute, given)
    return [tf_variables.native(v) for v in ([found] if hasattr(found, "assign") else found)]
