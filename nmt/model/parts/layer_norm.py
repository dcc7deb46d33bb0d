"""Layer normalisation (Ba, Kiros, Hinton 2016, equation 4): mean 0 and variance 1, times gain, plus bias.

With x' = (x - mean) / sqrt(variance + epsilon) of a vector, and g the loss's gradient with respect to gain * x' + bias:

    d x    = (h - mean(h) - x' mean(h x')) / sqrt(variance + epsilon)   with h = g * gain
    d gain = sum(g x'),   d bias = sum(g)
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

EPSILON = 1e-6


class LayerNorm:
    """Layer normalisation. Creates `<name>/gain` and `<name>/bias` [width], which start at one and zero."""

    def __init__(self, name: str, width: int) -> None:
        v1 = tf.compat.v1
        with v1.variable_scope(name):
            self._gain = tf.identity(v1.get_variable("gain", [width], initializer=v1.ones_initializer()))
            self._bias = tf.identity(v1.get_variable("bias", [width], initializer=v1.zeros_initializer()))

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """[..., width] -> [..., width]."""
        return layer_norm(x, self._gain, self._bias)


@tf.custom_gradient
def layer_norm(
    x: tf.Tensor, gain: tf.Tensor, bias: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]]:
    """[..., width], [width], [width] -> [..., width]. TensorFlow's own gradient has three times as many operations."""
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + tf.cast(EPSILON, x.dtype))
    unit = centred * scale

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        over = list(range(x.shape.rank - 1))
        inside = upstream * gain
        share = tf.reduce_mean(inside * unit, -1, keepdims=True)
        of_x = scale * (inside - tf.reduce_mean(inside, -1, keepdims=True) - unit * share)
        return of_x, tf.reduce_sum(upstream * unit, over), tf.reduce_sum(upstream, over)

    return unit * gain + bias, backward
