"""Replica check: after an averaged update all ranks hold the same, and now and then they see whether they do.

A fingerprint of what a rank holds goes with the meeting of a step that is made anyway. It finds what no list of faults
knows: whatever has set the ranks apart, they hold other bits.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from tfdist.engine.collective import Collective
from tfdist.graph.job import Job
from tfdist.transport import agreement
from tfdist.transport.interfaces import DisagreementError
from tfdist.variables import comparison, held
from tfdist.variables.held import Holder

OFF, AUTO = "off", "auto"
_SHARE = 0.004  # of a step, at most, once the first steps are over
LARGEST = 63  # what a rank asks for that has no measurement: of two as a power


class Schedule:
    """After steps 1, 2, 4, 8, … as long as that is more often than what it costs allows.

    All ranks come to the same: what a rank has measured goes with each comparison, and the largest counts.

    Args:
      setting: see ``TFDIST_CHECK``: ``auto``, or a number of steps.
    """

    def __init__(self, setting: str) -> None:
        self._every = 0 if setting == AUTO else int(setting)
        self._next = 1 + (self._every or 1)

    def due(self, step: int) -> bool:
        """Whether what the ranks hold before a step, which counts from 1, is to be compared in it."""
        return step >= self._next

    def compared(self, step: int, powers: list[int]) -> None:
        """It has been; the ranks ask for so many steps until the next comparison, as powers of two."""
        self._next = step + (self._every or min(max(1, step - 1), 1 << max(powers)))


def wanted(seconds: float, step_seconds: float) -> int:
    """How many steps there are to be from one comparison to the next, as a power of two.

    Args:
      seconds: that a comparison takes this rank.
      step_seconds: that a step takes it; 0: not known yet.
    """
    if not step_seconds:
        return LARGEST
    return min(LARGEST, max(0, math.ceil(math.log2(max(1.0, seconds / (_SHARE * step_seconds))))))


_POWER_BITS = 6
_TRAININGS = 16  # of one collective that are remembered


class _Steps:
    """The steps of one training: of the same variables by one collective, or those that are executed eagerly.

    Args:
      setting: see ``Schedule``.
      before: so many steps of the collective were others'.

    Attributes:
      before: likewise.
      schedule: when they are compared.
      noted: after this step the last fingerprint was taken.
      since: after this step all ranks held the same; None: they were not compared yet.
      holder: of the variables.
      final: a session that is closed held this after that step.
    """

    def __init__(self, setting: str, before: int = 0) -> None:
        self.schedule = Schedule(setting)
        self.before = before
        self.noted = 0
        self.since: int | None = None
        self.holder: Holder | None = None
        self.final: tuple[int, int] | None = None
        self._looked = (0, 0.0)  # at this step and time

    def taken(self, step: int) -> int:
        """A fingerprint after the last step; 0: what was held is gone."""
        if self.final is not None and self.final[0] == step:
            return self.final[1]
        try:
            return held.digest(self.holder) if self.holder is not None and self.holder.complete else 0
        except Exception:  # the program is over, and so may be the session
            return 0

    def note(self, holder: Holder, step: int) -> int:
        """What this rank holds before a step, and how many steps it asks for until the next comparison."""
        start = time.perf_counter()
        last_step, last = self._looked
        step_seconds = (start - last) / (step - last_step) if last and step > last_step else 0.0
        found = held.digest(holder)
        now = time.perf_counter()
        self._looked = step, now
        self.noted = step - 1
        return found << _POWER_BITS | wanted(now - start, step_seconds)


class ReplicaCheck:
    """Compares what the ranks hold.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told: set[str] = set()
        self._eager: weakref.WeakKeyDictionary[Any, _Steps] = weakref.WeakKeyDictionary()  # by their optimizers
        self._carriers: weakref.WeakSet[Collective] = weakref.WeakSet()

    def before(self, collectives: Iterable[Collective], holder: Holder) -> Collective | None:
        """A call is about to be made that averages gradients by these.

        Args:
          collectives: all that it may execute.
          holder: of the variables.

        Returns:
          The collective that carries the fingerprint; None: there is none.
        """
        setting = self._job.switches.settings.check
        if setting == OFF or self._job.switches.settings.sync != "gradients":
            return None
        carrier = next((c for c in collectives if c.averages and c.everyone), None)
        if carrier is None:
            return None
        steps = self._steps_of(carrier, holder, setting)
        step = carrier.step - steps.before + 1
        wanted = carrier.asked or steps.schedule.due(step)
        if wanted and not carrier.note and not self._job.switches.alone_depth:
            carrier.note = steps.note(holder, step)
        return carrier

    def _steps_of(self, carrier: Collective, holder: Holder, setting: str) -> _Steps:
        """Equal names are one collective's: another model's training may go on with it."""
        self._carriers.add(carrier)
        known = carrier.checks
        steps: _Steps | None = known.get(holder.identity)
        if steps is None:
            steps = known[holder.identity] = _Steps(setting, carrier.step)
            self._job.data_comparison.begin()
            for oldest in list(known)[:-_TRAININGS]:
                del known[oldest]
        steps.holder = holder
        carrier.check = steps
        return steps

    def after(self, carrier: Collective | None) -> None:
        """The call has been made. Collective, if the fingerprints differ: all ranks.

        Raises:
          DisagreementError: the ranks hold what is not the same, nor differs by rounding alone.
        """
        if carrier is None or not carrier.notes:
            return
        notes, carrier.notes = carrier.notes, []
        set_by_script, carrier.asked = carrier.asked, False
        if len(notes) < self._job.world.size and len({note >> _POWER_BITS for note in notes}) > 1:
            raise DisagreementError(
                f"the ranks that still train are apart after step {carrier.step} of {carrier.name}: give all ranks the "
                "same number of steps (tfdist.shard) in place of tfdist.join to be told of which variable"
            )
        if len(notes) == self._job.world.size:
            self._job.data_comparison.compare(self._job.world.control)
        self._compare(carrier.check, notes, carrier.check.holder, set_by_script)

    def eagerly(self, optimizer: Any, holder: Callable[[], Holder]) -> None:
        """An optimizer is about to apply gradients eagerly, on all ranks.

        Collective, when it is time: all ranks. Raises as ``after`` does.
        """
        settings = self._job.switches.settings
        if settings.check == OFF:
            return
        steps = self._eager.setdefault(optimizer, _Steps(settings.check))
        if not steps.before:
            self._job.data_comparison.begin()
        steps.before += 1  # counts from 1 here
        if steps.schedule.due(steps.before):
            there = holder()
            self._job.data_comparison.compare(self._job.world.control)
            note = steps.note(there, steps.before)
            self._compare(steps, self._job.world.control.arrive(comparison.PLACE, note), there)

    def _compare(self, steps: _Steps, notes: list[int], holder: Holder, set_by_script: bool = False) -> None:
        steps.schedule.compared(steps.noted + 1, [note & ((1 << _POWER_BITS) - 1) for note in notes])
        if len({note >> _POWER_BITS for note in notes}) > 1:
            take = comparison.SET_BY_SCRIPT if set_by_script else comparison.ROUNDING
            comparison.settle(self._job.world.control, holder, self._told, steps.since or 0, steps.noted, take)
        steps.since = steps.noted

    def now(self, place: str, holder: Holder) -> None:
        """Compare what the ranks hold here, whatever step it is.

        Collective: all ranks. Raises as ``after`` does.
        """
        if self._job.switches.settings.check == OFF:
            return
        if len(set(self._job.world.control.arrive(place, held.digest(holder)))) > 1:
            comparison.settle(self._job.world.control, holder, self._told, None, 0)

    def ask(self) -> None:
        """Compare soon, with the exchanges of the next two steps: something has been saved."""
        for carrier in self._carriers:
            carrier.asks = True

    def closing(self, holder: Holder) -> None:
        """A session is about to be closed."""
        for carrier in self._carriers:
            if carrier.check.holder is holder and _unseen(carrier):
                carrier.check.final = carrier.step, carrier.check.taken(carrier.step)

    def last(self) -> dict[str, int]:
        """What this rank held after the last steps, by what they were: those that were not compared yet."""
        unseen = [c for c in self._carriers if _unseen(c)]
        found = {f"step {c.step} of {c.name}, {agreement.number(c.plan)}": c.check.taken(c.step) for c in unseen}
        return found if all(found.values()) else {}

    def settle(self, own: dict[str, int]) -> None:
        """The program is over, and not all ranks held the same after their last steps.

        Collective: all ranks. Raises as ``after`` does.
        """
        control = self._job.world.control
        ranks: list[dict[str, int]] = control.all_gather_object(own, comparison.PLACE)
        for key in sorted(own.keys() & set.intersection(*(set(rank) for rank in ranks))):
            if len({rank[key] for rank in ranks}) > 1:
                carrier = next(c for c in self._carriers if f"step {c.step} of {c.name}, " in key and c.check.holder)
                if all(control.arrive(comparison.PLACE, int(carrier.check.final is None))):
                    comparison.settle(control, carrier.check.holder, self._told, carrier.check.since or 0, carrier.step)
                else:
                    raise DisagreementError(f"the ranks are apart after {key.rpartition(',')[0]}. {comparison.REASONS}")


def _unseen(carrier: Collective) -> bool:
    """Whether there were steps after the last comparison."""
    return carrier.step - carrier.check.before > carrier.check.noted
