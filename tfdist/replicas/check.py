"""Replica check: after averaged updates all ranks must have the same variables, and now and then they compare them.

A fingerprint of a rank's variables travels with a step's own exchange. It finds every cause of different variables,
also unknown ones, because it compares their bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfdist.core.log import announce
from tfdist.engine.collective import Collective
from tfdist.graph.failures import Failures
from tfdist.graph.job import Job
from tfdist.replicas import comparison
from tfdist.replicas.program import BlockProgram, Program, digest
from tfdist.transport import agreement
from tfdist.transport.errors import DisagreementError

OFF, AUTO = "off", "auto"
_DOUBLING, _EVERY = 64, 100  # the ranks compare after 1, 2, 4 … 64 steps, and then after each 100th
_TRAININGS = 16  # largest number of trainings that are remembered for one collective
_AT_THE_END = (
    "the ranks have different variables at the end, after step {} of {}, by rounding or more; after step {} they held "
    "the same. The session was closed: to learn which variable and how far, set TFDIST_CHECK=1"
)


def following(setting: str, done: int) -> int:
    """Return after how many steps the ranks compare their variables next.

    Args:
      setting: ``TFDIST_CHECK``: ``auto``, or a number of steps.
      done: number of steps that are done.
    """
    if setting != AUTO:
        return done + int(setting)
    return 1 << done.bit_length() if done < _DOUBLING else (done // _EVERY + 1) * _EVERY


class _Steps:
    """Steps of one training: steps of one collective with the same variables, or eager steps of one optimizer.

    Args:
      setting: see ``following``.
      before: number of steps of the collective that belong to earlier trainings.

    Attributes:
      before: number of steps of the collective that belong to earlier trainings; for eager steps, the current step.
      noted: step after which the last fingerprint was taken.
      since: last step after which all ranks had the same variables; None before the first comparison.
      program: variables of the training.
      final: last step and fingerprint of a session that is closed; None if it is open.
    """

    def __init__(self, setting: str, before: int = 0) -> None:
        self._setting = setting
        self._next = following(setting, 0)
        self.before = before
        self.noted = 0
        self.since: int | None = None
        self.program: Program | None = None
        self.final: tuple[int, int] | None = None

    def due(self, step: int) -> bool:
        """Return whether the ranks compare their variables in a step, before its update; steps count from 1."""
        return step > self._next

    def compared(self) -> None:
        """Note that the ranks have compared the variables of the last fingerprint."""
        self._next = following(self._setting, self.noted)

    def taken(self, step: int) -> int:
        """Return a fingerprint after the last step; 0 if the variables do not exist any more."""
        if self.final is not None and self.final[0] == step:
            return self.final[1]
        try:
            return digest(self.program) if self.program is not None and self.program.complete else 0
        except Exception:  # at the end of the program the session may be closed
            return 0

    def note(self, program: Program, step: int) -> int:
        """Return this rank's fingerprint before a step."""
        self.noted = step - 1
        return digest(program)


