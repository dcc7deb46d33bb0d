"""Learning rates: scaling and warm-up for the larger batch of several ranks.

Source: Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2: linear scaling, and a gradual warm-up that
starts from the rate of one process. The square root keeps the variance of the gradient noise (Krizhevsky, "One weird
trick for parallelizing convolutional neural networks", 2014, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

Rule = Literal["linear", "sqrt"]
_FACTORS = {"linear": float, "sqrt": math.sqrt}


def factor(size: int, rule: Rule, warmup_steps: int) -> float:
    """Return the factor of the learning rate after the warm-up.

    Raises:
      ValueError: the rule is unknown, or the number of steps is negative.
    """
    if rule not in _FACTORS:
        raise ValueError(f"rule={rule!r}; it is one of {', '.join(map(repr, _FACTORS))}")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps={warmup_steps}; it is a number of steps, at least 0")
    return _FACTORS[rule](size)


def warmed(scale: float, step: Any, warmup_steps: float, minimum: Callable[[Any, float], Any] = min) -> Any:
    """Return the factor of the learning rate at a step: 1 at step 0, and ``scale`` after ``warmup_steps``.

    Args:
      scale: factor after the warm-up.
      step: number of the step from 0, as a number, or as a tensor if ``minimum`` takes tensors.
      warmup_steps: number of steps of the warm-up; 0: no warm-up.
      minimum: function that returns the smaller one of two values.
    """
    return 1.0 + (scale - 1.0) * minimum(step / warmup_steps, 1.0) if warmup_steps else scale
