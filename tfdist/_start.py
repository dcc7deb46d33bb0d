"""What importing tfdist does: find the ranks, take this rank's share of the machine, install the hooks."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import platform
import sys
import time
from typing import TYPE_CHECKING

from tfdist.core import devices, timeline
from tfdist.core.environment import begun_before, launch, mark, parent_rank
from tfdist.core.log import announce, log, speak_as
from tfdist.core.settings import Settings, SettingsError
from tfdist.engine.autotune import Engines
from tfdist.graph.job import Job, Switches
from tfdist.transport.connect import connect
from tfdist.transport.interfaces import PeerError, SetupError

if TYPE_CHECKING:
    from tfdist.hooks.patches import Patches
    from tfdist.training.steps import Steps


_EXECUTED = (
    "os.exec has put this program into the process of rank {}, which had imported tfdist: MPI begins once in a "
    "process. Call os.exec before the import, or start another process (subprocess)."
)
_CHILD = (
    "process {} was started by rank {}, not by the launcher: it is one process by itself, without the other ranks, "
    "and so is each further one"
)
_FIRST_CHILDREN = ("MainProcess", "1")  # names of multiprocessing's end in a number: a pool's first speaks for it
_FIRST_SPEAKS_SECONDS = 2


class Process:
    """This process's job and what has been installed for it.

    Attributes:
      job: the ranks, engines and switches.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._patches: Patches | None = None
        self._pid = os.getpid()

    @functools.cached_property
    def steps(self) -> Steps:
        """What watches over training steps; imports TensorFlow: not before it is needed."""
        from tfdist.training.steps import Steps

        return Steps(self.job)

    def install(self) -> None:
        """Hook into TensorFlow and into uncaught exceptions."""
        from tfdist.hooks.install import install

        self._patches = install(self.job, self.steps)

    def uninstall(self) -> None:
        """Undo ``install``; does nothing the second time."""
        if self._patches is not None:
            self._patches.undo()
            self._patches = None

    def end(self) -> None:
        """This rank's program is over; a process that was forked off ends by itself. Collective: all ranks."""
        from tfdist.hooks.exit_code import exit_code, leave

        if os.getpid() != self._pid:
            leave()  # else MPI, too, would end here what is the rank's
        job = self.job
        job.world.end(exit_code())
        if isinstance(job.recorder, timeline.Recording):
            try:
                self._write_timeline(job.recorder)
            except PeerError as error:
                log(f"rank {job.world.rank} has no part in a timeline: {error}")

    def _write_timeline(self, recorder: timeline.Recording) -> None:
        job = self.job
        ranks = job.world.control.all_gather_object(self._events(recorder), "the writing of the timeline")
        path = job.switches.settings.timeline
        if job.world.rank == 0:
            timeline.write(path, ranks)
        announce(f"the timeline is in {path}\n{timeline.table(ranks)}")

    def _events(self, recorder: timeline.Recording) -> list[timeline.Event]:
        """This rank's, on rank 0's clock."""
        world = self.job.world
        world.control.arrive("the comparison of clocks")
        now = time.perf_counter()
        offset = world.control.broadcast_object(now, "the comparison of clocks") - now
        if world.local_rank == world.rank:
            offset = 0.0  # on rank 0's machine, whose clock it is: exact
        return [e._replace(start=e.start + offset, end=e.end + offset) for e in recorder.events]


@functools.cache
def process() -> Process:
    """Begin, once. One process alone gets nothing installed, nor does a rank's child. Collective: all ranks."""
    started = launch()
    parent = parent_rank()
    try:
        settings = Settings.from_environment()
        if started is not None and started.rank is not None and started.size != 1:
            if begun_before() and "mpi4py.MPI" not in sys.modules:
                raise SetupError(_EXECUTED.format(started.rank))
            mark(started.rank)
        world = connect(started, settings)
    except (SettingsError, SetupError) as error:
        # The ranks of a machine are in the same case, and there may be no MPI to agree through: the first speaks.
        if started is None or not started.local_rank:
            sys.stderr.write(f"tfdist on {platform.node()}: {error}\n")
        else:
            time.sleep(_FIRST_SPEAKS_SECONDS)  # Open MPI's launcher ends all ranks when one has ended so
        raise SystemExit(1) from None
    speak_as(world.rank if parent is None else parent)
    if parent is not None and multiprocessing.current_process().name.rpartition("-")[2] in _FIRST_CHILDREN:
        announce(_CHILD.format(os.getpid(), parent))
    recorder = timeline.Recording() if settings.timeline else timeline.Silent()
    switches = Switches(settings)
    engines = Engines(world, lambda: switches.settings)
    begun = Process(Job(world, recorder, engines, switches))
    if world.size > 1:
        devices.take_share(world.local_rank, world.local_size, world.local_affinities)
        begun.install()
        atexit.register(begun.end)  # also after uninstall: the others may still wait for it
    return begun