class ReplicaCheck:
    """Compares the variables of the ranks.

    With local SGD the ranks compare, with the exchange of a block, the values with which it began, and the variables
    that the loss reads. The trained variables themselves differ inside a block.

    Args:
      job: the ranks and settings.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told: set[str] = set()
        self._eager: weakref.WeakKeyDictionary[Any, _Steps] = weakref.WeakKeyDictionary()  # by optimizer
        self._carriers: weakref.WeakSet[Collective] = weakref.WeakSet()

    def around(
        self,
        collectives: Sequence[Collective],
        program: Program | None,
        evaluates: bool,
        call: Callable[[], Any],
        failures: Failures | None = None,
        times_set: int = 0,
    ) -> Any:
        """Run a call of a session or a function in which the ranks meet, and return its result.

        Collective: all ranks.

        Args:
          collectives: collectives that the call may execute.
          program: variables to compare, if it is due; None: nothing is compared.
          evaluates: True if the call updates no variables.
          call: the call.
          failures: see ``Job.failing_plainly``.
          times_set: how often this rank's script has set trained variables since the last step.

        Raises:
          DisagreementError: the variables of the ranks differ by more than rounding.
        """
        for collective in collectives:
            collective.says.evaluates = evaluates
        carrier = None if program is None else self._before(collectives, program)
        if carrier is not None and times_set:
            carrier.says.asks, carrier.says.times_set = True, times_set
        result = self._job.failing_plainly(call, failures)
        self._after(carrier)
        return result

    def _before(self, collectives: Iterable[Collective], program: Program) -> Collective | None:
        """Attach a fingerprint to a collective before a call, if a comparison is due, and return this collective."""
        setting, blocks = self._job.switches.settings.check, self._blocks
        if setting == OFF:
            return None
        carrier = next((c for c in collectives if c.averages and c.everyone and c.blocks == blocks), None)
        if carrier is None:
            return None
        if blocks:
            program = BlockProgram(program, starts=True)
        steps = self._steps_of(carrier, program, setting)
        step = carrier.taken - steps.before + 1
        # With a delay a note may have been sent whose answer a later step takes: ``noted`` tells.
        wanted = (carrier.heard.asked or steps.due(step)) and (steps.noted < step - 1 or step == 1)
        if wanted and not carrier.says.note and not self._job.switches.alone_depth:
            carrier.says.note = steps.note(program, step)
        return carrier

    def _steps_of(self, carrier: Collective, program: Program, setting: str) -> _Steps:
        """Return the steps of the training of these variables. Another model may use a collective of the same name."""
        self._carriers.add(carrier)
        known = carrier.checks
        steps: _Steps | None = known.get(program.identity)
        if steps is None:
            steps = known[program.identity] = _Steps(setting, carrier.taken)
            self._job.data_comparison.begin()
            for oldest in list(known)[:-_TRAININGS]:
                del known[oldest]
        steps.program = program
        if carrier.check is not steps and carrier.check is not None:
            carrier.check.final = None  # the end of the program compares the last training only
        carrier.check = steps
        return steps

    def _after(self, carrier: Collective | None) -> None:
        """Compare the fingerprints after the call. Collective, if the fingerprints differ: all ranks."""
        if carrier is None or not carrier.heard.notes:
            return
        heard = carrier.heard
        notes, heard.notes = heard.notes, []
        set_by_script, heard.asked = heard.asked, False
        if len(notes) < self._job.world.size and len(set(notes)) > 1:
            raise DisagreementError(
                f"the ranks that still train have different variables after step {carrier.taken} of {carrier.name}. To "
                "learn which variable, give all ranks the same number of steps (tfdist.shard) instead of tfdist.join"
            )
        if len(notes) == self._job.world.size:
            self._job.data_comparison.compare(self._job.world.control)
        self._compare(carrier.check, notes, carrier.check.program, set_by_script)

    def eagerly(self, optimizer: Any, program: Callable[[], Program]) -> None:
        """Compare the variables, if it is due, before an optimizer applies gradients eagerly.

        Collective, if a comparison is due: all ranks. Raises as ``around`` does.
        """
        settings = self._job.switches.settings
        if settings.check == OFF:
            return
        steps = self._eager.setdefault(optimizer, _Steps(settings.check))
        if not steps.before:
            self._job.data_comparison.begin()
        steps.before += 1  # counts from 1 here
        if steps.due(steps.before):
            there = program()
            self._job.data_comparison.compare(self._job.world.control)
            note = steps.note(there, steps.before)
            self._compare(steps, self._job.world.control.arrive(comparison.PLACE, note), there)

    def _compare(self, steps: _Steps, notes: list[int], program: Program, set_by_script: bool = False) -> None:
        steps.compared()
        if len(set(notes)) > 1:
            take = comparison.SET_BY_SCRIPT if set_by_script else comparison.ROUNDING
            comparison.settle(self._job.world.control, program, self._told, steps.since or 0, steps.noted, take)
        steps.since = steps.noted

    def now(self, place: str, program: Program, take: str = comparison.ROUNDING) -> None:
        """Compare the variables of the ranks now. Collective: all ranks. Raises as ``around`` does.

        Args:
          place: description for messages, the same on all ranks.
          program: the variables of this rank.
          take: which values to take if they differ; see ``comparison.settle``.
        """
        if self._job.switches.settings.check == OFF:
            return
        if self._blocks:
            program = BlockProgram(program, starts=False)
        if len(set(self._job.world.control.arrive(place, digest(program)))) > 1:
            comparison.settle(self._job.world.control, program, self._told, None, 0, take)

    @property
    def _blocks(self) -> bool:
        return self._job.switches.settings.sync != "gradients"

    def ask(self) -> None:
        """Compare with the exchanges of the next two steps, because a checkpoint has been saved."""
        for carrier in self._carriers:
            carrier.says.asks = True

    def closing(self, program: Program) -> None:
        """Take a last fingerprint before a session is closed, if there were steps since the last comparison."""
        for carrier in self._carriers:
            if carrier.check.program.identity == program.identity and _unseen(carrier):
                carrier.check.final = carrier.taken, carrier.check.taken(carrier.taken)

    def last(self) -> dict[str, int]:
        """Return the fingerprints after the last steps that were not compared yet, by a description of the step."""
        unseen = [c for c in self._carriers if _unseen(c)]
        found = {f"step {c.taken} of {c.name}, {agreement.number(c.plan)}": c.check.taken(c.taken) for c in unseen}
        return found if all(found.values()) else {}

    def settle(self, own: dict[str, int]) -> None:
        """Find the variables that differed after the last steps of the program; log it if their session is closed.

        Collective: all ranks. Raises as ``around`` does.

        Args:
          own: result of ``last`` on this rank.
        """
        control = self._job.world.control
        ranks: list[dict[str, int]] = control.all_gather_object(own, comparison.PLACE)
        for key in sorted(own.keys() & set.intersection(*(set(rank) for rank in ranks))):
            if len({rank[key] for rank in ranks}) == 1:
                continue
            carrier = next(c for c in self._carriers if f"step {c.taken} of {c.name}, " in key and c.check.program)
            steps: _Steps = carrier.check
            assert steps.program is not None
            if all(control.arrive(comparison.PLACE, int(steps.final is None))):
                comparison.settle(control, steps.program, self._told, steps.since or 0, carrier.taken)
            else:
                announce(_AT_THE_END.format(carrier.taken, carrier.name, steps.since or 0))


def _unseen(carrier: Collective) -> bool:
    """Return whether there were steps after the last comparison."""
    return carrier.taken - carrier.check.before > carrier.check.noted
