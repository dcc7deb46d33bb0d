"""Decoupled weight decay: weights shrink by themselves, apart from their gradients and these gradients' moments.

Loshchilov, Hutter 2019, algorithm 2, line 12, in step t with the learning rate a_t of its schedule and the decay d:

    w_t = w_{t-1} - a_t (m_t / (sqrt(v_t) + epsilon) + d w_{t-1})

Matrices shrink: kernels and embeddings, these as a whole where a step has gradients of some rows alone. Biases, gains
and an attention's vectors do not. It is done where a gradient is applied, and so as often: a library that applies them
after several batches, or leaves one out that is not finite, need not know of it.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def with_weight_decay(optimizer: Any, decay: float) -> Any:
    """The same kind of optimizer with weight decay.

    Args:
        optimizer: a class of TensorFlow 1 optimizers, whose first argument is the learning rate, a scalar.
        decay: d above; 0 for none.

    Returns:
        a class with the same arguments, variables and names.
    """
    if not decay:
        return optimizer

    class Decaying(optimizer):  # type: ignore[misc]
        """Shrinks a matrix before its gradient is applied."""

        def __init__(self, rate: tf.Tensor, *args: Any, **kwargs: Any) -> None:
            super().__init__(rate, *args, **kwargs)
            self._part = rate * decay

        def _shrunk(self, gradient: tf.Tensor, weights: Any) -> list[Any]:
            if weights.shape.rank < 2:
                return []
            with tf.control_dependencies([gradient]):  # which all that reads the weights has led to
                return [weights.assign_sub(self._part * weights.read_value(), read_value=False)]

        def _resource_apply_dense(self, grad: tf.Tensor, handle: Any) -> Any:
            with tf.control_dependencies(self._shrunk(grad, handle)):
                return super()._resource_apply_dense(grad, handle)

        def _resource_apply_sparse_duplicate_indices(self, grad: tf.Tensor, handle: Any, indices: tf.Tensor) -> Any:
            with tf.control_dependencies(self._shrunk(grad, handle)):
                return super()._resource_apply_sparse_duplicate_indices(grad, handle, indices)

    return Decaying
