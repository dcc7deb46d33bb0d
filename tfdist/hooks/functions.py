"""Hooks where functions are called, and variables are made and assigned to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.ops import resource_variable_ops as tf_resources

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches, with_subclasses
from tfdist.training.steps import Steps

# What assigns to a variable, and its name for the value.
_ASSIGNING = {
    "assign": "value",
    "assign_add": "delta",
    "assign_sub": "delta",
    "scatter_add": "sparse_delta",
    "scatter_sub": "sparse_delta",
    "scatter_update": "sparse_delta",
}


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Calls of functions, and new variables: tensorflow/python/eager/polymorphic_function/concrete_function.py,
    tensorflow/python/ops/resource_variable_ops.py."""

    def call(original: Callable[..., Any], self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        return steps.functions.call(self, tensor_inputs, lambda: original(self, tensor_inputs, captured_inputs))

    def assign(original: Callable[..., Any], self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        steps.functions.assigned(value)
        return original(self, value, *args, **kwargs)

    def made(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        steps.functions.created(self)

    # What is called in a function is built there, and not rewritten by AutoGraph.
    rules = autograph_config.CONVERSION_RULES
    patches.assign(autograph_config, "CONVERSION_RULES", rules, (autograph_config.DoNotConvert("tfdist"), *rules))
    patches.replace(
        concrete_function.ConcreteFunction, "_call_flat", call, ("self", "tensor_inputs", "captured_inputs")
    )
    patches.replace(tf_resources.ResourceVariable, "__init__", made, ("self",))
    patches.replace(polymorphic_function.UnliftedInitializerVariable, "__init__", made, ("self",))
    for name, value in _ASSIGNING.items():
        for cls in with_subclasses(tf_resources.BaseResourceVariable):
            if name in vars(cls):
                patches.replace(cls, name, assign, by_name=("self", value))
