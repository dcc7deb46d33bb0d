"""Compression: conversion of tensors to a smaller dtype for the exchange, and back."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class Compressor:
    """Compression by which nothing changes. Scripts may have subclasses of their own."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the tensor to exchange, and the context for ``decompress``."""
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        """Return the result in the original tensor's dtype."""
        return tensor


class NoneCompressor(Compressor):
    """No compression."""


class _Narrow(Compressor):
    """Casts wider floating-point tensors to a narrower dtype. Numbers beyond its range become infinite."""

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
    """Exchanges float16."""

    dtype = tf.float16


class BF16Compressor(_Narrow):
    """Exchanges bfloat16, which has the range of float32."""

    dtype = tf.bfloat16


class Compression:
    """The choices for an argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
