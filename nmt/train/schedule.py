"""Learning rate schedule: the rate as a function of the step, with a warm-up and a decay.

Warm-up over W steps, for step < W:

    t2t     lr = rate * 0.01 ** ((W - step) / W)                    from 1 % of the rate, exponentially
    linear  lr = start + (rate - start) * step / W                  (Goyal et al. 2017, section 2.2)

Decay multiplies the rate by 0.5 ** floor((step - S) / T) from step S on. With N training steps in all:

    luong5    S = floor(N / 2)      T = floor((N - S) / 5)
    luong10   S = floor(N / 2)      T = floor((N - S) / 10)
    luong234  S = floor(2 N / 3)    T = floor((N - S) / 4)

Inverse square root of the step after a linear warm-up (Vaswani et al. 2017, equation 3, which counts steps from 1):

    noam          lr = rate * units ** -0.5 * min(s ** -0.5, s * W ** -1.5)    with s = step + 1

The same schedule, given by its peak rate as in fairseq:

    inverse_sqrt  lr = start + (rate - start) * s / W  for s < W,  rate * (W / s) ** 0.5  from there on

With "plateau" the schedule ends with the warm-up; evaluations decide on the decay (`nmt.train.plateau`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import tensorflow as tf

from nmt.options.config import Config
from nmt.options.training_options import INVERSE_SQRT, NOAM
from tfdist import schedules

# scheme -> (share of the training before the decay starts, number of halvings until the end)
_DECAYS = {"luong5": (Fraction(1, 2), 5), "luong10": (Fraction(1, 2), 10), "luong234": (Fraction(2, 3), 4)}


@dataclass(frozen=True)
class Schedule:
    """The learning rate of a whole training.

    Attributes:
        learning_rate: the rate after the warm-up and before the decay; with "noam" the factor of its formula.
        num_train_steps: N, the number of steps of the training.
        warmup_steps: W; 0 for no warm-up.
        warmup_scheme: "t2t" or "linear".
        warmup_start: the rate at step 0 of the warm-up of "linear" or "inverse_sqrt".
        decay_scheme: the option; "" for no decay. "noam" and "inverse_sqrt" include a warm-up of W steps.
        num_units: number of units of the model, for "noam".
    """

    learning_rate: float
    num_train_steps: int
    warmup_steps: int = 0
    warmup_scheme: str = "t2t"
    warmup_start: float = 0.0
    decay_scheme: str = ""
    num_units: int = 1

    @classmethod
    def of(cls, config: Config, size: int, rewinds: int = 0) -> Schedule:
        """Return the schedule for `size` ranks; scaling counts each rank once per accumulated batch.

        The learning rate is halved once for each of the run's `rewinds` (divergence guard).

        A scaled rate rises linearly from the rate of one rank (Goyal et al. 2017, section 2.2). If scaling changes
        nothing, the rate rises from 0, as in the linear warm-up of an unscaled rate: a requested warm-up always takes
        place.
        """
        rate, scaled = config.learning_rate * 0.5**rewinds, config.learning_rate_scaling != "none"
        size *= config.accumulate_steps or 1
        factor = {"none": 1.0, "linear": size, "sqrt": math.sqrt(size)}[config.learning_rate_scaling]
        return cls(
            rate * factor,
            config.num_train_steps,
            config.warmup_steps,
            "linear" if scaled else config.warmup_scheme,
            rate if factor > 1 else 0.0,
            config.decay_scheme,
            config.num_units,
        )

    @property
    def noam_peak(self) -> float:
        """The highest rate of "noam", at the end of its warm-up."""
        return self.learning_rate * (self.num_units * self.warmup_steps) ** -0.5

    def __str__(self) -> str:
        """Return the text that follows the rate in the log: the scheme or the warm-up."""
        if self.decay_scheme == NOAM:
            return f"noam, at most {self.noam_peak:.3g} at step {self.warmup_steps}"
        if self.decay_scheme == INVERSE_SQRT:
            return f"inverse_sqrt, at most that at step {self.warmup_steps}"
        return f"{self.warmup_scheme} warm-up over {self.warmup_steps} steps" if self.warmup_steps else "no warm-up"

    def rate(self, step: tf.Tensor) -> tf.Tensor:
        """Return the learning rate (float32 scalar) of the update after `step` updates (an integer scalar)."""
        return self._course()(step)

    def _course(self) -> schedules.Schedule:
        if self.decay_scheme == NOAM:
            return schedules.noam(self.num_units, self.warmup_steps, self.learning_rate)
        if self.decay_scheme == INVERSE_SQRT:
            return schedules.inverse_sqrt(self.learning_rate, self.warmup_steps, self.warmup_start)
        decayed = schedules.Schedule("decay", {}, self._decayed)
        if not self.warmup_steps:
            return decayed
        if self.warmup_scheme == "linear":
            return schedules.warmup(decayed, self.warmup_steps, self.warmup_start / self.learning_rate)
        return schedules.warmup(decayed, self.warmup_steps, 0.01, "exponential")

    def _decayed(self, step: Any, of: Any) -> Any:
        """Return the rate without a warm-up. `of` is NumPy or TensorFlow, as `step` is of."""
        if self.decay_scheme not in _DECAYS:
            return self.learning_rate
        share, times = _DECAYS[self.decay_scheme]
        start = int(self.num_train_steps * share)
        # A training with fewer steps than halvings would halve every 0 steps.
        every = max(1, (self.num_train_steps - start) // times)
        return self.learning_rate * 0.5 ** of.floor(of.maximum(step - start, 0.0) / every)
