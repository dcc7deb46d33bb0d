"""Hooks where gradients are computed: ``tf.gradients``, a ``GradientTape`` and a ``ForwardAccumulator``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import backprop, forwardprop
from tensorflow.python.ops import gradients_impl, gradients_util

from tfdist.gradients import marks
from tfdist.graph import function_state
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_key
from tfdist.hooks.patches import Outermost, Patches, before
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

    @outermost.only
    def helper(original: Callable[..., Any], ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not job.switches.automatic:
            return original(ys, xs, grad_ys, *args, **kwargs)
        if kwargs.get("src_graph") is None:
            derivatives = _scaled(scaling, ys, xs, grad_ys, lambda given: original(ys, xs, given, *args, **kwargs))
        else:  # of a function's body
            derivatives = original(ys, xs, grad_ys, *args, **kwargs)
        return marks.marked(tf.nest.flatten(xs), derivatives, job, ys)

    @outermost.only
    def hessians(original: Callable[..., Any], ys: Any, xs: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(ys, xs, *args, **kwargs)
        return marks.marked(tf.nest.flatten(xs), result, job, ys) if job.switches.automatic else result

    patches.replace(gradients_util, "_GradientsHelper", helper, ("ys", "xs", "grad_ys"))
    patches.replace_everywhere(gradients_impl, "hessians", hessians, ("ys", "xs"))


def _scaled(scaling: LossScaling, target: Any, sources: Any, initial: Any, compute: Callable[[Any], Any]) -> Any:
    """Return derivatives as ``compute(initial gradients)`` does. The loss is scaled for this, if it is to be."""
    targets, flat = tf.nest.flatten(target), tf.nest.flatten(sources)
    trained = any(variable_key(source) is not None for source in flat)
    scale = scaling.scale(targets) if trained else None
    if scale is None:
        return compute(initial)
    derivatives = compute(seeds(scale, targets, None if initial is None else tf.nest.flatten(initial)))
    return tf.nest.pack_sequence_as(derivatives, unscaled(tf.nest.flatten(derivatives), flat, scale))


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
            chosen = [t.shape.rank == 0 or marks.of_gradients(t) for t in targets]
            new = marks.marked([sources[0] if one else None for one in chosen], derivatives, job, primals)
        return tf.nest.pack_sequence_as(result, new)

    patches.replace(forwardprop.ForwardAccumulator, "__init__", made, ("self", "primals", "tangents"))
    patches.replace(forwardprop.ForwardAccumulator, "jvp", jvp, ("self", "primals"))
    _recording(patches, eager, forwardprop.ForwardAccumulator)


def _recording(patches: Patches, eager: EagerSteps, kind: type) -> None:
    """Hook where a tape or an accumulator begins and ends to record eagerly."""
    opened = before(lambda tape: eager.tape_opened(tape) if tf.executing_eagerly() else None)
    closed = before(lambda tape: eager.tape_closed(tape) if tf.executing_eagerly() else None)
    patches.replace(kind, "__enter__", opened, ("self",))
    patches.replace(kind, "__exit__", closed, ("self",))


def _tapes(patches: Patches, job: Job, eager: EagerSteps, scaling: LossScaling, outermost: Outermost) -> None:
    """Hook where a tape begins, ends and differentiates: tensorflow/python/eager/backprop.py."""

    def handed_out(tape: Any, target: Any, sources: Any, derivatives: Any, each: bool = False) -> Any:
        if job.switches.alone_depth:
            function_state.note(alone=True)
        if not job.switches.rewrites:
            return derivatives
        flat = tf.nest.flatten(sources), tf.nest.flatten(derivatives)
        if tf.executing_eagerly():
            marks.refuse_own_tables(flat[0])
            new = eager.of_tape(tape, target, *flat, each)
        else:
            new = marks.marked(*flat, job, target, each)
        return tf.nest.pack_sequence_as(derivatives, new)

    @outermost.only
    def gradient(
        original: Callable[..., Any],
        self: Any,
        target: Any,
        sources: Any,
        initial: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def compute(initial: Any) -> Any:
            return original(self, target, sources, initial, *args, **kwargs)

        return handed_out(self, target, sources, _scaled(scaling, target, sources, initial, compute))

    @outermost.only  # TensorFlow computes it from gradients
    def jacobian(original: Callable[..., Any], self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        return handed_out(self, target, sources, original(self, target, sources, *args, **kwargs), each=True)

    _recording(patches, eager, backprop.GradientTape)
    patches.replace(backprop.GradientTape, "gradient", gradient, ("self", "target", "sources", "output_gradients"))
    patches.replace(backprop.GradientTape, "jacobian", jacobian, ("self", "target", "sources"))
    patches.replace(backprop.GradientTape, "batch_jacobian", jacobian, ("self", "target", "source"))
