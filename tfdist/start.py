"""Start: what the import of tfdist does: connect the ranks, take this rank's share of the host, install the hooks."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import platform
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from tfdist.compat import versions
from tfdist.core import ddl_options
from tfdist.core.environment import Launch, begun_before, launch, mark, parent_rank
from tfdist.core.log import (
    announce,
    debug,
    occupy_standard_streams,
    set_log_level,
    set_log_prefix,
    write_last_message,
)
from tfdist.core.settings import IN_THE_GRAPH, Settings, SettingsError
from tfdist.engine.choice import Engines
from tfdist.graph.job import Job, Switches
from tfdist.mpi.connect import connect
from tfdist.processes import companion, devices, exit_code
from tfdist.transport import agreement
from tfdist.transport.errors import SetupError
from tfdist.transport.interfaces import World

if TYPE_CHECKING:
    from tfdist.hooks.install import Hooks
    from tfdist.hooks.patches import Patches
    from tfdist.training.steps import Steps


_EXECUTED = (
    "os.exec has put this program into the process of rank {}, which had imported tfdist. MPI can start only once in a "
    "process. Call os.exec before the import, or start another process (subprocess)."
)
_CHILD = (
    "process {} was started by rank {}, not by the launcher: it runs without the other ranks. So do further child "
    "processes"
)
# Names of multiprocessing's processes end in a number. Only the first process of a pool logs, for the whole pool.
_FIRST_CHILDREN = ("MainProcess", "1")
_FIRST_SPEAKS_SECONDS = 2


class Process:
    """This process's job, and the hooks that are installed for it.

    Attributes:
      job: ranks, engines and switches.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self._patches: Patches | None = None
        self._hooks: Hooks = ()
        self._pid = os.getpid()
        self._ended = False

    @functools.cached_property
    def steps(self) -> Steps:
        """Objects around training steps. Made at the first use, because they import TensorFlow."""
        from tfdist.training.steps import Steps

        return Steps(self.job)

    def install(self) -> None:
        """Install the hooks in TensorFlow and for uncaught exceptions. Do nothing if they are installed."""
        from tfdist.hooks.install import every_hook

        self._install(every_hook(self.job))

    def install_as_needed(self) -> None:
        """Install the hooks that the settings need, in a job of one process."""
        switches = self.job.switches
        if self._patches is None and switches.automatic and not switches.settings.affects_one_process:
            return  # before TensorFlow is imported
        _check_tensorflow()
        from tfdist.hooks.install import needed_hooks

        self._install(needed_hooks(self.job))

    def _install(self, hooks: Hooks) -> None:
        from tfdist.hooks.install import install

        if hooks != self._hooks:
            self.uninstall()
            self._patches, self._hooks = install(hooks, self.job, self.steps) if hooks else None, hooks

    def uninstall(self) -> None:
        """Undo ``install``. Do nothing if no hooks are installed."""
        if self._patches is not None:
            self._patches.undo()
            self._patches, self._hooks = None, ()

    def end(self) -> None:
        """End this rank's part of the job, at the end of its program. Collective: all ranks.

        In a forked process it ends only that process.
        """
        if os.getpid() != self._pid:
            exit_code.leave()  # without it this process would also end MPI, which belongs to the rank
        if self._ended:
            return
        self._ended = True
        job, code = self.job, exit_code.exit_code()
        recorder, timeline = job.recorder, job.switches.settings.timeline
        if timeline:
            recorder.flush()
        last = self._last_held() if not code else {}
        if not code and job.switches.settings.sync != "gradients" and "steps" in self.__dict__:
            from tfdist.updates.local_sgd import local_sgd_of

            local_sgd_of(self.steps).before_end()
        notes = job.world.end(code, agreement.number([repr(sorted(last.items()))]) if last else 0)
        if last and all(notes) and len(set(notes)) > 1:
            self._say_apart(last)
        if not timeline:
            recorder.close(keep=code != 0)
        elif job.world.rank == 0:
            from tfdist.record.timeline import put_together

            put_together(timeline, job.world.size)

    def _last_held(self) -> dict[str, int]:
        """Return fingerprints of this rank's variables after the steps that the ranks have not compared."""
        steps = self.__dict__.get("steps")
        return steps.replicas.last() if steps is not None and not steps.variables.any_set else {}

    def _say_apart(self, last: dict[str, int]) -> None:
        from tfdist.hooks.exits import abort

        self.job.world.waits.announce("running")  # all ranks have met at the end of their programs: no rank is missing
        try:
            self.steps.replicas.settle(last)
            self.job.world.waits.announce("ended")
        except Exception as error:
            world = self.job.world
            abort(world, f"tfdist: rank {world.rank} of {world.size}, at its end: {type(error).__name__}: {error}")

    def leave(self) -> None:
        """End this rank's part of the job when the process exits without Python's exit handlers.

        Collective: all ranks.
        """
        if os.getpid() == self._pid:
            self.end()
            self.job.world.finish()


