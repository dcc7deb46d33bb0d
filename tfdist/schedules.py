"""Learning rate schedules: pure functions of the step, for graphs of sessions, Keras and plain numbers.

::

    rate = tfdist.schedules.noam(model_size=512, warmup_steps=4000)
    keras.optimizers.Adam(rate)                                                        # Keras 3
    v1.train.AdamOptimizer(rate(v1.train.get_or_create_global_step()))                 # a session's graph
    rate(100)                                                                          # a float

A step t counts from 0, as ``global_step`` and ``optimizer.iterations`` do before the first update. Each function below
returns a ``Schedule``; its docstring has the formula. The functions check their arguments (``ValueError``). A saved
model contains the arguments. Import ``tfdist.keras`` before you load such a model. Schedules that Keras has (steps,
exponential, polynomial, cosine) are taken from ``keras.optimizers.schedules``, also as an argument of ``scaled`` and
``warmup``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf

from tfdist.start import process
from tfdist.updates.learning_rate import Rule, factor, warmed

# Function (step, module) -> rate, float64. The module has the functions of NumPy: it is NumPy or TensorFlow.
Formula = Callable[[Any, Any], Any]
Course = Literal["linear", "exponential"]


@keras.saving.register_keras_serializable("tfdist")
class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Learning rate as a function of the step; made by the functions of this module.

    Args:
      function: name of the function that made it.
      arguments: arguments of that function.
      formula: function (step, module) -> rate.

    Example:
      >>> rate = tfdist.schedules.noam(model_size=4, warmup_steps=4)
      >>> rate
      noam(model_size=4, warmup_steps=4, factor=1.0)
      >>> round(rate(3), 6)
      0.25
    """

    def __init__(self, function: str, arguments: dict[str, Any], formula: Formula) -> None:
        super().__init__()
        self._function, self._arguments, self.formula = function, arguments, formula

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step.

        Args:
          step: step from 0: a number, a NumPy array, or a tensor or variable of TensorFlow or Keras.

        Returns:
          A float for a number, a float64 array for an array, else a float32 tensor; with the shape of ``step``.
        """
        if isinstance(step, int | float | np.generic | np.ndarray):
            # Single numbers become arrays, too: NumPy rounds the power of a number and of an array differently.
            steps = np.atleast_1d(np.asarray(step, np.float64))
            rate = np.broadcast_to(self.formula(steps, np), steps.shape)
            return rate.copy() if np.ndim(step) else float(rate[0])
        steps = tf.cast(tf.convert_to_tensor(step), tf.float64)
        return tf.broadcast_to(tf.cast(self.formula(steps, tf), tf.float32), tf.shape(steps))

    def __repr__(self) -> str:
        """Return the call that makes this schedule."""
        return f"{self._function}({', '.join(f'{name}={value!r}' for name, value in self._arguments.items())})"

    def get_config(self) -> dict[str, Any]:
        """Return the function and its arguments, for saved models."""
        return {"function": self._function, "arguments": dict(self._arguments)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Schedule:
        """Make a schedule from a result of ``get_config``, also after it was read from a file."""
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


def inverse_polynomial(
    learning_rate: float, decay_steps: float, end_learning_rate: float, power: float = 1.0
) -> Schedule:
    """``learning_rate / (1 + c * min(t / decay_steps, 1)) ** power``; from ``decay_steps`` on ``end_learning_rate``.

    c = (learning_rate / end_learning_rate) ** (1 / power) - 1. Source: Kuchaiev et al. 2018, OpenSeq2Seq. There the
    rate continues to fall after ``decay_steps``.

    Raises:
      ValueError: a rate, ``decay_steps`` or ``power`` that is not more than 0.

    Example:
      >>> rate = tfdist.schedules.inverse_polynomial(0.4, decay_steps=10, end_learning_rate=0.1)
      >>> round(rate(10), 6)
      0.1
    """
    _positive(learning_rate=learning_rate, end_learning_rate=end_learning_rate, decay_steps=decay_steps, power=power)
    growth = (learning_rate / end_learning_rate) ** (1.0 / power) - 1.0

    def formula(t: Any, of: Any) -> Any:
        return learning_rate / (1.0 + growth * of.minimum(t / decay_steps, 1.0)) ** power

    arguments = {"learning_rate": learning_rate, "decay_steps": decay_steps}
    return Schedule("inverse_polynomial", arguments | {"end_learning_rate": end_learning_rate, "power": power}, formula)


def noam(model_size: float, warmup_steps: float, factor: float = 1.0) -> Schedule:
    """``factor * model_size ** -0.5 * min(s ** -0.5, s * warmup_steps ** -1.5)`` with s = t + 1.

    A linear warm-up, then a decay with the inverse square root of the step. The peak, at the end of the warm-up, is
    ``factor * (model_size * warmup_steps) ** -0.5``. Source: Vaswani et al., "Attention Is All You Need" (2017), eq. 3,
    where steps count from 1.

    Raises:
      ValueError: a negative ``factor``, or ``model_size`` or ``warmup_steps`` that is not more than 0.

    Example:
      >>> rate = tfdist.schedules.noam(model_size=4, warmup_steps=4)
      >>> round(rate(3), 6)
      0.25
    """
    _positive(model_size=model_size, warmup_steps=warmup_steps)
    _not_negative(factor=factor)

    def formula(t: Any, of: Any) -> Any:
        step = t + 1.0
        return factor * model_size**-0.5 * of.minimum(step**-0.5, step * warmup_steps**-1.5)

    return Schedule("noam", {"model_size": model_size, "warmup_steps": warmup_steps, "factor": factor}, formula)


def inverse_sqrt(learning_rate: float, warmup_steps: float, start: float = 0.0) -> Schedule:
    """``start + (learning_rate - start) * s / warmup_steps`` up to ``warmup_steps``, then ``learning_rate *
    (warmup_steps / s) ** 0.5``, with s = t + 1.

    The shape of ``noam``, with ``learning_rate`` as the peak, as in fairseq.

    Raises:
      ValueError: a negative rate or ``start``, or ``warmup_steps`` that is not more than 0.

    Example:
      >>> rate = tfdist.schedules.inverse_sqrt(0.1, warmup_steps=4)
      >>> round(rate(3), 6)
      0.1
    """
    _not_negative(learning_rate=learning_rate, start=start)
    _positive(warmup_steps=warmup_steps)

    def formula(t: Any, of: Any) -> Any:
        share = (t + 1.0) / warmup_steps
        return of.where(share < 1.0, start + (learning_rate - start) * share, learning_rate * share**-0.5)

    arguments = {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "start": start}
    return Schedule("inverse_sqrt", arguments, formula)


def warmup(learning_rate: Any, warmup_steps: float, start: float = 0.0, course: Course = "linear") -> Schedule:
    """Return the rate times a factor that grows from ``start`` to 1 over ``warmup_steps``.

    ``linear``: ``start + (1 - start) * t / warmup_steps`` (Goyal et al. 2017, section 2.2). ``exponential``:
    ``start ** (1 - t / warmup_steps)`` (Tensor2Tensor, where ``start`` is 0.01).

    Args:
      learning_rate: number, or a schedule of this module or of Keras.
      warmup_steps: number of steps until the factor is 1.
      start: factor at step 0.
      course: ``linear`` or ``exponential``.

    Raises:
      ValueError: an unknown course, ``warmup_steps`` that is not more than 0, or a negative ``start``. With
        ``exponential``, ``start`` must be more than 0.

    Example:
      >>> rate = tfdist.schedules.warmup(0.2, warmup_steps=10)
      >>> round(rate(5), 6)
      0.1
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
    """Return the rate for the batch of all ranks: ``learning_rate * (1 + (f - 1) * min(t / warmup_steps, 1))``.

    f is the number of ranks or its square root. Without a warm-up f is the factor from the first step on. Source: Goyal
    et al., "Accurate, Large Minibatch SGD" (2017), section 2.2.

    Args:
      learning_rate: rate for one process: a number, or a schedule of this module or of Keras.
      rule: ``linear``: f is the number of ranks; ``sqrt``: its square root.
      warmup_steps: number of steps until the factor is f; 0 for no warm-up.
      ranks: number of ranks; None: the ranks of this job. A saved model keeps the number it was trained with.

    Raises:
      ValueError: an unknown rule, a negative number of steps, or less than one rank.

    Example:
      >>> rate = tfdist.schedules.scaled(0.1, warmup_steps=100)
      >>> rate(0)
      0.1
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
    """Return the rate of a step, float64, from a number or a schedule."""
    if isinstance(learning_rate, Schedule):
        return learning_rate.formula(t, of)
    if isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        rate = learning_rate(tf.cast(t, tf.float32))  # Keras's schedules accept no float64
        return tf.cast(rate, tf.float64) if of is tf else np.asarray(rate, np.float64)
    return learning_rate


_FUNCTIONS: dict[str, Callable[..., Schedule]] = {
    function.__name__: function for function in (inverse_polynomial, noam, inverse_sqrt, warmup, scaled)
}

__all__ = ["Schedule", *_FUNCTIONS]
