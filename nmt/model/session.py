"""Sessions: how they compute (precision, threads, devices), and what is told when memory does not suffice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.core.errors import InputError, reason_of

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


def multiplies_in_bfloat16(config: Any) -> bool:
    """Whether sessions of these settings do so here: some products of a graph that is rewritten have that type.

    TensorFlow rewrites only for processors whose instructions its oneDNN has products for, and only with oneDNN on; it
    says nothing where it does not, and no list of instructions that one could ask is its own.
    """
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        values = v1.placeholder(tf.float32, [64, 64])
        product = values
        for _ in range(3):  # TensorFlow leaves smaller graphs alone
            product = tf.tanh(tf.matmul(product, values))
        about, options = v1.RunMetadata(), v1.RunOptions(output_partition_graphs=True)
        session.run(product, {values: np.ones([64, 64], np.float32)}, options=options, run_metadata=about)
    nodes = [node for graph in about.partition_graphs for node in graph.node if "MatMul" in node.op]
    return any(node.attr["T"].type == tf.bfloat16.as_datatype_enum for node in nodes)


def has_bfloat16_instructions() -> bool:
    """Whether this processor multiplies in bfloat16 itself; where TensorFlow does so without, it takes longer.

    A training step of `--preset=small` on a Zen 3: 0.68 s by oneDNN in bfloat16, 0.25 s in float32.
    """
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return True  # (nobody knows)
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})  # (the last is Arm's)


@contextmanager
def memory_for(work: str, source: np.ndarray, target: np.ndarray | None, options: str) -> Iterator[None]:
    """In such a block TensorFlow's lack of memory becomes an error that names the batch.

    Args:
        work: what is done with the batch.
        source: [src_time, batch, ...].
        target: [tgt_time, batch]; None where there is none yet.
        options: those that make batches smaller.

    Raises:
        InputError: memory does not suffice.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        tokens = f"{len(source)} source" + ("" if target is None else f" and {len(target)} target")
        raise InputError(
            f"memory does not suffice for {work} ({reason_of(error)}): {source.shape[1]} sentences on this rank, "
            f"padded to {tokens} tokens. Lower {options}"
        ) from error
