"""Dense layers x W + b for tensors of any shape, with a plain kernel or with weight normalisation.

With weight normalisation (Salimans, Kingma 2016, equation 2) each output's weights are w = g v / |v|. The direction v
and the length g are separate variables.
"""

from __future__ import annotations

import math

import tensorflow as tf

from nmt.model.parts.initializers import InitialDistribution

# Names of the two variables of a normalised kernel. Weight decay shrinks the length only.
DIRECTION, LENGTH = "direction", "length"


def glorot(inputs: int, outputs: int) -> InitialDistribution:
    """Return the uniform initial distribution of Glorot and Bengio 2010 (equation 16)."""
    return InitialDistribution("uniform", math.sqrt(6 / (inputs + outputs)))


class Dense:
    """A dense layer. Creates `<name>/kernel` [inputs, outputs] and `<name>/bias` [outputs], which starts at zero.

    Args:
        name: name of the layer in the current variable scope.
        inputs: width of the layer's inputs.
        outputs: width of the layer's outputs.
        start: initial distribution of the kernel; None for `glorot`.
    """

    def __init__(self, name: str, inputs: int, outputs: int, start: InitialDistribution | None = None) -> None:
        v1 = tf.compat.v1
        with v1.variable_scope(name):
            start = glorot(inputs, outputs) if start is None else start
            self._kernel = tf.identity(v1.get_variable("kernel", [inputs, outputs], initializer=start))
            self._bias = tf.identity(v1.get_variable("bias", [outputs], initializer=v1.zeros_initializer()))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[..., inputs] -> [..., outputs]."""
        return dense(x, self._kernel, self._bias)


class NormalizedDense:
    """A dense layer with weight normalisation.

    Creates `<name>/direction` [inputs, outputs], `<name>/length` and `<name>/bias` [outputs].

    Args:
        name: name of the layer in the current variable scope.
        inputs: width of the layer's inputs.
        outputs: width of the layer's outputs.
        deviation: standard deviation of the kernel's elements when training starts.
    """

    def __init__(self, name: str, inputs: int, outputs: int, deviation: float) -> None:
        v1 = tf.compat.v1
        with v1.variable_scope(name):
            start = InitialDistribution("normal", deviation)
            direction = tf.identity(v1.get_variable(DIRECTION, [inputs, outputs], initializer=start))
            whole = v1.constant_initializer(deviation * math.sqrt(inputs))  # the mean length of a direction
            length = tf.identity(v1.get_variable(LENGTH, [outputs], initializer=whole))
            self._bias = tf.identity(v1.get_variable("bias", [outputs], initializer=v1.zeros_initializer()))
            self._kernel = direction * (length * tf.math.rsqrt(tf.reduce_sum(tf.square(direction), 0)))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[..., inputs] -> [..., outputs]."""
        return dense(x, self._kernel, self._bias)


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Return x kernel + bias: [..., inputs], [inputs, outputs], [outputs] -> [..., outputs]."""
    inputs, outputs = kernel.shape
    if x.shape.rank == 2:
        return tf.nn.bias_add(tf.matmul(x, kernel), bias)
    flat = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, inputs]), kernel), bias)
    result = tf.reshape(flat, tf.concat([tf.shape(x)[:-1], [outputs]], 0))
    result.set_shape([*x.shape[:-1], outputs])
    return result
