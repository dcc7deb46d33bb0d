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
from typing import ClassVar, NamedTuple, Protocol

_LARGEST_HALF = 65504.0  # largest float16
_BACKOFF_UPDATES = 2000
_MOST = 2.0**24  # larger is of no use in half precision; in float32 the scale would grow until it overflows
_BACKOFF_LEAST = 1.0
_WINDOW_BATCHES = 2.0**14
_WINDOW_FLOOR = 1e-4
_FAST, _SLOW = 0.99, 0.999
_DEVIATIONS = 3.09  # standard deviations; a normal distribution exceeds them with a probability of 0.001
_LOGMAX_LIMITS = 1.0, 2.0**14


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


class LossScale(Protocol):
    """Kind of loss scale."""

    @property
    def first(self) -> float:
        """Scale of the first loss."""

    @property
    def kind(self) -> float:
        """Number that identifies the kind; for a constant, the constant."""

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """Return the state after an update.

        Args:
          state: state before the update, in which ``counted`` has counted this update.
          largest: largest absolute value in all averaged gradients, unscaled; infinite if a value is not finite.

        Raises:
          FloatingPointError: no scale is small enough.
        """


@dataclass(frozen=True)
class Constant:
    """A scale that never changes."""

    first: float

    @property
    def kind(self) -> float:
        """See ``LossScale``."""
        return self.first

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """See ``LossScale``."""
        return state


@dataclass(frozen=True)
class Backoff:
    """A scale that an overflow halves."""

    kind: ClassVar[float] = -1.0
    first: float = 2.0**14

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """See ``LossScale``."""
        if not math.isfinite(largest):
            return state._replace(scale=max(state.scale / 2, _BACKOFF_LEAST))
        if state.good % _BACKOFF_UPDATES == 0:
            return state._replace(scale=min(state.scale * 2, _MOST))
        return state


@dataclass(frozen=True)
class Window:
    """A scale that overflows halve, and that doubles after fewer updates if there are more ranks.

    Attributes:
      batches: number of batches in an update, of all ranks together.
      tolerance: share of updates with an overflow below which the scale does not change.
    """

    kind: ClassVar[float] = -2.0
    batches: int
    tolerance: float = 0.0
    first: float = 2.0**7

    def next(self, state: LossScaleState, largest: float) -> LossScaleState:
        """See ``LossScale``."""
        if math.isfinite(largest):
            if state.good % max(1, int(_WINDOW_BATCHES / self.batches)) == 0:
                return state._replace(scale=min(state.scale * 2, _MOST), since=0)
            return state
        if state.overflows / state.since < self.tolerance:
            return state
        if state.scale / 2 < _WINDOW_FLOOR:
            raise FloatingPointError(
                f"gradients overflow with a loss scale of {state.scale:g} still: training has diverged, or the data "
                "are not numbers. Lower the learning rate, clip, or warm up over more steps"
            )
        return state._replace(scale=state.scale / 2, since=0, overflows=0)


@dataclass(frozen=True)
class LogMax:
    """A scale from the distribution of the largest gradient, so that one update in a thousand overflows."""

    kind: ClassVar[float] = -3.0
    first: float = 1.0

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
    return {one.kind: name for name, one in (("backoff", Backoff), ("window", Window), ("logmax", LogMax))}.get(
        kind, f"{kind:g}"
    )


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
      tolerance: see ``Window``.
    """
    if name == "window":
        return Window(batches, tolerance)
    if name == "backoff":
        return Backoff()
    return LogMax() if name == "logmax" else Constant(float(name))
