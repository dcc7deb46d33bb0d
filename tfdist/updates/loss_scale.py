"""Loss scales: factors of the loss, so that its gradients do not vanish in half precision.

Each kind is a pure function of its state. An update is good if all averaged gradients are finite. Otherwise it
overflowed: it is left out, and most kinds reduce the scale.

    constant    a number, always
    backoff     halved by an overflow, doubled after 2,000 good updates in succession, from 1 to 2^24, at first 2^14
    window      halved by an overflow, if they are more than a share of the updates since the scale last changed;
                doubled after 2^14 / (ranks * steps) good updates in succession, up to 2^24, at first 2^7; below 1e-4
                training ends
    logmax      2^(15 - (mean + 3.09 sigma)), from 1 to 2^14, with mean and sigma of log2 of the largest gradient

Sources: Kuchaiev et al., "OpenSeq2Seq" (2018), section 2.3 (backoff, logmax); Ott et al., "Scaling Neural Machine
Translation" (2018), section 4.2 (window).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

_LARGEST_HALF = 65504.0  # largest float16
_MOST = 2.0**24  # larger is of no use in half precision; in float32 the scale would grow until it overflows
_FAST, _SLOW = 0.99, 0.999
_DEVIATIONS = 3.09  # standard deviations; a normal distribution exceeds them with a probability of 0.001
_LOGMAX_LIMITS = 1.0, 2.0**14
_KINDS = {"backoff": -1.0, "window": -2.0, "logmax": -3.0}


class LossScaleState(NamedTuple):
    """State of a loss scale.

    Attributes:
      scale: scale of the next loss.
      good: number of updates in succession without an overflow.
      updates: number of all updates.
      skipped: number of updates with an overflow.
      since: number of updates since the scale was last changed.
      overflows: number of updates with an overflow since the scale was last halved.
      fast: running sum of log2 of the largest gradient, with the decay 0.99.
      slow: running sum of log2 of the largest gradient, with the decay 0.999.
      square: running sum of the square of log2 of the largest gradient, with the decay 0.999.
      in_succession: number of updates in succession with an overflow, including the last update.
      kind: kind of the scale: see ``LossScale.kind``.
    """

    scale: float
    good: float = 0
    updates: float = 0
    skipped: float = 0
    since: float = 0
    overflows: float = 0
    fast: float = 0
    slow: float = 0
    square: float = 0
    in_succession: float = 0
    kind: float = 0


@dataclass(frozen=True)
class LossScale:
    """Loss scale. The base class is a constant.

    Attributes:
      first: scale of the first loss.
      kind: number that identifies the kind; for a constant, the constant.
      changes: True if the scale may change.
      of_largest: True if the next scale depends on the size of finite gradients.
    """

    first: float
    kind: float
    changes: ClassVar[bool] = False
    of_largest: ClassVar[bool] = False

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """Return the state after an update.

        Args:
          state: state before the update, in which ``counted`` has counted this update.
          largest: largest absolute value in all averaged gradients, unscaled; infinite if a value is not finite.

        Raises:
          FloatingPointError: no scale is small enough.
        """
        return state


@dataclass(frozen=True)
class Halved(LossScale):
    """Scale that overflows halve, and that doubles after good updates in succession.

    Attributes:
      every: number of good updates in succession after which it doubles.
      least: smallest scale.
      ends: True if training ends where a smaller scale is needed.
      tolerance: share of updates with an overflow below which the scale does not change.
    """

    every: int
    least: float
    ends: bool = False
    tolerance: float = 0.0
    changes: ClassVar[bool] = True

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """See ``LossScale``."""
        if math.isfinite(largest):
            if state.good % self.every == 0:
                return state._replace(scale=min(state.scale * 2, _MOST), since=0)
            return state
        if state.overflows / state.since < self.tolerance:
            return state
        if self.ends and state.scale / 2 < self.least:
            raise FloatingPointError(
                f"gradients overflow with a loss scale of {state.scale:g} still: training has diverged, or the data "
                "are not numbers. Lower the learning rate, clip, or warm up over more steps"
            )
        return state._replace(scale=max(state.scale / 2, self.least), since=0, overflows=0)


@dataclass(frozen=True)
class LogMax(LossScale):
    """Scale from the distribution of the largest gradient, so that one update in a thousand overflows."""

    changes: ClassVar[bool] = True
    of_largest: ClassVar[bool] = True

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """See ``LossScale``."""
        before = 1 - _FAST ** (state.updates - 1)
        # Zeros contain no information on the size of gradients: use the mean so far.
        found = math.log2(min(largest, _LARGEST_HALF)) if largest else state.fast / before if before else 0.0
        fast = _FAST * state.fast + (1 - _FAST) * found
        slow = _SLOW * state.slow + (1 - _SLOW) * found
        square = _SLOW * state.square + (1 - _SLOW) * found**2
        mean = fast / (1 - _FAST**state.updates)
        weights = 1 - _SLOW**state.updates
        sigma = math.sqrt(max(0.0, square / weights - (slow / weights) ** 2))
        low, high = _LOGMAX_LIMITS
        exponent = 15 - (mean + _DEVIATIONS * sigma)
        return state._replace(scale=min(max(2.0 ** min(exponent, 100), low), high), fast=fast, slow=slow, square=square)


def named(kind: float) -> str:
    """Return the name of a kind, as in the setting."""
    return next((name for name, number in _KINDS.items() if number == kind), f"{kind:g}")


def counted(state: LossScaleState, largest: float) -> LossScaleState:
    """Return the state with one more update counted."""
    if math.isfinite(largest):
        return state._replace(good=state.good + 1, updates=state.updates + 1, since=state.since + 1, in_succession=0)
    return state._replace(
        good=0,
        updates=state.updates + 1,
        skipped=state.skipped + 1,
        since=state.since + 1,
        overflows=state.overflows + 1,
        in_succession=state.in_succession + 1,
    )


def of(name: str, batches: int, tolerance: float = 0.0) -> LossScale:
    """Return the loss scale that a setting names.

    Args:
      name: ``backoff``, ``window``, ``logmax``, or a number above 0 for a constant.
      batches: number of batches in an update, of all ranks together.
      tolerance: see ``Halved``; for ``window``.
    """
    if name == "backoff":
        return Halved(2.0**14, _KINDS[name], every=2000, least=1.0)
    if name == "window":
        return Halved(2.0**7, _KINDS[name], max(1, int(2.0**14 / batches)), 1e-4, ends=True, tolerance=tolerance)
    return LogMax(1.0, _KINDS[name]) if name == "logmax" else LossScale(float(name), float(name))
