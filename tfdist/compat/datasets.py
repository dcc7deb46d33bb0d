"""Datasets: the inputs of a dataset (tensorflow/python/data/ops)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # this module is used before TensorFlow is imported, too
    import tensorflow as tf

# Class of datasets that hold their elements in memory.
_FROM_MEMORY = "_TensorSliceDataset"


def made_of(dataset: tf.data.Dataset) -> Sequence[tf.data.Dataset]:
    """Return the input datasets of a dataset."""
    found: Sequence[tf.data.Dataset] = dataset._inputs()
    return found


def seeds(dataset: tf.data.Dataset) -> list[tuple[int, int]] | None:
    """Return the seeds by which a dataset and its inputs draw or shuffle elements (…/shuffle_op.py, ``_seed``).

    The result is None if one has no seed, or returns elements as soon as they are ready (…/map_op.py).
    """
    import tensorflow as tf

    found = []
    if hasattr(dataset, "_seed2"):  # tensors
        found.append((int(tf.get_static_value(dataset._seed)), int(tf.get_static_value(dataset._seed2))))
    for one in made_of(dataset):
        more = seeds(one)
        if more is None:
            return None
        found += more
    own = (0, 0) in found or getattr(dataset, "_deterministic", "") == "false"
    return None if own or dataset.options().deterministic is False else found


def in_memory(data: Any) -> tuple[tf.Tensor, ...] | None:
    """Return the tensors whose rows are a dataset's elements; None if ``data`` is not such a dataset."""
    return tuple(data._tensors) if type(data).__name__ == _FROM_MEMORY else None
