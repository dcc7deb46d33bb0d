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
from nmt.options.config import Config

v1 = tf.compat.v1


def session_config(config: Config) -> Any:
    """Return the ConfigProto of the sessions of a run."""
    made = v1.ConfigProto(
        allow_soft_placement=True,
        inter_op_parallelism_threads=config.num_inter_threads,
        intra_op_parallelism_threads=config.num_intra_threads,
        log_device_placement=config.log_device_placement,
    )
    made.gpu_options.allow_growth = True
    if not gpus(config):
        made.device_count["GPU"] = 0  # TensorFlow places operations without a device on a GPU otherwise
    return made


def gpus(config: Config) -> int:
    """Return the number of GPUs that the layers are spread over; 0 if this process sees none."""
    return config.num_gpus if tf.config.list_physical_devices("GPU") else 0


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
