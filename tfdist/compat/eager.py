"""Eager execution: the eager mode, and gradient tapes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.eager import context, record

# A context that executes eagerly, also inside a graph (tensorflow/python/eager/context.py).
mode: Callable[[], contextlib.AbstractContextManager[None]] = context.eager_mode
# A context in which no tape records (tensorflow/python/eager/record.py).
unrecorded: Callable[[], contextlib.AbstractContextManager[None]] = record.stop_recording
# Records an operation on all tapes (the same file). Its arguments are a type, outputs, inputs, and a function that maps
# the gradients of the outputs to those of the inputs.
record_operation: Callable[..., None] = record.record_operation


def records(tape: tf.GradientTape | tf.autodiff.ForwardAccumulator) -> bool:
    """Return whether a tape is recording (tensorflow/python/eager/backprop.py, .../forwardprop.py)."""
    return bool(tape._recording)
