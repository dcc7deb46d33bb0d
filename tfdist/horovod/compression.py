"""Compression: what tensors are made of before they travel, and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """Both ways; subclasses may be a script's own."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The tensor that travels, and what ``decompress`` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """The result, as the tensor was."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """As it is."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """See ``Compressor``."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """See ``Compressor``."""
        return tensor


class _Narrow(Compressor):
    """Floating-point tensors in a narrower dtype; numbers that do not fit into it become infinite."""

    dtype: tf.DType

    @classmethod
    def compress(cls, tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:  # type: ignore[override]
        """See ``Compressor``."""
        narrows = tensor.dtype.is_floating and tensor.dtype.size > cls.dtype.size
        return (tf.cast(tensor, cls.dtype) if narrows else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """See ``Compressor``."""
        return tf.cast(tensor, ctx) if tensor.dtype != ctx else tensor


class FP16Compressor(_Narrow):
    """float16."""

    dtype = tf.float16


class BF16Compressor(_Narrow):
    """bfloat16: the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """What can be given as ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
