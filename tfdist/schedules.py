"""Learning rate schedules: pure functions of the step, for sessions' graphs, Keras and plain numbers alike.

::

    rate = tfdist.schedules.noam(model_size=512, warmup_steps=4000)
    keras.optimizers.Adam(rate)                                                        # Keras 3
    v1.train.AdamOptimizer(rate(v1.train.get_or_create_global_step()))                 # a session's graph
    rate(100)                                                                          # a float

A step t counts from 0, as ``global_step`` and ``optimizer.iterations`` do before the first update. Each function below
makes a ``Schedule``, and says its formula. Their settings are checked when they are made (``ValueError``), and kept in
a saved model, which needs ``import tfdist.keras`` before it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfdist.core.learning_rate import Rule, factor, warmed
from tfdist.start import process

# The rate of a step (float64), by a module that has the functions of NumPy: NumPy, or TensorFlow.
Formula = Callable[[Any, Any], Any]
Course = Literal["linear", "exponential"]


@keras.saving.register_keras_serializable("tfdist")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A learning rate as a function of the step; made by the functions of this module.

    Args:
      function: the name of the one that made it.
      arguments: what that was given.
      formula: the rate of a step.
    """

    def __init__(self, function: str, arguments: dict[str, Any], formula: Formula) -> None:
        super().__init__()
        self._function, self._arguments, self.formula = function, arguments, formula

    def __call__(self, step: Any) -> Any:
        """The rate of a step.

        Args:
          step: from 0; a number or a NumPy array of them, or a tensor or variable of TensorFlow's or Keras's.

        Returns:
          A float, or an array of float64; of a tensor or variable a float32 tensor of its shape.
        """
        if isinstance(step, int | float | np.generic | np.ndarray):
            # As arrays, a single number, too: NumPy's power of numbers rounds otherwise than that of arrays.
            steps = np.atleast_1d(np.asarray(step, np.float64))
            rate = np.broadcast_to(self.formula(steps, np), steps.shape)
            return rate.copy() if np.ndim(step) else float(rate[0])
        steps = tf.cast(tf.convert_to_tensor(step), tf.float64)
        return tf.broadcast_to(tf.cast(self.formula(steps, tf), tf.float32), tf.shape(steps))

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"{self._function}({', '.join(f'{name}={value!r}' for name, value in self._arguments.items())})"

    def get_config(self) -> dict[str, Any]:
        """For saved models."""
        return {"function": self._function, "arguments": dict(self._arguments)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Schedule:
        """What ``get_config`` has described, as it is or read from a file."""
        arguments = dict(config["arguments"])
        if isinstance(arguments.get("learning_rate"), dict):
            arguments["learning_rate"] = keras.saving.deserialize_keras_object(arguments["learning_rate"])
        return _FUNCTIONS[config["function"]](**arguments)


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name}={value!r}; it is at least 0, and finite")


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r}; it is more than 0, and finite")


def fixed(learning_rate: float) -> Schedule:
    """The same rate in every step.

    Raises:
      ValueError: a negative rate.
    """
    _not_negative(learning_rate=learning_rate)
    return Schedule("fixed", {"learning_rate": learning_rate}, lambda t, of: learning_rate)


def piecewise(boundaries: Sequence[float], learning_rates: Sequence[float]) -> Schedule:
    """``learning_rates[k]`` after ``boundaries[k - 1]`` and up to ``boundaries[k]``, that step included.

    So counts ``tf.compat.v1.train.piecewise_constant`` too.

    Args:
      boundaries: steps, each more than the one before.
      learning_rates: one more than ``boundaries``.

    Raises:
      ValueError: other numbers of them, boundaries in another order, or a negative rate.
    """
    boundaries, learning_rates = list(boundaries), list(learning_rates)
    if len(learning_rates) != len(boundaries) + 1:
        raise ValueError(
            f"{len(boundaries)} boundaries and {len(learning_rates)} learning_rates; there is one more of the latter"
        )
    if any(later <= earlier for earlier, later in zip(boundaries, boundaries[1:], strict=False)):
        raise ValueError(f"boundaries={boundaries!r}; each is more than the one before")
    for rate in learning_rates:
        _not_negative(learning_rates=rate)

    def formula(t: Any, of: Any) -> Any:
        rate = learning_rates[0] + 0.0 * t
        for boundary, after in zip(boundaries, learning_rates[1:], strict=True):
            rate = of.where(t > boundary, after + 0.0 * t, rate)
        return rate

    return Schedule("piecewise", {"boundaries": boundaries, "learning_rates": learning_rates}, formula)


