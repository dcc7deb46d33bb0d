"""Divergence guard: whether the loss rises where it should fall, and what is done then.

The loss per word is looked at in windows of steps. Training has diverged if it gives back, for some windows in
succession, a quarter of what it had gained since the first step, or a twentieth of the first loss if that is more: a
measure that depends neither on the loss's unit nor on where it ends. A loss that is not finite needs no patience.

A run that goes back halves its rate. A rate that diverges in the beginning has never worked, and the first half of it
that does is at the edge of divergence still: the loss falls as fast as with a good rate for some hundred steps, and
then no further. So the run begins anew, and such a half is on trial only, past the steps that led to the divergence
and for a hundred at least; then the run begins anew with a quarter of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from nmt.core.ranks import AgreedError, Ranks
from nmt.train.step import StepResult
from tfdist.extend import WINDOW_STEPS, Windows

ACTIONS = ("off", "warn", "stop", "rewind")
_BEGINNING_STEPS = 500
_TRIAL_STEPS = 100  # at least
_GIVEN_BACK = 0.25  # of what has been gained
_NOISE = 0.05  # of the first loss
CAUSES = (
    "usual causes: a learning rate that is too high for this batch and these ranks (lower --learning_rate, or warm up "
    "over more steps: --warmup_steps), --max_gradient_norm too high, sentences that are not each other's translations"
)


class RateTooHighError(AgreedError):
    """Training is to go back, and on with a lower rate, as every rank knows.

    Attributes:
        back_to: to the last checkpoint up to the first of these steps; where none is left, to that up to the second.
        halvings: of the rate.
        trial: the step up to which the lower rate is on trial; None: it is not.
    """

    def __init__(self, message: str, is_mine: bool, back_to: Sequence[int], halvings: int, trial: int | None) -> None:
        super().__init__(message, is_mine)
        self.back_to, self.halvings, self.trial = back_to, halvings, trial


class DivergedError(RateTooHighError):
    """Training has diverged.

    Args:
        good_step: after which it had not yet.
        step: done so far.
    """

    def __init__(self, message: str, is_mine: bool, good_step: int, step: int) -> None:
        if step > _BEGINNING_STEPS:
            super().__init__(message, is_mine, [good_step], 1, None)
        else:
            super().__init__(message, is_mine, [0, good_step], 1, max(_TRIAL_STEPS, step))


class Rise:
    """Finds a loss that rises.

    Args:
        first_step: steps done before.
    """

    def __init__(self, first_step: int = 0) -> None:
        self.good_step = first_step
        self._step = first_step
        self._windows = Windows(lambda first, known: min(known) + _room(first, min(known)))

    def see(self, step: int, loss: float) -> str:
        """What is wrong, in words, or nothing.

        Args:
            step: the last of a window.
            loss: its mean.
        """
        before, self._step = self._step, step
        if not math.isfinite(loss):
            return f"the loss is {loss:g} a word in step {step} or up to {step - before - 1} steps before"
        lowest = min(self._windows.known, default=loss)
        above = self._windows.see_mean(loss)
        if above is None:
            self.good_step = step
        if not above:
            return ""
        rose = ", ".join(f"{value:.3g}" for value in above)
        return (
            f"the loss has risen to {rose} a word in the windows of {step - before} steps up to step {step}, from "
            f"{lowest:.3g} at the lowest (and {self._windows.first:.3g} in the beginning)"
        )


def _room(first: float, lowest: float) -> float:
    return max(_GIVEN_BACK * (first - lowest), _NOISE * abs(first))


class Guard(Protocol):
    """Looks at each step."""

    def see(self, result: StepResult) -> None:
        """After a step. Collective: every rank calls.

        Raises:
            DivergedError: on every rank, if that ends training.
            RateTooHighError: on every rank, if a trial is over.
        """


class NoGuard:
    """Looks at nothing."""

    def see(self, result: StepResult) -> None:
        """Nothing."""


class LossGuard:
    """Adds up the ranks' losses after the first step and then every 20 steps, and looks at their means.

    Args:
        ranks: who agrees.
        first_step: steps done before.
        say: what is told of a divergence that does not end training; None: it does.
        trial: the step up to which the learning rate is on trial; None: it is not.
    """

    def __init__(
        self, ranks: Ranks, first_step: int, say: Callable[[str], None] | None = None, trial: int | None = None
    ) -> None:
        self._ranks, self._say, self._trial = ranks, say, trial
        self._is_mine = ranks.rank == 0
        self._rise = Rise(first_step)
        self._next = first_step + 1
        self._sums = np.zeros(4)  # loss, words, gradient norms, steps of all ranks

    def see(self, result: StepResult) -> None:
        """See `Guard`."""
        if not result.left_out:
            self._sums += [result.loss_sum, result.target_words, result.grad_norm, 1]
        step = result.global_step
        if step < self._next:
            return
        self._next = step + WINDOW_STEPS
        loss, words, norms, steps = self._ranks.sum(self._sums).tolist()
        self._sums[:] = 0
        if not steps:  # their updates were left out
            return
        wrong = self._rise.see(step, loss / words)
        rate = f"learning rate {result.learning_rate:g}"
        if wrong:
            told = f"{wrong}; gradient norm {norms / steps:.3g}, {rate}. {CAUSES}"
            if self._say is None:
                raise DivergedError(f"training diverged: {told}", self._is_mine, self._rise.good_step, step)
            self._say(f"# Training seems to diverge: {told}.")
        elif self._trial is not None and step >= self._trial:
            told = (
                f"with {rate} training does not diverge up to step {step}, but twice that does: too near to train well"
            )
            raise RateTooHighError(told, self._is_mine, [0, step], halvings=2, trial=None)
