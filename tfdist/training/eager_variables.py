"""Variables that exist outside sessions: what all ranks must have alike of them, and one rank's values for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.graph.job import Job
from tfdist.training import session_step
from tfdist.training.gradient_rewrite import variable_name
from tfdist.transport import agreement

MEETING = "the exchange of variables before a first step"
# The states of Keras's and TensorFlow's random generators: the ranks draw different numbers, as one process does for
# the different parts of a batch.
_RANDOM = re.compile(r"seed_generator_state|StateVar")


def described(variable: Any) -> str:
    """What all ranks must have alike."""
    return f"variable {variable_name(variable)} {variable.dtype.name} {variable.shape}"


def take_values(wanted: Sequence[Any], root: int, job: Job) -> None:
    """One rank's values of variables on every rank.

    Collective: all ranks, with variables of the same dtypes and shapes in the same order.

    Raises:
      DisagreementError: the ranks have different variables.
    """
    # By position: what Keras calls an optimizer's variables depends on what else a rank has built.
    plan = [f"variable {n}, {v.dtype.name} {v.shape}" for n, v in enumerate(wanted)]
    agreement.check(job.world.control.all_gather_object(plan, MEETING))
    own = {str(n): np.asarray(v.numpy()) for n, v in enumerate(wanted)} if job.world.rank == root else {}
    received = session_step.send(job, own, root)
    if job.world.rank != root:
        for n, variable in enumerate(wanted):
            variable.assign(received[str(n)])


def average_values(wanted: Sequence[Any], job: Job) -> None:
    """The mean over the ranks of floating-point variables, in place of each rank's. Collective: all ranks."""
    wanted = [v for v in wanted if v.dtype.is_floating]
    plan = [described(v) for v in wanted]
    control = job.world.control
    agreement.check(control.all_gather_object(plan, "the averaging of variables"))
    for variable in wanted:
        value = np.array(variable.numpy(), order="C")
        wide = value.astype(np.float32 if value.itemsize < 4 else value.dtype).reshape(-1)
        control.all_reduce(wide, "mean", job.world.size)
        variable.assign(wide.reshape(value.shape).astype(value.dtype))


def variables_of(given: Any, attribute: str = "weights") -> list[Any]:
    """The ``tf.Variable`` of each variable, of TensorFlow or Keras, in a list; or of an object's attribute."""
    found = getattr(given, attribute, given)
    return [native(v) for v in ([found] if hasattr(found, "assign") else found)]


def random_state(variable: Any) -> bool:
    """Whether a variable is the state of a random generator, which is each rank's own."""
    return _RANDOM.search(getattr(variable, "path", variable.name)) is not None


def native(variable: Any) -> Any:
    """A variable of Keras 3 (which has a path) as TensorFlow's."""
    return variable.value if hasattr(variable, "path") else variable