def exponential(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False, begin_step: float = 0
) -> Schedule:
    """``learning_rate * decay_rate ** (max(t - begin_step, 0) / decay_steps)``.

    With ``staircase`` the exponent is rounded down.

    Raises:
      ValueError: a negative rate or ``begin_step``, or ``decay_steps`` or ``decay_rate`` that is not more than 0.
    """
    _not_negative(learning_rate=learning_rate, begin_step=begin_step)
    _positive(decay_steps=decay_steps, decay_rate=decay_rate)

    def formula(t: Any, of: Any) -> Any:
        exponent = of.maximum(t - begin_step, 0.0) / decay_steps
        return learning_rate * decay_rate ** (of.floor(exponent) if staircase else exponent)

    arguments = {"learning_rate": learning_rate, "decay_steps": decay_steps, "decay_rate": decay_rate}
    return Schedule("exponential", arguments | {"staircase": staircase, "begin_step": begin_step}, formula)


def polynomial(
    learning_rate: float, decay_steps: float, end_learning_rate: float = 0.0, power: float = 1.0
) -> Schedule:
    """``end + (learning_rate - end) * (1 - min(t / decay_steps, 1)) ** power``.

    Raises:
      ValueError: a negative rate, or ``decay_steps`` or ``power`` that is not more than 0.
    """
    _not_negative(learning_rate=learning_rate, end_learning_rate=end_learning_rate)
    _positive(decay_steps=decay_steps, power=power)

    def formula(t: Any, of: Any) -> Any:
        left = 1.0 - of.minimum(t / decay_steps, 1.0)
        return end_learning_rate + (learning_rate - end_learning_rate) * left**power

    arguments = {"learning_rate": learning_rate, "decay_steps": decay_steps}
    return Schedule("polynomial", arguments | {"end_learning_rate": end_learning_rate, "power": power}, formula)


def inverse_polynomial(
    learning_rate: float, decay_steps: float, end_learning_rate: float, power: float = 1.0
) -> Schedule:
    """``learning_rate / (1 + c * min(t / decay_steps, 1)) ** power``, with the c by which it gets to its end.

    c = (learning_rate / end_learning_rate) ** (1 / power) - 1. Source: Kuchaiev et al. 2018, OpenSeq2Seq, whose rate
    falls on after ``decay_steps``.

    Raises:
      ValueError: a rate, ``decay_steps`` or ``power`` that is not more than 0.
    """
    _positive(learning_rate=learning_rate, end_learning_rate=end_learning_rate, decay_steps=decay_steps, power=power)
    growth = (learning_rate / end_learning_rate) ** (1.0 / power) - 1.0

    def formula(t: Any, of: Any) -> Any:
        return learning_rate / (1.0 + growth * of.minimum(t / decay_steps, 1.0)) ** power

    arguments = {"learning_rate": learning_rate, "decay_steps": decay_steps}
    return Schedule("inverse_polynomial", arguments | {"end_learning_rate": end_learning_rate, "power": power}, formula)


def cosine(learning_rate: float, decay_steps: float, end_learning_rate: float = 0.0) -> Schedule:
    """``end + (learning_rate - end) * (1 + cos(pi * min(t / decay_steps, 1))) / 2``.

    Source: Loshchilov, Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts" (2017), eq. 5, without restarts.

    Raises:
      ValueError: a negative rate, or ``decay_steps`` that is not more than 0.
    """
    _not_negative(learning_rate=learning_rate, end_learning_rate=end_learning_rate)
    _positive(decay_steps=decay_steps)

    def formula(t: Any, of: Any) -> Any:
        part = 1.0 + of.cos(math.pi * of.minimum(t / decay_steps, 1.0))
        return end_learning_rate + (learning_rate - end_learning_rate) * part / 2.0

    arguments = {"learning_rate": learning_rate, "decay_steps": decay_steps, "end_learning_rate": end_learning_rate}
    return Schedule("cosine", arguments, formula)


def noam(model_size: float, warmup_steps: float, factor: float = 1.0) -> Schedule:
    """``factor * model_size ** -0.5 * min(s ** -0.5, s * warmup_steps ** -1.5)`` with s = t + 1.

    A linear warm-up, then the inverse square root of the step, which is greatest, ``factor * (model_size *
    warmup_steps) ** -0.5``, where the two meet. Source: Vaswani et al., "Attention Is All You Need" (2017), eq. 3,
    whose first step is 1.

    Raises:
      ValueError: a negative ``factor``, or ``model_size`` or ``warmup_steps`` that is not more than 0.
    """
    _positive(model_size=model_size, warmup_steps=warmup_steps)
    _not_negative(factor=factor)

    def formula(t: Any, of: Any) -> Any:
        step = t + 1.0
        return factor * model_size**-0.5 * of.minimum(step**-0.5, step * warmup_steps**-1.5)

    return Schedule("noam", {"model_size": model_size, "warmup_steps": warmup_steps, "factor": factor}, formula)


