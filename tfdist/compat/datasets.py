"""Datasets: what one is made of (tensorflow/python/data/ops)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # asked before TensorFlow is imported, too
    import tensorflow as tf

# What holds its elements in memory.
_FROM_MEMORY = "_TensorSliceDataset"


def made_of(dataset: tf.data.Dataset) -> Sequence[tf.data.Dataset]:
    """The datasets that it is made of."""
    found: Sequence[tf.data.Dataset] = dataset._inputs()
    return found


def in_memory(data: Any) -> tuple[tf.Tensor, ...] | None:
    """The tensors whose rows are its elements; None for what has none."""
    return tuple(data._tensors) if type(data).__name__ == _FROM_MEMORY else None
