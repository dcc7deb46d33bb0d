"""Hooks where gradients are applied: the optimizers of TensorFlow, Keras and tf_keras."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training import optimizer as tf_optimizer

from tfdist.graph import function_state
from tfdist.graph.job import Job
from tfdist.hooks.patches import Outermost, Patches
from tfdist.training import gradient_rewrite
from tfdist.training.steps import Steps
from tfdist.updates.blocks import blocks_of


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """What applies gradients, in all optimizers and subclasses to come.

    TensorFlow's: tensorflow/python/training/optimizer.py; Keras's: keras/src/optimizers/base_optimizer.py; those of
    tf_keras: tf_keras/src/optimizers/optimizer.py, .../legacy/optimizer_v2.py.
    """
    variables, blocks = steps.variables, blocks_of(steps)
    outermost, outermost_build = Outermost(), Outermost()

    def applied(optimizer: Any) -> None:
        if not (function_state.in_session() or job.switches.alone_depth):
            variables.applied_by(optimizer)

    def averaged(pairs: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
        if job.switches.alone_depth:
            return pairs
        gradient_rewrite.check_replicas(tf.distribute.get_strategy())
        return steps.eager.applied(pairs) if tf.executing_eagerly() else gradient_rewrite.averaged(pairs, job)

    def apply_gradients(original: Callable[..., Any], self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            def apply(averages: Sequence[tuple[Any, Any]]) -> Any:
                with variables.setting():
                    return original(self, tuple(averages), *args, **kwargs)

            result = blocks.step(self, tuple(pairs), averaged, apply)
            applied(self)
            return result

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
            if tf.executing_eagerly() and not self.built and not job.switches.alone_depth:
                with backend.name_scope(self.name, caller=self):
                    self.build(known)  # now, so that what a checkpoint makes of its variables on rank 0 is shared
                self.built = True
                variables.share_new("the building of an optimizer")

            def apply_pairs(averages: Sequence[tuple[Any, Any]]) -> Any:
                with variables.setting():
                    return original(self, [gradient for gradient, _ in averages], trainable_variables, *args, **kwargs)

            result = blocks.step(self, tuple(zip(gradients, known, strict=True)), averaged, apply_pairs)
            applied(self)
            return result

        return outermost.call(wrapper, lambda: original(self, grads, trainable_variables, *args, **kwargs))

    def build(original: Callable[..., Any], self: Any, trained: Any, *args: Any, **kwargs: Any) -> Any:
        def wrapper() -> Any:
            result = original(self, trained, *args, **kwargs)
            blocks.built(self, list(trained))
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