def inverse_sqrt(learning_rate: float, warmup_steps: float, start: float = 0.0) -> Schedule:
    """``start + (learning_rate - start) * s / warmup_steps`` up to there, then ``learning_rate * (warmup_steps / s) **
    0.5``, with s = t + 1.

    ``noam`` with the rate at its peak, as fairseq states it.

    Raises:
      ValueError: a negative rate or ``start``, or ``warmup_steps`` that is not more than 0.
    """
    _not_negative(learning_rate=learning_rate, start=start)
    _positive(warmup_steps=warmup_steps)

    def formula(t: Any, of: Any) -> Any:
        share = (t + 1.0) / warmup_steps
        return of.where(share < 1.0, start + (learning_rate - start) * share, learning_rate * share**-0.5)

    arguments = {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "start": start}
    return Schedule("inverse_sqrt", arguments, formula)


def warmup(learning_rate: Any, warmup_steps: float, start: float = 0.0, course: Course = "linear") -> Schedule:
    """The rate times what grows from ``start`` to 1 over ``warmup_steps``.

    By equal steps, ``start + (1 - start) * t / warmup_steps`` (Goyal et al. 2017, section 2.2); or by equal factors,
    ``start ** (1 - t / warmup_steps)`` (Tensor2Tensor, whose start is 0.01).

    Args:
      learning_rate: a number, or a schedule of this module or Keras's.
      warmup_steps: after which the rate is itself.
      start: a part of the rate.
      course: ``linear`` or ``exponential``.

    Raises:
      ValueError: an unknown course, ``warmup_steps`` that is not more than 0, or a negative ``start``; by equal factors
        it is more than 0.
    """
    if course not in ("linear", "exponential"):
        raise ValueError(f"course={course!r}; it is 'linear' or 'exponential'")
    _positive(warmup_steps=warmup_steps, **({"start": start} if course == "exponential" else {}))
    _not_negative(start=start)

    def formula(t: Any, of: Any) -> Any:
        share = of.minimum(t / warmup_steps, 1.0)
        grown = start + (1.0 - start) * share if course == "linear" else start ** (1.0 - share)
        return _rate_of(learning_rate, t, of) * grown

    arguments = {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "start": start, "course": course}
    return Schedule("warmup", arguments, formula)


def scaled(learning_rate: Any, rule: Rule = "linear", warmup_steps: int = 0, ranks: int | None = None) -> Schedule:
    """The rate for the batch of all ranks together: ``learning_rate * (1 + (f - 1) * min(t / warmup_steps, 1))``.

    f is the number of ranks or its square root, and without a warm-up the factor from the first step on. Source: Goyal
    et al., "Accurate, Large Minibatch SGD" (2017), section 2.2.

    Args:
      learning_rate: of one process: a number, or a schedule of this module or Keras's.
      rule: ``linear``: f is the number of ranks; ``sqrt``: its square root.
      warmup_steps: after which f is reached.
      ranks: how many; default: those of this job. A saved model keeps the number it was trained with.

    Raises:
      ValueError: an unknown rule, a negative number of steps, or less than one rank.
    """
    ranks = process().job.world.size if ranks is None else ranks
    if ranks < 1:
        raise ValueError(f"ranks={ranks!r}; it is at least 1")
    scale = factor(ranks, rule, warmup_steps)

    def formula(t: Any, of: Any) -> Any:
        return _rate_of(learning_rate, t, of) * warmed(scale, t, warmup_steps, of.minimum)

    arguments = {"learning_rate": learning_rate, "rule": rule, "warmup_steps": warmup_steps, "ranks": ranks}
    return Schedule("scaled", arguments, formula)


def _rate_of(learning_rate: Any, t: Any, of: Any) -> Any:
    """A step's rate by a number or a schedule, float64."""
    if isinstance(learning_rate, Schedule):
        return learning_rate.formula(t, of)
    if isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = learning_rate(tf.cast(t, tf.float32))  # theirs take no other
        return tf.cast(rate, tf.float64) if of is tf else np.asarray(rate, np.float64)
    return learning_rate


_FUNCTIONS: dict[str, Callable[..., Schedule]] = {
    function.__name__: function
    for function in (
        fixed,
        piecewise,
        exponential,
        polynomial,
        inverse_polynomial,
        cosine,
        noam,
        inverse_sqrt,
        warmup,
        scaled,
    )
}

__all__ = ["Schedule", *_FUNCTIONS]
