"""Hooks where gradients are applied: the optimizers of TensorFlow, Keras and tf_keras."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.training import optimizer as tf_optimizer

from tfdist.graph import function_state
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.graph.markers import variable_key
from tfdist.hooks.patches import Outermost, Patches
from tfdist.training import gradient_rewrite
from tfdist.training.steps import Steps
from tfdist.updates.accumulation import Accumulations
from tfdist.updates.blocks import blocks_of
from tfdist.updates.checkpointed import left_over_of
from tfdist.updates.conditional import update_if
from tfdist.updates.divergence import DivergenceGuard
from tfdist.updates.loss_scaling import loss_scaling_of
from tfdist.updates.wrapped import WrappedOptimizers


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """What applies gradients, in all optimizers and subclasses to come.

    TensorFlow's: tensorflow/python/training/optimizer.py; Keras's: keras/src/optimizers/base_optimizer.py; those of
    tf_keras: tf_keras/src/optimizers/optimizer.py, .../legacy/optimizer_v2.py.
    """
    variables, blocks, left_over = steps.variables, blocks_of(steps), left_over_of(steps)
    outermost, outermost_build = Outermost(), Outermost()
    accumulations, guard, scaling = Accumulations(job), DivergenceGuard(job), loss_scaling_of(steps)
    wrapped = WrappedOptimizers(job)

    def applied(optimizer: Any, pairs: Sequence[tuple[Any, Any]]) -> None:
        if not job.switches.rewrites:
            return
        if function_state.in_session():
            state = make_state(ops.get_default_graph())
            state.trained.update(dict.fromkeys(variable_key(v) for gradient, v in pairs if gradient is not None))
            state.optimizers.append(weakref.ref(optimizer))
        else:
            variables.applied_by(optimizer)

    def update(
        optimizer: Any, pairs: Sequence[tuple[Any, Any]], call: Callable[..., Any], name: str | None = None
    ) -> Any:
        """Have ``call`` apply the averages of these gradients, under this name, when it is time."""
        if not job.switches.automatic:
            return wrapped.update(optimizer, pairs, call, name)
        held = accumulations.of(optimizer, pairs)

        def averaged(own: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
            if not job.switches.rewrites:
                return own
            gradient_rewrite.check_replicas(tf.distribute.get_strategy())
            if tf.executing_eagerly():
                return steps.eager.applied(optimizer, own)
            averages = gradient_rewrite.averaged(own, job, held)
            gradient_rewrite.warn_of_condition(job)
            left_over.built()
            return averages

        def apply(averages: Sequence[tuple[Any, Any]]) -> Any:
            def now(as_name: str | None) -> Any:
                return call(guard.watched(optimizer, averages), as_name)

            with variables.setting():
                due = scaling.finite(optimizer, averages, None if held is None else held.all_due())
                if due is None:
                    return now(name)
                keys = [variable_key(variable) for gradient, variable in averages if gradient is not None]
                return update_if(due, keys, lambda: now(f"{name}/update"), name, job.switches.settings.not_each_step)

        result = blocks.step(optimizer, pairs, averaged, apply)
        applied(optimizer, pairs)
        return result

    def apply_gradients(original: Callable[..., Any], self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            given = kwargs.get("name")

            def plain(averages: Sequence[tuple[Any, Any]], name: str | None) -> Any:
                named = {} if given is None else {"name": name}
                return original(self, tuple(averages), *args, **kwargs | named)

            return update(self, tuple(pairs), plain, given)

        return outermost.call(wrapper, lambda: original(self, pairs, *args, **kwargs))

    def apply(
        original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        def wrapper() -> Any:
            backend = sys.modules["keras.src.backend"]
            if backend.backend() != "tensorflow":
                raise RuntimeError(
                    f"Keras runs on the backend {backend.backend()!r}, whose gradients tfdist does not average: set "
                    "KERAS_BACKEND=tensorflow, or start one process"
                )
            known = getattr(self, "_trainable_variables", []) if trainable_variables is None else trainable_variables
            gradients, known = list(grads), list(known)
            if len(gradients) != len(known):  # Keras says so
                return original(self, gradients, trainable_variables, *args, **kwargs)
            eagerly = tf.executing_eagerly()
            if (eagerly or job.switches.settings.not_each_step) and not self.built and job.switches.rewrites:
                with backend.name_scope(self.name, caller=self):
                    self.build(known)  # now, so that what a checkpoint makes of its variables on rank 0 is shared
                self.built = True
                if eagerly:
                    variables.share_new("the building of an optimizer")

            def plain(pairs: Sequence[tuple[Any, Any]], name: str | None) -> Any:
                return original(self, [gradient for gradient, _ in pairs], trainable_variables, *args, **kwargs)

            return update(self, tuple(zip(gradients, known, strict=True)), plain)

        return outermost.call(wrapper, lambda: original(self, grads, trainable_variables, *args, **kwargs))

    def build(original: Callable[..., Any], self: Any, trained: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            result = original(self, trained, *args, **kwargs)
            blocks.built(self, list(trained))
            scaling.built(self)
            return result

        return outermost_build.call(wrapper, lambda: original(self, trained, *args, **kwargs))

    def keras(module: Any) -> None:
        patches.replace_in_tree(module.BaseOptimizer, "apply", apply, ("self", "grads", "trainable_variables"))
        patches.replace_in_tree(module.BaseOptimizer, "build", build, ("self", "variables"))

    first = ("self", "grads_and_vars")
    patches.replace_in_tree(tf_optimizer.Optimizer, "apply_gradients", apply_gradients, first)
    patches.when_imported("keras.src.optimizers.base_optimizer", keras)
    patches.when_imported(
        "tf_keras.src.optimizers.optimizer",
        lambda m: patches.replace_in_tree(m._BaseOptimizer, "apply_gradients", apply_gradients, first),
    )
    patches.when_imported(
        "tf_keras.src.optimizers.legacy.optimizer_v2",
        lambda m: patches.replace_in_tree(m.OptimizerV2, "apply_gradients", apply_gradients, first),
    )
