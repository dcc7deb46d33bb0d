"""Hooks where functions are traced and called, and variables are created, read and assigned to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import config as autograph_config
from tensorflow.python.eager.polymorphic_function import concrete_function, polymorphic_function
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import cond_v2
from tensorflow.python.ops import resource_variable_ops as tf_resources

from tfdist.compat.objects import with_subclasses
from tfdist.gradients import writes
from tfdist.graph import conditions, function_state
from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches, after, before
from tfdist.training.steps import Steps

_ASSIGNING = ("assign", "assign_add", "assign_sub", "scatter_add", "scatter_sub", "scatter_update")


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Hook functions (tensorflow/python/framework/func_graph.py, …/eager/polymorphic_function/concrete_function.py),
    variables (tensorflow/python/ops/resource_variable_ops.py) and conditions (tensorflow/python/ops/cond_v2.py)."""

    def trace(original: Callable[..., Any], name: Any, python_func: Any, *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(python_func)
        def function(*inner: Any, **named: Any) -> Any:
            result = python_func(*inner, **named)
            writes.leaving(result, job, steps.eager.recording)
            function_state.traced()
            return result

        return original(name, function, *args, **kwargs)

    def create_op(original: Callable[..., Any], self: Any, op_type: str, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if writes.may_write(op_type) and job.switches.rewrites:
            inputs = list(inputs)
            writes.in_function(op_type, inputs, job)
        return original(self, op_type, inputs, *args, **kwargs)

    def call(original: Callable[..., Any], self: Any, tensor_inputs: Any, captured_inputs: Any) -> Any:
        return steps.functions.call(self, tensor_inputs, lambda: original(self, tensor_inputs, captured_inputs))

    def condition(original: Callable[..., Any], pred: Any, *args: Any, **kwargs: Any) -> Any:
        with conditions.building(pred):
            return original(pred, *args, **kwargs)

    # AutoGraph must not rewrite tfdist's code where a function calls it.
    rules = autograph_config.CONVERSION_RULES
    patches.assign(autograph_config, "CONVERSION_RULES", (autograph_config.DoNotConvert("tfdist"), *rules))
    patches.replace(
        concrete_function.ConcreteFunction, "_call_flat", call, ("self", "tensor_inputs", "captured_inputs")
    )
    patches.replace(cond_v2, "cond_v2", condition, ("pred", "true_fn", "false_fn"))
    patches.replace(func_graph, "func_graph_from_py_func", trace, ("name", "python_func"))
    patches.replace(func_graph.FuncGraph, "_create_op_internal", create_op, ("self", "op_type", "inputs"))
    for name in ("_read_variable_op", "sparse_read", "gather_nd"):
        patches.replace(tf_resources.BaseResourceVariable, name, before(steps.eager.read), ("self",))
    for kind in (
        tf_resources.ResourceVariable,
        tf_resources.UninitializedVariable,
        polymorphic_function.UnliftedInitializerVariable,
    ):
        patches.replace(kind, "__init__", after(steps.eager.created), ("self",))
    # Restoring a checkpoint calls this; the methods that assign do not.
    restored = before(steps.eager.restored)
    patches.replace(tf_resources, "shape_safe_assign_variable_handle", restored, ("handle",))
    for name in _ASSIGNING:
        for cls in with_subclasses(tf_resources.BaseResourceVariable):
            if name in vars(cls):
                patches.replace(cls, name, before(steps.eager.assigned), ("self",))
