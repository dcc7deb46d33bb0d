"""Dense layers: x W + b, for vectors in tensors of any shape; and with a kernel that is normalised.

A normalised kernel (Salimans, Kingma 2016, equation 2) is w = g v / |v| for each number that the layer gives: its
direction is trained apart from its length.
"""

from __future__ import annotations

import math

import tensorflow as tf

from nmt.model.parts.initializers import Draw

# The two variables of a normalised kernel. Weight decay makes the length smaller: the direction has none.
DIRECTION, LENGTH = "direction", "length"


def glorot(inputs: int, outputs: int) -> Draw:
    """Uniform, as Glorot and Bengio 2010 have it (equation 16)."""
    return Draw("uniform", math.sqrt(6 / (inputs + outputs)))


class Dense:
    """Creates `<name>/kernel` [inputs, outputs] and `<name>/bias` [outputs], which starts at zero.

    Args:
        name: of the layer, below the current variable scope.
        inputs: width of what it reads.
        outputs: width of what it gives.
        start: how the kernel starts; None for `glorot`.
    """

    def __init__(self, name: str, inputs: int, outputs: int, start: Draw | None = None) -> None:
        v1 = tf.compat.v1
        with v1.variable_scope(name):
            start = glorot(inputs, outputs) if start is None else start
            self._kernel = tf.identity(v1.get_variable("kernel", [inputs, outputs], initializer=start))
            self._bias = tf.identity(v1.get_variable("bias", [outputs], initializer=v1.zeros_initializer()))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[..., inputs] -> [..., outputs]."""
        return dense(x, self._kernel, self._bias)


class NormalizedDense:
    """Creates `<name>/direction` [inputs, outputs], `<name>/length` and `<name>/bias` [outputs].

    Args:
        name: of the layer, below the current variable scope.
        inputs: width of what it reads.
        outputs: width of what it gives.
        deviation: of the kernel's numbers when training starts.
    """

    def __init__(self, name: str, inputs: int, outputs: int, deviation: float) -> None:
        v1 = tf.compat.v1
        with v1.variable_scope(name):
            start = Draw("normal", deviation)
            direction = tf.identity(v1.get_variable(DIRECTION, [inputs, outputs], initializer=start))
            whole = v1.constant_initializer(deviation * math.sqrt(inputs))  # the direction's, on average
            length = tf.identity(v1.get_variable(LENGTH, [outputs], initializer=whole))
            self._bias = tf.identity(v1.get_variable("bias", [outputs], initializer=v1.zeros_initializer()))
            self._kernel = direction * (length * tf.math.rsqrt(tf.reduce_sum(tf.square(direction), 0)))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[..., inputs] -> [..., outputs]."""
        return dense(x, self._kernel, self._bias)


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """x kernel + bias: [..., inputs], [inputs, outputs], [outputs] -> [..., outputs]."""
    inputs, outputs = kernel.shape
    if x.shape.rank == 2:
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)
    flat = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, inputs]), kernel), bias)
    result = tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [outputs]], 0))
    result.set_shape([*x.shape[:-1], outputs])
    return result
