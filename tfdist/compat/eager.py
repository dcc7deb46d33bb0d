"""Eager execution: the eager mode, and gradient tapes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, record


def mode() -> contextlib.AbstractContextManager[None]:
    """Return a context that executes eagerly, also inside a graph (tensorflow/python/eager/context.py)."""
    manager: contextlib.AbstractContextManager[None] = context.eager_mode()
    return manager


def unrecorded() -> contextlib.AbstractContextManager[None]:
    """Return a context in which no tape records (tensorflow/python/eager/record.py)."""
    manager: contextlib.AbstractContextManager[None] = record.stop_recording()
    return manager


def record_operation(
    kind: str, outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], backward: Callable[..., Sequence[Any]]
) -> None:
    """Record an operation that computes ``outputs`` from ``inputs`` on all tapes (tensorflow/python/eager/record.py).

    Args:
      kind: type of the operation.
      outputs: output tensors.
      inputs: input tensors.
      backward: function that maps the gradients of the outputs to the gradients of the inputs.
    """
    record.record_operation(kind, outputs, inputs, backward)


def records(tape: tf.GradientTape | tf.autodiff.ForwardAccumulator) -> bool:
    """Return whether a tape is recording (tensorflow/python/eager/backprop.py, .../forwardprop.py)."""
    return bool(tape._recording)
