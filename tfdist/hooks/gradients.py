"""Hooks where gradients are made: ``tf.gradients``, and ``gradient`` and the Jacobians of a ``GradientTape``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop, forwardprop
from tensorflow.python.ops import gradients_impl, gradients_util

from tfdist.graph import function_state, marking
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_key
from tfdist.hooks.patches import Outermost, Patches
from tfdist.training.eager_step import EagerSteps
from tfdist.training.steps import Steps


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """See the module."""
    _tf_gradients(patches, job)
    _tapes(patches, job, steps.eager)
    _forward(patches, job, steps.eager)


def _tf_gradients(patches: Patches, job: Job) -> None:
    """``tf.gradients`` (v1 and v2), ``compute_gradients`` and ``tf.hessians``, which takes them in a loop:
    tensorflow/python/ops/gradients_util.py, …/gradients_impl.py."""
    outermost = Outermost()

    def helper(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            derivatives = original(ys, xs, *args, **kwargs)
            return marking.marked(xs if isinstance(xs, (list, tuple)) else [xs], derivatives, job, ys)

        return outermost.call(wrapper, lambda: original(ys, xs, *args, **kwargs))

    patches.replace(gradients_util, "_GradientsHelper", helper, ("ys", "xs", "grad_ys"))
    patches.replace_everywhere(gradients_impl, "hessians", helper, ("ys", "xs"))


def _forward(patches: Patches, job: Job, eager: EagerSteps) -> None:
    """Derivatives along a direction: tensorflow/python/eager/forwardprop.py."""

    def made(original: Callable[..., Any], self: Any, primals: Any, *args: Any, **kwargs: Any) -> None:
        self._tfdist_sources = [p for p in tf.nest.flatten(primals) if variable_key(p) is not None]
        original(self, primals, *args, **kwargs)

    def jvp(original: Callable[..., Any], self: Any, primals: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, primals, *args, **kwargs)
        sources = self._tfdist_sources
        if job.switches.alone_depth or not sources:
            return result
        # That of a loss is averaged, not that of each example's output. One variable stands for all.
        derivatives, targets = tf.nest.flatten(result), tf.nest.flatten(primals)
        chosen = [t.shape.rank == 0 or not tf.executing_eagerly() and marking.of_gradients(t) for t in targets]
        variables = [sources[0] if one else None for one in chosen]
        if tf.executing_eagerly():
            new = eager.gradients(variables, derivatives, "derivatives along a direction")
        else:
            new = marking.marked(variables, derivatives, job, primals)
        return tf.nest.pack_sequence_as(result, new)

    patches.replace(forwardprop.ForwardAccumulator, "__init__", made, ("self", "primals", "tangents"))
    patches.replace(forwardprop.ForwardAccumulator, "jvp", jvp, ("self", "primals"))


def _tapes(patches: Patches, job: Job, eager: EagerSteps) -> None:
    """What a tape differentiates, and where it begins: tensorflow/python/eager/backprop.py."""
    outermost = Outermost()

    def enter(original: Callable[..., Any], self: Any) -> Any:
        if tf.executing_eagerly():
            eager.tape_opened(self)
        return original(self)

    def leave(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        if tf.executing_eagerly():
            eager.tape_closed(self)
        original(self, *args, **kwargs)

    def derivative(each: bool) -> Callable[..., Any]:
        def wrapper(
            original: Callable[..., Any], self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
        ) -> Any:
            def hooked() -> Any:
                derivatives = original(self, target, sources, *args, **kwargs)
                if job.switches.alone_depth:
                    function_state.made_alone()
                    return derivatives
                flat = tf.nest.flatten(sources), tf.nest.flatten(derivatives)
                if tf.executing_eagerly():
                    new = eager.of_tape(self, target, *flat, each)
                else:
                    new = marking.marked(*flat, job, target, each)
                return tf.nest.pack_sequence_as(derivatives, new)

            # A Jacobian is made of gradients.
            return outermost.call(hooked, lambda: original(self, target, sources, *args, **kwargs))

        return wrapper

    patches.replace(backprop.GradientTape, "__enter__", enter, ("self",))
    patches.replace(backprop.GradientTape, "__exit__", leave, ("self",))
    patches.replace(backprop.GradientTape, "gradient", derivative(each=False), ("self", "target", "sources"))
    patches.replace(backprop.GradientTape, "jacobian", derivative(each=True), ("self", "target", "sources"))
    patches.replace(backprop.GradientTape, "batch_jacobian", derivative(each=True), ("self", "target", "source"))
