"""Sessions: how they compute (threads, devices), and what is told when memory does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.core.errors import InputError, reason_of
from nmt.model.parts.positions import TOO_LONG
from nmt.model.parts.softmax_cross_entropy import TOO_MANY

v1 = tf.compat.v1


def session_config(inter_threads: int = 0, intra_threads: int = 0, log_device_placement: bool = False) -> Any:
    """The session's settings.

    Args:
        inter_threads: operations at once; 0 for TensorFlow's choice.
        intra_threads: threads of one operation; likewise.
        log_device_placement: whether TensorFlow logs where each operation runs.
    """
    config = v1.ConfigProto(
        allow_soft_placement=True,
        inter_op_parallelism_threads=inter_threads,
        intra_op_parallelism_threads=intra_threads,
        log_device_placement=log_device_placement,
    )
    config.gpu_options.allow_growth = True
    return config


@contextmanager
def memory_for(work: str, source: np.ndarray, target: np.ndarray | None, options: str) -> Iterator[None]:
    """In such a block TensorFlow's lack of memory, of numbers for logits, or of positions becomes the user's error.

    Args:
        work: what is done with the batch.
        source: [src_time, batch, ...].
        target: [tgt_time, batch]; None where there is none yet.
        options: those that make batches smaller.

    Raises:
        InputError: memory does not suffice, there are too many logits, or a sentence is longer than the model's.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if TOO_MANY not in str(error) and TOO_LONG not in str(error):
            raise
        raise InputError(f"{work}: {reason_of(error)}") from error
    except tf.errors.ResourceExhaustedError as error:
        tokens = f"{len(source)} source" + ("" if target is None else f" and {len(target)} target")
        raise InputError(
            f"memory does not suffice for {work} ({reason_of(error)}): {source.shape[1]} sentences on this rank, "
            f"padded to {tokens} tokens. Lower {options}"
        ) from error
