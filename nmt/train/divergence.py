"""Divergence guard: detects a rising loss, and warns, stops training, or goes back with a lower learning rate.

The guard compares mean losses per word over windows of steps. Training has diverged if the loss rises, for some windows
in succession, by a quarter of its fall since the first step. If a twentieth of the first loss is more than this
quarter, that is the limit. This measure depends neither on the loss's unit nor on its final value. A loss that is not
finite counts as divergence at once.

A run that goes back to a checkpoint halves its learning rate. A rate that diverges early in training never worked. The
first halved rate that works is still at the edge of divergence. Its loss falls as fast as with a good rate for some
hundred steps, and then no further. So the run restarts from the beginning with a halved rate, which is only on trial.
The trial lasts as many steps as led to the divergence, but at least a hundred. If it does not diverge, the run restarts
again with a quarter of the trial's rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from nmt.core.ranks import CollectiveError, Ranks
from nmt.train.step import StepResult
from tfdist.extend import WINDOW_STEPS, Windows

_BEGINNING_STEPS = 500
_TRIAL_STEPS = 100  # least length of a trial
_GIVEN_BACK = 0.25  # share of the fall of the loss
_NOISE = 0.05  # share of the first loss
CAUSES = (
    "usual causes: a learning rate that is too high for this batch and these ranks, --max_gradient_norm too high, "
    "wrong sentence pairs. Lower --learning_rate, or raise --warmup_steps"
)


class RateTooHighError(CollectiveError):
    """Training must go back to a checkpoint and lower its learning rate; raised on every rank.

    Attributes:
        back_to: steps; the newest checkpoint up to the first step is restored, or if none is left, up to the second.
        halvings: how often the learning rate is halved.
        trial: the last step of the lower rate's trial; None for no trial.
    """

    def __init__(self, message: str, is_mine: bool, back_to: Sequence[int], halvings: int, trial: int | None) -> None:
        super().__init__(message, is_mine)
        self.back_to, self.halvings, self.trial = back_to, halvings, trial


class DivergedError(RateTooHighError):
    """Training has diverged.

    Args:
        good_step: the last step after which training had not diverged.
        step: number of steps done.
    """

    def __init__(self, message: str, is_mine: bool, good_step: int, step: int) -> None:
        if step > _BEGINNING_STEPS:
            super().__init__(message, is_mine, [good_step], 1, None)
        else:
            super().__init__(message, is_mine, [0, good_step], 1, max(_TRIAL_STEPS, step))


class Rise:
    """Detector of a rising loss.

    Args:
        first_step: number of steps done before.
    """

    def __init__(self, first_step: int = 0) -> None:
        self.good_step = first_step
        self._step = first_step
        self._windows = Windows(lambda first, known: min(known) + _room(first, min(known)))

    def see(self, step: int, loss: float) -> str:
        """Check the loss of a window; return a description of the divergence, or "".

        Args:
            step: the last step of the window.
            loss: mean loss per word of the window.
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
            f"the loss per word has risen to {rose} in the windows of {step - before} steps up to step {step} "
            f"(lowest: {lowest:.3g}, first: {self._windows.first:.3g})"
        )


def _room(first: float, lowest: float) -> float:
    return max(_GIVEN_BACK * (first - lowest), _NOISE * abs(first))


class Guard:
    """Checks the result of each step for divergence. This class checks nothing."""

    def see(self, result: StepResult) -> None:
        """Check the result of a step. Collective: every rank calls.

        Raises:
            DivergedError: on every rank, if training has diverged and must end.
            RateTooHighError: on every rank, if a trial is over.
        """


class LossGuard(Guard):
    """Guard that sums the losses of all ranks after the first step and then every 20 steps, and checks the mean.

    Args:
        ranks: the ranks that train.
        first_step: number of steps done before.
        say: function that logs a divergence; None: a divergence raises `DivergedError`.
        trial: the last step of the learning rate's trial; None for no trial.
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
        if not steps:  # all updates were skipped for overflow
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
                f"with {rate} training does not diverge up to step {step}, but with twice that rate it does: too near "
                "to train well"
            )
            raise RateTooHighError(told, self._is_mine, [0, step], halvings=2, trial=None)
