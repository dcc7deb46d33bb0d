"""Eager variables, outside sessions: what all ranks must have alike of them, and one rank's values for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.compat import variables as tf_variables
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless, variable_name
from tfdist.transport import agreement
from tfdist.variables import initial_sync

# The states of Keras's and TensorFlow's random generators: the ranks draw different numbers, as one process does for
# the different parts of a batch.
_RANDOM = re.compile(r"seed_generator_state|StateVar")
# In Keras 3, tf_keras and TensorFlow 1, renormalised or not; and as they are named where a script makes its own.
_STATISTICS = re.compile(
    r"(moving|renorm|running|pop|population|ema)_?(mean|var|std)"
    r"|(moments/Squeeze|(^|[/_])(mean|var|variance|std|stddev))(_\d+)?/ExponentialMovingAverage",
    re.IGNORECASE,
)
# Keras before 3.5 does not say of them that each replica has its own.
_METRICS = re.compile(r"(^|/)(total|count|(true|false)_(positives|negatives)|total_confusion_matrix)(_\d+)?(:0)?$")


def described(variable: Any) -> str:
    """What all ranks must have alike."""
    own = tf_variables.native(variable)
    return f"variable {numberless(variable_name(variable))} {own.dtype.name} {own.shape}"


class EagerVariables:
    """Variables outside sessions, by their position; see ``initial_sync.Variables``.

    (By position: what Keras calls an optimizer's variables depends on what else a rank has built.)
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._variables = variables

    @property
    def plan(self) -> list[str]:
        """What all ranks must have alike."""
        return [f"variable {n}, {v.dtype.name} {v.shape}" for n, v in enumerate(self._variables)]

    def read(self) -> dict[str, np.ndarray]:
        """All values."""
        return {str(n): np.asarray(v.numpy()) for n, v in enumerate(self._variables)}

    def load(self, values: initial_sync.Values) -> None:
        """Assign them."""
        for n, variable in enumerate(self._variables):
            variable.assign(values[str(n)])


def take_values(wanted: Sequence[Any], root: int, job: Job) -> None:
    """One rank's values of variables on every rank.

    Collective: all ranks, with variables of the same dtypes and shapes in the same order.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    variables = EagerVariables(wanted)
    initial_sync.begin(job.world.control, initial_sync.Visitor("values", variables.plan, root=root), variables)


def average_values(wanted: Sequence[Any], job: Job) -> None:
    """The mean over the ranks of floating-point variables, in place of each rank's. Collective: all ranks."""
    wanted = [v for v in wanted if v.dtype.is_floating]
    agreement.agree(job.world.control, [described(v) for v in wanted], "the averaging of variables")
    for variable in wanted:
        variable.assign(mean_of_ranks(variable.numpy(), job))


def mean_of_ranks(value: np.ndarray, job: Job) -> np.ndarray:
    """The mean over the ranks, computed in float32 at least. Collective: all ranks, with the same dtype and shape."""
    wide = np.array(value, np.float32 if value.itemsize < 4 else value.dtype, order="C").reshape(-1)
    job.world.control.all_reduce(wide, "mean", job.world.size)
    return wide.reshape(value.shape).astype(value.dtype)


def variables_of(given: Any, attribute: str = "weights") -> list[Any]:
    """The ``tf.Variable`` of each variable, of TensorFlow or Keras, in a list; or of an object's attribute."""
    found = getattr(given, attribute, given)
    return [tf_variables.native(v) for v in ([found] if hasattr(found, "assign") else found)]


def random_state(variable: Any) -> bool:
    """Whether a variable is the state of a random generator, which is each rank's own."""
    return _RANDOM.search(getattr(variable, "path", variable.name)) is not None


def batch_statistic(variable: Any) -> bool:
    """Whether a variable is a moving statistic of batches (BatchNormalization's), which is each rank's own."""
    return _STATISTICS.search(variable.name) is not None


def metric_state(variable: Any) -> bool:
    """Whether a variable is what a metric of Keras's adds up, by its name."""
    return _METRICS.search(variable.name) is not None
