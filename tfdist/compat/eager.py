"""Eager execution: its mode, and its tapes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, record


def mode() -> contextlib.AbstractContextManager[None]:
    """Execute eagerly also where a graph is the default (tensorflow/python/eager/context.py)."""
    manager: contextlib.AbstractContextManager[None] = context.eager_mode()
    return manager


def unrecorded() -> contextlib.AbstractContextManager[None]:
    """No tape records what is done meanwhile (tensorflow/python/eager/record.py)."""
    manager: contextlib.AbstractContextManager[None] = record.stop_recording()
    return manager


def record_operation(
    kind: str, outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], backward: Callable[..., Sequence[Any]]
) -> None:
    """Have the tapes that record take ``outputs`` for made of ``inputs`` (tensorflow/python/eager/record.py).

    Args:
      kind: of the operation.
      outputs: of it.
      inputs: of it.
      backward: of the derivatives with respect to each output, those with respect to each input.
    """
    record.record_operation(kind, outputs, inputs, backward)


def records(tape: tf.GradientTape) -> bool:
    """Whether a tape is recording (tensorflow/python/eager/backprop.py)."""
    return bool(tape._recording)
