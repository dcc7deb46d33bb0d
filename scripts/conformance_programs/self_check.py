"""Self check: programs that are wrong on purpose, to test the verdicts."""

import warnings

import tensorflow as tf

from conformance_programs.data import batches
from conformance_programs.eager import tape_and_assign_sub


def self_check_apart(rank, size):
    """The ranks end with different values."""
    found = tape_and_assign_sub(rank, size)
    return {"w": found["w"] + 0.01 * rank}


def self_check_told(rank, size):
    """The ranks end with different values, after a warning.

    Told: the ranks are apart on purpose.
    """
    warnings.warn("the ranks are apart on purpose: mend it", stacklevel=1)
    return self_check_apart(rank, size)


def self_check_untold(rank, size):
    """The ranks end with different values, but the expected warning does not come.

    Told: the ranks are apart on purpose.
    """
    return self_check_apart(rank, size)


def self_check_wrong(rank, size):
    """The ranks end with the same values, which differ from those of one process."""
    found = tape_and_assign_sub(rank, size)
    return {"w": found["w"] * size}


def self_check_differs(rank, size):
    """The ranks' values differ from those of one process for a reason.

    Differs: it is multiplied by the number of ranks.
    """
    return self_check_wrong(rank, size)


def self_check_refused(rank, size):
    """A step compiled by XLA, which tfdist refuses."""
    w = tf.Variable(tf.ones([5, 3]))

    @tf.function(jit_compile=True)
    def train_step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x @ w)
        w.assign_sub(tape.gradient(loss, w))

    train_step(tf.constant(batches(rank, size)[0][0]))
    return {"w": w.numpy()}


def self_check_failed(rank, size):
    """Rank 1 fails, while the other ranks wait for it in an exchange of gradients."""
    if rank == 1:
        raise ValueError("on purpose")
    return tape_and_assign_sub(rank, size)


def self_check_after(rank, size):
    """A correct program after one that has failed; it runs in a new job."""
    return tape_and_assign_sub(rank, size)
