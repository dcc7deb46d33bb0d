"""Session configuration: precision, threads, devices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

v1 = tf.compat.v1


def session_config(
    precision: str, inter_threads: int = 0, intra_threads: int = 0, log_device_placement: bool = False
) -> Any:
    """The session's settings.

    Args:
        precision: "bfloat16" lets TensorFlow rewrite a graph to multiply in it on the CPU; or "float32".
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
    if precision == "bfloat16":
        rewriter = config.graph_options.rewrite_options
        rewriter.auto_mixed_precision_onednn_bfloat16 = type(rewriter).ON
    return config
