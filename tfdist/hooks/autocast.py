"""Autocast: hooks that compute float32 matrix products and convolutions in half precision, if that is configured.

Everything else stays as in the script: variables, sums, softmax and losses in float32. The products of the backward
pass follow, since the derivative of a cast is a cast. TensorFlow's own rewriting (``auto_mixed_precision``) has no
common switch for sessions and functions, and no float16 on processors.

If the device computes such products, the operands and the result are cast. Otherwise operands and result are rounded,
and the product is computed in float32. A device that adds up in float32 gives the same, but this gains no speed.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_linalg_ops, gen_math_ops, gen_nn_ops
from tensorflow.python.util import _pywrap_util_port  # no public name tells whether oneDNN is on

from tfdist.core.system import processor_flags
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.steps import Steps

_HALF = {"bf16": tf.bfloat16, "fp16": tf.float16}
_BF16_FLAGS = {"avx512_bf16", "amx_bf16"}
# Operands, by the functions of tensorflow/python/ops/gen_*_ops.py and their names in tf.raw_ops.
_PRODUCTS = {
    (gen_math_ops, "mat_mul", "MatMul"): ("a", "b"),
    (gen_math_ops, "batch_mat_mul", "BatchMatMul"): ("x", "y"),
    (gen_math_ops, "batch_mat_mul_v2", "BatchMatMulV2"): ("x", "y"),
    (gen_linalg_ops, "einsum", "Einsum"): ("inputs",),
    (gen_nn_ops, "conv2d", "Conv2D"): ("input", "filter"),
    (gen_nn_ops, "conv3d", "Conv3D"): ("input", "filter"),
    (gen_nn_ops, "conv2d_backprop_input", "Conv2DBackpropInput"): ("filter", "out_backprop"),
    (gen_nn_ops, "conv3d_backprop_input_v2", "Conv3DBackpropInputV2"): ("filter", "out_backprop"),
    (gen_nn_ops, "depthwise_conv2d_native", "DepthwiseConv2dNative"): ("input", "filter"),
}


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    for (module, name, raw), operands in _PRODUCTS.items():
        patches.replace(module, name, _in_half(getattr(module, name), operands, job))
        patches.replace(tf.raw_ops, raw, _in_half(getattr(module, raw), operands, job))


def _in_half(function: Callable[..., Any], operands: tuple[str, ...], job: Job) -> Callable[..., Any]:
    names = tuple(inspect.signature(function).parameters)

    def product(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        half = _HALF.get(job.switches.settings.mixed_precision)
        if half is None:
            return original(*args, **kwargs)
        given = dict(zip(names, args, strict=False)) | kwargs
        own = {name: given[name] for name in operands}
        if not all(map(_is_float32, tf.nest.flatten(own))):
            return original(*args, **kwargs)
        way = _converted if _computes(half) else _rounded
        if way is _rounded:
            job.rounding.found(half.name)
        found = original(**given | tf.nest.map_structure(lambda operand: way(operand, half), own))
        return tf.cast(found, tf.float32) if way is _converted else _rounded(found, half)

    return product


def _is_float32(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and tf.as_dtype(dtype).base_dtype == tf.float32  # a reference variable has another dtype


def _converted(value: Any, half: tf.DType) -> tf.Tensor:
    """Cast a value where it is used. A value without derivatives is cast where it is made: a loop casts it once.

    With derivatives, a cast outside a loop would add up its derivative over the loop's turns in half precision.
    """
    if isinstance(value, tf.Tensor) and not tf.executing_eagerly() and value.op.type == "StopGradient":
        graph, inside = value.graph, value.op._get_control_flow_context()  # tensorflow/python/framework/ops.py
        if inside is None:
            with graph.as_default(), graph.control_dependencies(None):  # this leaves loops and conditions, too
                return tf.cast(value, half)
    return tf.cast(value, half)


def _rounded(value: Any, half: tf.DType) -> tf.Tensor:
    return tf.cast(tf.cast(value, half), tf.float32)


@functools.cache
def _computes(half: tf.DType) -> bool:
    """Return whether a device of this process computes products of this dtype fast."""
    if tf.config.get_visible_devices("GPU"):
        return True
    # Only oneDNN is fast: Eigen converts each number.
    return half == tf.bfloat16 and bool(_BF16_FLAGS & processor_flags()) and bool(_pywrap_util_port.IsMklEnabled())
