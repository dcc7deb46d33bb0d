"""Programs that are wrong on purpose: what the verdicts are good for."""

import numpy as np
import tensorflow as tf

from conformance_programs.data import batches
from conformance_programs.eager import tape_and_assign_sub


def self_check_apart(rank, size):
    """The ranks end with different values."""
    found = tape_and_assign_sub(rank, size)
    return {"w": found["w"] + 0.01 * rank}


def self_check_wrong(rank, size):
    """The ranks end with the same values, which are not those of one process."""
    found = tape_and_assign_sub(rank, size)
    return {"w": found["w"] * size}


def self_check_differs(rank, size):
    """The same, with a reason.

    Differs: it is multiplied by the number of ranks.
    """
    return self_check_wrong(rank, size)


def self_check_hang(rank, size):
    """Rank 0 opens a tape that no other rank opens."""
    w = tf.Variable(tf.ones([5, 3]))
    if rank == 0:
        x, _, _ = batches(rank, size)[0]
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(x @ w)
        w.assign_sub(tape.gradient(loss, w))
    return {"w": w.numpy()}


def self_check_error(rank, size):
    """An error on one rank."""
    if rank == 1:
        raise ValueError("on purpose")
    return {"w": np.zeros(1)}