@functools.cache
def _check_tensorflow() -> None:
    """Import TensorFlow, and log once if it is newer than what was tested.

    Raises:
      SetupError: it cannot be imported, or is too old.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        said = " ".join(str(error).split())
        raise SetupError(f"TensorFlow cannot be imported ({said}): pip install 'tfdist[tensorflow]'") from None
    if problem := versions.unsupported(tf.__version__):
        raise SetupError(problem)
    if remark := versions.untested(tf.__version__):
        announce(remark)


def _refuse(error: Exception, started: Launch | None) -> NoReturn:
    """End this rank; the first rank of a host prints the message. All ranks of a host fail alike, maybe without MPI."""
    if started is None or not started.local_rank:  # one message for each host
        write_last_message(f"tfdist on {platform.node()}: {error}", forwarded=started is not None)
        companion.end_job()  # other ranks may wait for this rank in MPI_Init
    else:
        time.sleep(_FIRST_SPEAKS_SECONDS)  # Open MPI's launcher ends all ranks as soon as one exits with an error
    raise SystemExit(1) from None


@functools.cache
def process() -> Process:
    """Start tfdist in this process, once, and return its state. Collective: all ranks.

    In a job of one process, or in a child process of a rank, no hooks are installed unless settings need them.
    """
    started = launch()
    parent = parent_rank()
    try:
        settings = Settings.from_environment()
        if started is not None and started.rank is not None and started.size != 1:
            if begun_before() and "mpi4py.MPI" not in sys.modules:
                raise SetupError(_EXECUTED.format(started.rank))
            mark(started.rank)
            occupy_standard_streams()
        world = connect(started, settings)
    except (SettingsError, SetupError) as error:
        _refuse(error, started)
    set_log_prefix(world.rank if parent is None else parent)
    if parent is not None and multiprocessing.current_process().name.rpartition("-")[2] in _FIRST_CHILDREN:
        announce(_CHILD.format(os.getpid(), parent))
    if parent is None:  # a child process inherits the ranks' environment, in which DDL_OPTIONS is meant for the ranks
        settings = _with_ddl_options(world, settings)
    if "log_level" in settings.origins:
        set_log_level(settings.log_level)
    debug(f"{world.topology}; {world.description()}")
    switches = Switches(settings.between_machines() if len(world.topology.nodes) > 1 else settings)
    if world.size > 1 or settings.affects_one_process:
        foreign = [f"{', '.join(settings.foreign)}: no settings of tfdist, without effect"] if settings.foreign else []
        for line in (*foreign, *settings.without_effect(len(world.topology.nodes))):
            announce(line)
    engines = Engines(world, lambda: switches.settings)
    begun = Process(Job(world, engines, switches))
    try:
        _install(begun)
    except (SettingsError, SetupError) as error:
        _refuse(error, started)
    return begun


def _with_ddl_options(world: World, settings: Settings) -> Settings:
    """Return the settings with what ``DDL_OPTIONS`` chooses. Collective: all ranks, whose options are the same."""
    if not settings.ddl_options:
        return settings
    a_gpu_each = devices.a_gpu_each(world.local_size) if world.size > 1 else False
    if world.size > 1:
        a_gpu_each = all(world.control.all_gather_object(a_gpu_each, "the comparison of GPUs"))
    ddl_options.tell(settings.ddl_options, ddl_options.IMPORT, world.size)
    return ddl_options.applied(settings, settings.ddl_options, ddl_options.IMPORT, a_gpu_each)


def _install(begun: Process) -> None:
    """Take this rank's share of the host, and install the hooks."""
    job = begun.job
    world, switches = job.world, job.switches
    if world.size == 1:
        begun.install_as_needed()
        return
    if told := devices.suggestion(switches.settings.engine, world.local_size):
        announce(told)
    devices.take_share(world.local_rank, world.local_size, world.local_affinities)
    _check_tensorflow()
    if switches.settings.engine in IN_THE_GRAPH:  # before TensorFlow executes anything
        from tfdist.graph.tensorflow_collectives import TensorFlowCollectives

        switches.exchange = TensorFlowCollectives(job)
    begun.install()
    atexit.register(begun.end)  # also after uninstall: other ranks may still wait for this rank's end
    exit_code.when_over(begun.leave)
    exit_code.when_python_ends(world.finish)
