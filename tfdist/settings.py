"""What the environment says: TFDIST_* settings, the launcher, and defaults handed on to TensorFlow.

The only module that reads or writes ``os.environ``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Mapping

_PREFIX = "TFDIST_"


class SettingsError(ValueError):
    """A TFDIST_* variable is unknown or out of its range."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """The TFDIST_* variables, parsed once.

    Attributes:
      bucket_mb: TFDIST_BUCKET_MB, the size in MiB at which gradients are fused into one message.
      stall_seconds: TFDIST_STALL_SECONDS, the wait after which a rank says who is missing.
      stall_abort_seconds: TFDIST_STALL_ABORT_SECONDS, the wait after which the job ends.
    """

    bucket_mb: float = 32.0
    stall_seconds: float = 60.0
    stall_abort_seconds: float = 600.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Parse the settings.

        Raises:
          SettingsError: naming the variable, its value and what is allowed.
        """
        environment = os.environ if environment is None else environment
        names = {_PREFIX + field.name.upper(): field.name for field in dataclasses.fields(cls)}
        values = {}
        for variable, text in environment.items():
            if not variable.startswith(_PREFIX):
                continue
            if variable not in names:
                raise SettingsError(f"{variable} is not a setting; the settings are: {', '.join(names)}")
            values[names[variable]] = _positive(variable, text)
        return cls(**values)


def _positive(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise SettingsError(f"{variable}={text!r} is out of range; it takes a number above 0")
    return value


@dataclasses.dataclass(frozen=True)
class Launch:
    """What the launcher put into this process's environment.

    Attributes:
      size: processes started together; None where the launcher does not say.
      rank: this process's number among them, likewise.
    """

    size: int | None
    rank: int | None


# Set by: Open MPI's mpirun; MPICH's, Intel's and MVAPICH's Hydra and Slurm's PMI plug-ins; Slurm itself, per step.
# Only a started step has SLURM_STEP_NUM_TASKS with SLURM_PROCID inside srun; the batch script itself is one process.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
)


def launch(environment: Mapping[str, str] | None = None) -> Launch | None:
    """How this process was started: None without a launcher (a plain ``python script.py``)."""
    environment = os.environ if environment is None else environment
    for size, rank in _LAUNCHERS:
        if size in environment and rank in environment:
            return Launch(int(environment[size]), int(environment[rank]))
    if "PMIX_RANK" in environment:  # a PMIx launcher (prterun, srun --mpi=pmix) that tells the size through MPI only
        return Launch(None, int(environment["PMIX_RANK"]))
    return None


def set_default(variable: str, value: str) -> bool:
    """Set an environment variable for the libraries of this process unless the user has; tells whether it did."""
    if variable in os.environ:
        return False
    os.environ[variable] = value
    return True


def overwrite(variable: str, choose: Callable[[str | None], str | None]) -> None:
    """Replace a variable by what ``choose`` makes of it; None leaves it alone."""
    chosen = choose(os.environ.get(variable))
    if chosen is not None:
        os.environ[variable] = chosen


def log(message: str) -> None:
    """One line to stderr, at once."""
    sys.stderr.write(f"tfdist: {message}\n")
    sys.stderr.flush()
