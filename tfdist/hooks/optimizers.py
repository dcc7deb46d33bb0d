"""Hooks where gradients are applied: the optimizers of TensorFlow, Keras and tf_keras."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.training import optimizer as tf_optimizer

from tfdist.graph.job import Job
from tfdist.hooks.patches import Outermost, Patches
from tfdist.training.steps import Steps
from tfdist.updates.order import pipeline_of
from tfdist.updates.pipeline import Update


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Hook the methods that apply gradients, in all optimizers and in subclasses defined later.

    TensorFlow's: tensorflow/python/training/optimizer.py; Keras's: keras/src/optimizers/base_optimizer.py; tf_keras's:
    tf_keras/src/optimizers/optimizer.py, .../legacy/optimizer_v2.py.
    """
    pipeline, variables = pipeline_of(steps), steps.variables
    outermost, outermost_build = Outermost(), Outermost()

    @outermost.only
    def apply_gradients(original: Callable[..., Any], self: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get("name")

        def plain(averages: Sequence[tuple[Any, Any]], name: str | None) -> Any:
            named = {} if given is None else {"name": name}
            return original(self, tuple(averages), *args, **kwargs | named)

        return pipeline.run(Update(self, tuple(pairs), plain, given))

    @outermost.only
    def apply(
        original: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        backend = sys.modules["keras.src.backend"]
        if backend.backend() != "tensorflow":
            raise RuntimeError(
                f"Keras runs on the backend {backend.backend()!r}, whose gradients tfdist does not average: set "
                "KERAS_BACKEND=tensorflow, or start one process"
            )
        known = getattr(self, "_trainable_variables", []) if trainable_variables is None else trainable_variables
        gradients, known = list(grads), list(known)
        if len(gradients) != len(known):  # Keras raises an error
            return original(self, gradients, trainable_variables, *args, **kwargs)
        eagerly = tf.executing_eagerly()
        if (eagerly or job.switches.settings.not_each_step) and not self.built and job.switches.rewrites:
            with backend.name_scope(self.name, caller=self):
                self.build(known)  # now, so that values from rank 0's checkpoint are shared
            self.built = True
            if eagerly:
                variables.share_new("the building of an optimizer")

        def plain(pairs: Sequence[tuple[Any, Any]], name: str | None) -> Any:
            return original(self, [gradient for gradient, _ in pairs], trainable_variables, *args, **kwargs)

        return pipeline.run(Update(self, tuple(zip(gradients, known, strict=True)), plain))

    @outermost_build.only
    def build(original: Callable[..., Any], self: Any, trained: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, trained, *args, **kwargs)
        pipeline.built(self, list(trained))
        return result

    in_tree, keras = patches.replace_in_tree, "keras.src.optimizers.base_optimizer:BaseOptimizer"
    applies = "apply_gradients", apply_gradients, ("self", "grads_and_vars")
    in_tree(tf_optimizer.Optimizer, *applies)
    patches.when_imported("tf_keras.src.optimizers.optimizer:_BaseOptimizer", in_tree, *applies)
    patches.when_imported("tf_keras.src.optimizers.legacy.optimizer_v2:OptimizerV2", in_tree, *applies)
    patches.when_imported(keras, in_tree, "apply", apply, ("self", "grads", "trainable_variables"))
    patches.when_imported(keras, in_tree, "build", build, ("self", "variables"))
