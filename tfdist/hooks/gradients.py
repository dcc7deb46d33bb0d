"""Hooks where gradients are made: ``tf.gradients`` and ``GradientTape.gradient``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop
from tensorflow.python.ops import gradients_util

from tfdist.graph.job import Job
from tfdist.hooks.patches import Outermost, Patches
from tfdist.training import gradient_rewrite
from tfdist.training.function_step import FunctionSteps
from tfdist.training.steps import Steps


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """See the module."""
    _tf_gradients(patches, job)
    _tapes(patches, job, steps.functions)


def _tf_gradients(patches: Patches, job: Job) -> None:
    """``tf.gradients`` (v1 and v2) and ``compute_gradients``: tensorflow/python/ops/gradients_util.py."""
    outermost = Outermost()

    def helper(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            gradients = original(ys, xs, *args, **kwargs)
            return gradient_rewrite.marked(xs if isinstance(xs, (list, tuple)) else [xs], gradients, job)

        return outermost.call(wrapper, lambda: original(ys, xs, *args, **kwargs))

    patches.replace(gradients_util, "_GradientsHelper", helper, ("ys", "xs", "grad_ys"))


def _tapes(patches: Patches, job: Job, functions: FunctionSteps) -> None:
    """``GradientTape.gradient``, and where a tape begins: tensorflow/python/eager/backprop.py."""

    def enter(original: Callable[..., Any], self: Any) -> Any:
        if tf.executing_eagerly():
            functions.tape_opened()
        return original(self)

    def leave(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        if tf.executing_eagerly():
            functions.tape_closed()
        original(self, *args, **kwargs)

    def gradient(original: Callable[..., Any], self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = original(self, target, sources, *args, **kwargs)
        eagerly = tf.executing_eagerly()
        if job.switches.alone_depth or eagerly and functions.others_record(self):
            return gradients
        flat = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        new = (
            functions.gradients(*flat, "gradients of an eager tape") if eagerly else gradient_rewrite.marked(*flat, job)
        )
        return tf.nest.pack_sequence_as(gradients, new)

    patches.replace(backprop.GradientTape, "__enter__", enter, ("self",))
    patches.replace(backprop.GradientTape, "__exit__", leave, ("self",))
    patches.replace(backprop.GradientTape, "gradient", gradient, ("self", "target", "sources"))
