"""What importing tfdist does: find the ranks, take this rank's share of the machine, hook into TensorFlow."""

from __future__ import annotations

import atexit
import functools
import platform
import sys
import time
from typing import TYPE_CHECKING

from tfdist.core import devices, timeline
from tfdist.core.settings import Settings, SettingsError, launch, log
from tfdist.graph.job import Job
from tfdist.hooks import exceptions
from tfdist.transport import interfaces

if TYPE_CHECKING:
    from tfdist.hooks.install import Patches


class Process:
    """This process's job and what has been installed for it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._patches: Patches | None = None
        self._hook = exceptions.FailureHook(job.world)

    def install(self) -> None:
        """Hook into TensorFlow and into uncaught exceptions."""
        from tfdist.hooks import install

        self._patches = install.install(self.job)
        self._hook.install()

    def uninstall(self) -> None:
        """Undo ``install``; does nothing the second time."""
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
            self._hook.uninstall()

    def end(self) -> None:
        """This rank's program is over. Collective: all ranks."""
        self.job.world.end()
        if isinstance(self.job.recorder, timeline.Recording):
            ranks = self.job.world.control.all_gather_object(self._events(), "the writing of the timeline")
            if self.job.world.rank == 0:
                timeline.write(self.job.settings.timeline, ranks)
                log(f"the timeline is in {self.job.settings.timeline}\n{timeline.table(ranks)}")

    def _events(self) -> list[timeline.Event]:
        """This rank's, on rank 0's clock."""
        assert isinstance(self.job.recorder, timeline.Recording)
        self.job.world.control.arrive("the comparison of clocks")
        now = time.perf_counter()
        offset = self.job.world.control.broadcast_object(now, "the comparison of clocks") - now
        if self.job.world.local_rank == self.job.world.rank:
            offset = 0.0  # on rank 0's machine, whose clock it is: exact
        return [e._replace(start=e.start + offset, end=e.end + offset) for e in self.job.recorder.events]

    def abort(self, message: str, exit_code: int) -> None:
        """See ``tfdist.abort``."""
        exceptions.abort(self.job.world, message, exit_code)


@functools.cache
def process() -> Process:
    """Begin, once. One process alone gets nothing installed. Collective: all ranks."""
    started = launch()
    try:
        settings = Settings.from_environment()
        ranks = interfaces.connect(started, settings)
    except (SettingsError, interfaces.SetupError) as error:
        # The ranks of a machine are in the same case, and there may be no MPI to agree through: the first speaks.
        if started is None or not started.local_rank:
            sys.stderr.write(f"tfdist on {platform.node()}: {error}\n")
        raise SystemExit(1) from None
    recorder = timeline.Recording() if settings.timeline else timeline.Silent()
    begun = Process(Job(ranks, settings, recorder=recorder))
    if ranks.size > 1:
        devices.take_share(ranks)
        begun.install()
        atexit.register(begun.end)  # also after uninstall: the others may still wait for it
    return begun
