"""What importing tfdist does: find the ranks, take this rank's share of the machine, hook into TensorFlow."""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING

from tfdist import failure, placement, world
from tfdist.job import Job
from tfdist.settings import Settings, SettingsError, launch

if TYPE_CHECKING:
    from tfdist.patch import Patches


class Process:
    """This process's job and what has been installed for it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._patches: Patches | None = None
        self._hook = failure.FailureHook(job.world)

    def install(self) -> None:
        """Hook into TensorFlow and into uncaught exceptions."""
        from tfdist import patch

        self._patches = patch.install(self.job)
        self._hook.install()

    def uninstall(self) -> None:
        """Undo ``install``; does nothing the second time."""
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
            self._hook.uninstall()

    def abort(self, message: str, exit_code: int) -> None:
        """See ``tfdist.abort``."""
        failure.abort(self.job.world, message, exit_code)


def start() -> Process:
    """Begin. One process alone gets nothing installed. Collective: all ranks."""
    started = launch()
    try:
        settings = Settings.from_environment()
        ranks = world.connect(started, settings)
    except (SettingsError, world.SetupError) as error:
        # Every rank is in the same case, and there may be no MPI to agree through: the launcher's rank 0 speaks.
        if started is None or not started.rank:
            sys.stderr.write(f"tfdist: {error}\n")
        raise SystemExit(1) from None
    process = Process(Job(ranks, settings))
    if ranks.size > 1:
        placement.take_share(ranks)
        process.install()
        atexit.register(ranks.end)  # also after uninstall: the others may still wait for it
    return process
