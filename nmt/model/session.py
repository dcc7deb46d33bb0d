"""TensorFlow sessions: their settings (threads, devices), and the error message when memory does not suffice."""

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
    """Return the ConfigProto of a session.

    Args:
        inter_threads: number of operations that run at the same time; 0 for TensorFlow's choice.
        intra_threads: number of threads of one operation; 0 for TensorFlow's choice.
        log_device_placement: True if TensorFlow logs the device of each operation.
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
    """Turn TensorFlow's errors about a batch's size, raised in the block, into an InputError with a remedy.

    Args:
        work: description of the work for messages, such as "translation".
        source: source ids of the batch, [src_time, batch, ...].
        target: target ids of the batch, [tgt_time, batch]; None in translation.
        options: flags that make batches smaller, for the message.

    Raises:
        InputError: memory does not suffice, there are too many logits, or a sentence is longer than max_positions.
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
