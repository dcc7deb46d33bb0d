"""Hooks where gradients are computed: ``tf.gradients``, a ``GradientTape`` and a ``ForwardAccumulator``."""

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
from tfdist.updates.loss_scaling import LossScaling, loss_scaling_of, seeds, unscaled


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    scaling = loss_scaling_of(steps)
    outermost = Outermost()  # shared: tf.recompute_grad has a tape inside tf.gradients
    _tf_gradients(patches, job, scaling, outermost)
    _tapes(patches, job, steps.eager, scaling, outermost)
    _forward(patches, job, steps.eager)


def _tf_gradients(patches: Patches, job: Job, scaling: LossScaling, outermost: Outermost) -> None:
    """Hook ``tf.gradients`` (v1 and v2), ``compute_gradients``, and ``tf.hessians``, which calls it in a loop:
    tensorflow/python/ops/gradients_util.py, …/gradients_impl.py."""

    def helper(original: Callable[..., Any], ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            if not job.switches.automatic:
                return original(ys, xs, grad_ys, *args, **kwargs)
            targets, variables = _list(ys), _list(xs)
            trained = any(variable_key(x) is not None for x in variables)
            scale = scaling.scale(targets) if trained and kwargs.get("src_graph") is None else None
            if scale is None:
                derivatives = original(ys, xs, grad_ys, *args, **kwargs)
            else:
                given = seeds(scale, targets, None if grad_ys is None else _list(grad_ys))
                derivatives = unscaled(original(targets, xs, given, *args, **kwargs), variables, scale)
            return marking.marked(variables, derivatives, job, ys)

        return outermost.call(wrapper, lambda: original(ys, xs, grad_ys, *args, **kwargs))

    def hessians(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            result = original(ys, xs, *args, **kwargs)
            return marking.marked(_list(xs), result, job, ys) if job.switches.automatic else result

        return outermost.call(wrapper, lambda: original(ys, xs, *args, **kwargs))

    patches.replace(gradients_util, "_GradientsHelper", helper, ("ys", "xs", "grad_ys"))
    patches.replace_everywhere(gradients_impl, "hessians", hessians, ("ys", "xs"))


def _list(given: Any) -> list[Any]:
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _forward(patches: Patches, job: Job, eager: EagerSteps) -> None:
    """Hook derivatives along a direction: tensorflow/python/eager/forwardprop.py."""

    def made(original: Callable[..., Any], self: Any, primals: Any, *args: Any, **kwargs: Any) -> None:
        self._tfdist_sources = [p for p in tf.nest.flatten(primals) if variable_key(p) is not None]
        original(self, primals, *args, **kwargs)

    def jvp(original: Callable[..., Any], self: Any, primals: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, primals, *args, **kwargs)
        sources = self._tfdist_sources
        if not (job.switches.rewrites and sources):
            return result
        derivatives, targets = tf.nest.flatten(result), tf.nest.flatten(primals)
        if tf.executing_eagerly():
            new = eager.of_accumulator(self, targets, sources, derivatives)
        else:
            # A loss's derivative is averaged, an example's output's is not. One variable represents all sources.
            chosen = [t.shape.rank == 0 or marking.of_gradients(t) for t in targets]
            new = marking.marked([sources[0] if one else None for one in chosen], derivatives, job, primals)
        return tf.nest.pack_sequence_as(result, new)

    patches.replace(forwardprop.ForwardAccumulator, "__init__", made, ("self", "primals", "tangents"))
    patches.replace(forwardprop.ForwardAccumulator, "jvp", jvp, ("self", "primals"))
    _recording(patches, eager, forwardprop.ForwardAccumulator)


def _recording(patches: Patches, eager: EagerSteps, kind: type) -> None:
    """Hook where a tape or an accumulator begins and ends to record."""

    def enter(original: Callable[..., Any], self: Any) -> Any:
        if tf.executing_eagerly():
            eager.tape_opened(self)
        return original(self)

    def leave(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        if tf.executing_eagerly():
            eager.tape_closed(self)
        original(self, *args, **kwargs)

    patches.replace(kind, "__enter__", enter, ("self",))
    patches.replace(kind, "__exit__", leave, ("self",))


def _tapes(patches: Patches, job: Job, eager: EagerSteps, scaling: LossScaling, outermost: Outermost) -> None:
    """Hook where a tape begins, ends and differentiates: tensorflow/python/eager/backprop.py."""

    def handed_out(tape: Any, target: Any, sources: Any, derivatives: Any, each: bool = False) -> Any:
        if job.switches.alone_depth:
            function_state.made_alone()
        if not job.switches.rewrites:
            return derivatives
        flat = tf.nest.flatten(sources), tf.nest.flatten(derivatives)
        if tf.executing_eagerly():
            marking.refuse_own_tables(flat[0])
            new = eager.of_tape(tape, target, *flat, each)
        else:
            new = marking.marked(*flat, job, target, each)
        return tf.nest.pack_sequence_as(derivatives, new)

    def gradient(
        original: Callable[..., Any],
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def hooked() -> Any:
            targets = tf.nest.flatten(target)
            trained = any(variable_key(source) is not None for source in tf.nest.flatten(sources))
            scale = scaling.scale(targets) if trained else None
            if scale is None:
                derivatives = original(self, target, sources, output_gradients, *args, **kwargs)
            else:
                given = seeds(scale, targets, None if output_gradients is None else tf.nest.flatten(output_gradients))
                derivatives = original(self, target, sources, given, *args, **kwargs)
                new = unscaled(tf.nest.flatten(derivatives), tf.nest.flatten(sources), scale)
                derivatives = tf.nest.pack_sequence_as(derivatives, new)
            return handed_out(self, target, sources, derivatives)

        return outermost.call(hooked, lambda: original(self, target, sources, output_gradients, *args, **kwargs))

    def jacobian(original: Callable[..., Any], self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        def hooked() -> Any:
            return handed_out(self, target, sources, original(self, target, sources, *args, **kwargs), each=True)

        # TensorFlow computes it from gradients: only the outermost call is hooked.
        return outermost.call(hooked, lambda: original(self, target, sources, *args, **kwargs))

    _recording(patches, eager, backprop.GradientTape)
    patches.replace(backprop.GradientTape, "gradient", gradient, ("self", "target", "sources", "output_gradients"))
    patches.replace(backprop.GradientTape, "jacobian", jacobian, ("self", "target", "sources"))
    patches.replace(backprop.GradientTape, "batch_jacobian", jacobian, ("self", "target", "source"))
