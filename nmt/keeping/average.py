"""Checkpoint averaging: the mean of several checkpoints' weights, as a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from nmt.keeping.checkpoint import reading


def mean_values(paths: Sequence[str]) -> dict[str, np.ndarray]:
    """The mean of each variable over checkpoints, in float64; of integers, such as the step, the last value.

    Raises:
        InputError: a checkpoint is damaged.
    """
    readers = {}
    for path in paths:
        with reading(path):
            readers[path] = tf.train.load_checkpoint(path)
    means = {}
    for name in readers[paths[-1]].get_variable_to_shape_map():
        with reading(paths[-1]):
            last = np.asarray(readers[paths[-1]].get_tensor(name))
        if last.dtype.kind != "f":
            means[name] = last
            continue
        total = np.zeros(last.shape, np.float64)
        for path, reader in readers.items():
            with reading(path):
                total += reader.get_tensor(name)
        means[name] = (total / len(readers)).astype(last.dtype)
    return means


def write_values(path: Path, values: dict[str, np.ndarray]) -> None:
    """A checkpoint of these variables, as `tf.compat.v1.train.Saver` writes it."""
    names = sorted(values)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        places = [tf.compat.v1.placeholder(values[name].dtype, values[name].shape) for name in names]
        save = tf.raw_ops.SaveV2(
            prefix=os.fspath(path), tensor_names=names, shape_and_slices=[""] * len(names), tensors=places
        )
        session.run(save, dict(zip(places, (values[name] for name in names), strict=True)))
