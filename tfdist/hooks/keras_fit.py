"""Hooks of ``model.fit`` and the methods that it uses, in Keras 3 and tf_keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfdist.core.log import announce
from tfdist.graph.job import Job, broadcasting
from tfdist.hooks.patches import Patches, after
from tfdist.replicas.adapted_layers import AdaptedLayers
from tfdist.training.fit import FitSteps
from tfdist.training.steps import Steps
from tfdist.updates.local_sgd import LocalSGD, local_sgd_of

_ADAPTED = (
    "keras.src.layers.preprocessing.normalization:Normalization",
    "keras.src.layers.preprocessing.discretization:Discretization",
    "keras.src.layers.preprocessing.text_vectorization:TextVectorization",
    "keras.src.layers.preprocessing.index_lookup:IndexLookup",
    "tf_keras.src.engine.base_preprocessing_layer:PreprocessingLayer",
)


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    blocks = local_sgd_of(steps)
    steps.moments.fits.append(blocks.end_or_share)
    steps.moments.pauses.append(blocks.end)
    _keras(patches, steps.fit)
    _adapted(patches, steps.variables.adapted)
    _tf_keras(patches, job, steps.fit, blocks)


def _keras(patches: Patches, fit: FitSteps) -> None:
    """Hook ``model.fit`` and the methods that it uses: keras/src/backend/tensorflow/trainer.py."""

    def trainer(module: Any) -> None:
        owner = module.TensorFlowTrainer if hasattr(module, "TensorFlowTrainer") else module.Trainer  # since Keras 3.16
        patches.replace(owner, "fit", fit.fit, ("self", "x", "y"))
        patches.replace(owner, "evaluate", fit.log_on_rank_0, ("self", "x", "y"))
        patches.replace(owner, "predict", fit.log_on_rank_0, ("self", "x"))
        patches.replace(owner, "make_train_function", fit.make_train_function, ("self",))
        patches.assign(owner, "stop_training", property(fit.stops.of, fit.stops.set))
        patches.replace(module.TFEpochIterator, "__init__", fit.epoch_iterator, ("self", "distribute_strategy"))

    patches.when_imported("keras.src.backend.tensorflow.trainer", trainer)


def _adapted(patches: Patches, layers: AdaptedLayers) -> None:
    """Hook layers that are adapted to data."""
    for where in _ADAPTED:
        patches.when_imported(where, patches.replace_in_tree, "adapt", after(layers.adapted), ("self", "data"))


def _tf_keras(patches: Patches, job: Job, fit_steps: FitSteps, blocks: LocalSGD) -> None:
    """Hook training of tf_keras: tf_keras/src/engine/training.py; in a session: tf_keras/src/backend.py."""

    def make_train_function(original: Callable[..., Any], self: Any, force: bool = False) -> Any:
        if self.jit_compile and not job.compiles:
            self.jit_compile = False  # drops functions that are compiled already
            announce(
                f"{self.name} was compiled with jit_compile=True, which is off now: XLA cannot compile the exchange "
                "between the ranks"
            )
        return original(self, force)

    def initialize_variables(original: Callable[..., Any], session: Any) -> None:
        # Keras initialises variables without a value whenever it needs a session. One rank may do so earlier, or for
        # more variables. So nothing is exchanged here, only before the first step.
        with broadcasting(job.switches, False):
            original(session)

    def fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        result = fit_steps.fit(original, self, *args, **kwargs)
        if job.switches.rewrites:
            blocks.end()
        return result

    def model(owner: Any) -> None:
        patches.replace(owner, "make_train_function", make_train_function, ("self", "force"))
        patches.replace(owner, "fit", fit, ("self", "x", "y"))
        patches.assign(owner, "stop_training", property(fit_steps.stops.of, fit_steps.stops.set))

    initializing = "_initialize_variables", initialize_variables, ("session",)
    patches.when_imported("tf_keras.src.backend", patches.replace, *initializing)
    patches.when_imported("tf_keras.src.engine.training:Model", model)
