"""Join: ranks whose data end early take part in the other ranks' exchanges without gradients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

from tfdist.core import exclusions
from tfdist.engine.arrival import Arrival
from tfdist.engine.collective import Collective
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.replicas import initial_sync
from tfdist.training.session_step import SessionSteps


def join(job: Job, sessions: SessionSteps) -> int:
    """See ``tfdist.join``. Collective: all ranks, each when its data end.

    Args:
      job: the ranks.
      sessions: hooks of sessions, with the session that has trained last.
    """
    accumulated = job.switches.settings.accumulate_steps
    if accumulated > 1:
        raise RuntimeError(exclusions.HELD_AND_JOIN.told(f"accumulate_steps={accumulated}", "tfdist.join"))
    session = sessions.trained
    if session is None:
        raise RuntimeError("tfdist.join takes part in the steps of a training session: run one training step before it")
    collectives = [c for c in make_state(session.graph).world_collectives if c.channel is not None]
    check(collectives, "tfdist.join")
    trained = max(c.step for c in collectives)
    job.world.waits.announce("joined")
    stand_in_for_all(collectives)
    job.world.waits.announce("running")
    steps: list[int] = job.world.control.all_gather_object(trained, "the end of tfdist.join")
    last = steps.index(max(steps))
    program = sessions.program(session)
    participant = initial_sync.Participant("join", [], root=last)
    initial_sync.begin(job.world.control, participant, program.values, program.set)
    return last


def check(collectives: Sequence[Collective], call: str) -> None:
    """Check, before this rank announces the end of its data, that it can take part without running the graph.

    Raises:
      RuntimeError: an exchange consists of TensorFlow operations, which this rank would have to run.
    """
    built = [e for c in collectives for e in c.exchanges if isinstance(e, Arrival)]
    if built:
        raise RuntimeError(exclusions.EXCHANGE_AND_JOIN.told(f"gradients are combined by {built[0].by}", call))


def stand_in_for_all(collectives: Sequence[Collective]) -> None:
    """Take part in each collective without data, until no rank has data. Collective: all ranks, at any time."""
    # A thread for each collective, because the other ranks may run the collectives in any order.
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(collective: Collective) -> None:
        try:
            _stand_in(collective)
            ended.put(None)
        except BaseException as error:
            ended.put(error)

    for collective in collectives:
        threading.Thread(target=run, args=[collective], name=f"tfdist join {collective.name}", daemon=True).start()
    for _ in collectives:
        error = ended.get()
        if error is not None:
            raise error


def _stand_in(collective: Collective) -> None:
    """Take part in one collective until no rank trains any more."""
    collective.says.absent = True
    while True:
        for number, exchange in enumerate(collective.exchanges):
            exchange.load_nothing()
            collective.communicate(number)
            exchange.results()
            if not collective.present:
                collective.says.absent = False
                return
