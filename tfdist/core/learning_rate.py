"""Learning rates for the larger batch that several ranks make together.

Source: Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2: linear scaling, and a gradual warm-up that
starts from the rate of one process. The square root is the rule that keeps the gradient noise's variance
(Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014, section 5).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

Rule = Literal["linear", "sqrt"]
_FACTORS = {"linear": float, "sqrt": math.sqrt}


def factor(size: int, rule: Rule, warmup_steps: int) -> float:
    """What the rate is multiplied by in the end.

    Raises:
      ValueError: an unknown rule, or a negative number of steps.
    """
    if rule not in _FACTORS:
        raise ValueError(f"rule={rule!r}; it is one of {', '.join(map(repr, _FACTORS))}")
    if warmup_steps < 0:
        raise ValueError(f"warmup_steps={warmup_steps}; it is a number of steps, at least 0")
    return _FACTORS[rule](size)


def warmed(scale: float, step: Any, warmup_steps: int, minimum: Callable[[Any, float], Any] = min) -> Any:
    """What the rate is multiplied by at a step, from 0: 1 at first, and ``scale`` after ``warmup_steps``.

    Args:
      scale: the factor in the end.
      step: a number, or a tensor, whose ``minimum`` is given.
      warmup_steps: 0 for none.
      minimum: of a number like ``step`` and 1.
    """
    return 1.0 + (scale - 1.0) * minimum(step / warmup_steps, 1.0) if warmup_steps else scale


def scaled(learning_rate: Any, size: int, rule: Rule, warmup_steps: int) -> Any:
    """See ``tfdist.scale_learning_rate``."""
    scale = factor(size, rule, warmup_steps)
    if warmup_steps == 0 or size == 1:
        return learning_rate * scale
    import tensorflow as tf

    step = tf.cast(tf.compat.v1.train.get_or_create_global_step(), tf.float32)
    return learning_rate * warmed(scale, step, warmup_steps, tf.minimum)
