"""Keras 3's ``fit``: the iterator that yields the batches, and the first epoch
(keras/src/backend/tensorflow/trainer.py, ``TFEpochIterator``; keras/src/trainers/trainer.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def dataset_of(iterator: Any) -> tf.data.Dataset:
    """Return the dataset from which an iterator takes its batches.

    Raises:
      TypeError: a strategy has distributed the dataset.
    """
    dataset = iterator._distributed_dataset
    if not isinstance(dataset, tf.data.Dataset):  # a strategy of one replica has wrapped it
        dataset = iterator.data_adapter.get_tf_dataset()
    if isinstance(dataset, tf.distribute.DistributedDataset):
        raise TypeError("model.fit is given a DistributedDataset: give it the tf.data.Dataset that was distributed")
    return dataset


def take_from(iterator: Any, make: Callable[[], Any]) -> None:
    """Have an iterator take its batches from the result of ``make``, which it calls at the beginning of each epoch."""
    iterator._get_iterator = make


def shorten(iterator: Any, num_batches: int) -> None:
    """Set the number of batches of an epoch. The source of the batches does not change."""
    iterator.data_adapter = _Shorter(iterator.data_adapter, num_batches)
    iterator._num_batches = num_batches


def initial_epoch(model: Any) -> int | None:
    """Return the first epoch as ``BackupAndRestore`` has set it; None: the argument of ``fit`` counts."""
    found: int | None = getattr(model, "_initial_epoch", None)
    return found


def begin_at(model: Any, epoch: int | None) -> None:
    """Set the first epoch; see ``initial_epoch``."""
    model._initial_epoch = epoch


class _Shorter:
    """A data adapter that reports fewer batches."""

    def __init__(self, adapter: Any, num_batches: int) -> None:
        self._adapter = adapter
        self.num_batches = num_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)
