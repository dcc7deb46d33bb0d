"""Distributed optimizers: wrappers for optimizers (TensorFlow 1, Keras 3, tf_keras) and tapes that reduce gradients."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf

from tfdist.horovod._reduction import GradientReduction, Pairs
from tfdist.horovod.compression import Compression
from tfdist.horovod.ops import Adasum, Average
from tfdist.horovod.process_sets import global_process_set
from tfdist.updates.conditional import value_now
from tfdist.updates.wrapped import reduction_of, wrap

_V1 = tf.compat.v1.train.Optimizer


class _Wrapped(_V1):  # type: ignore[misc,valid-type]
    """An optimizer of TensorFlow 1 that wraps another one."""

    def __init__(self, optimizer: Any, reduction: GradientReduction, name: str | None, use_locking: bool) -> None:
        super().__init__(name=name or f"Distributed{type(optimizer).__name__}", use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction
        self.get_slot, self.get_slot_names = optimizer.get_slot, optimizer.get_slot_names
        self.variables = optimizer.variables
        reduction.begin()

    def register_local_var(self, var: Any) -> None:
        """Exclude a variable's gradients from the reduction: each rank keeps its own."""
        self._reduction.register_local_var(var)


class _ReducingOptimizer(_Wrapped):
    """Reduces the gradients in ``compute_gradients``, so that a script can clip the reduced gradients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: Any = None

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return the wrapped optimizer's gradients, reduced. Collective: the process set's ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if self._reduction.steps == 1:
            return self._reduction.reduced(pairs)
        if tf.executing_eagerly():
            raise ValueError(
                "backward_passes_per_step > 1 with an optimizer of TensorFlow 1 that executes eagerly: put the step "
                "into a tf.function, or use an optimizer of Keras"
            )
        self._held = self._reduction.accumulated(pairs)
        return self._reduction.reduced(pairs, self._held)

    def apply_gradients(self, grads_and_vars: Pairs, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients by the wrapped optimizer, in passes that complete ``backward_passes_per_step``."""
        pairs = list(grads_and_vars)
        if self._held is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        inner = functools.partial(self._optimizer.apply_gradients, pairs, global_step)
        return self._reduction.when_due(self._held, pairs, inner, name)


class _AdasumOptimizer(_Wrapped):
    """Applies an update on each rank, and combines the ranks' changes of the variables by Adasum."""

    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return this rank's own gradients."""
        return list(self._optimizer.compute_gradients(*args, **kwargs))

    def apply_gradients(self, grads_and_vars: Pairs, global_step: Any = None, name: str | None = None) -> Any:
        """Apply gradients by the wrapped optimizer, and combine the ranks' changes. Collective: all ranks."""
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        variables = [variable for _, variable in pairs]
        before = [value_now(variable) for variable in variables]
        with tf.control_dependencies(before):
            applied = self._optimizer.apply_gradients(pairs, global_step)
        with tf.control_dependencies([] if applied is None else [applied]):
            changes = [v.read_value() - b for v, b in zip(variables, before, strict=True)]
        found = self._reduction.reduced(list(zip(changes, variables, strict=True)))
        updates = [v.assign(b + change) for v, b, (change, _) in zip(variables, before, found, strict=True)]
        return tf.group(*updates, name=name)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    *,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
    local_layers: Any = None,
) -> Any:
    """Return an optimizer that applies gradients reduced over the ranks.

    An optimizer of TensorFlow 1 is wrapped in another one, which reduces in ``compute_gradients``. An optimizer of
    Keras 3 or tf_keras is returned itself, with its state, and reduces when it applies: Keras 3 has no other place.

    Args:
      optimizer: optimizer of ``tf.compat.v1.train``, Keras 3 or tf_keras.
      name: name of the wrapping optimizer of TensorFlow 1, or None.
      use_locking: ``use_locking`` of the wrapping optimizer of TensorFlow 1.
      device_dense: has no meaning here.
      device_sparse: has no meaning here.
      compression: compression of gradients: ``Compression.none``, ``fp16``, ``bf16``, or a script's own class.
      sparse_as_dense: make ``tf.IndexedSlices`` dense; else they stay slices, each row once.
      backward_passes_per_step: number of passes that each rank adds up before one exchange and one update.
      op: ``Average``, ``Sum``; or ``Adasum`` for optimizers of TensorFlow 1: each rank's update is computed, and the
        changes are combined.
      gradient_predivide_factor: divisor before the sum; after it, the sum is divided by number of ranks / this factor.
      average_aggregated_gradients: divide the sum of passes by ``backward_passes_per_step``.
      num_groups: has no meaning here, as ``groups``.
      groups: has no meaning here, where gradients are cut into buckets by size.
      process_set: the process set that takes part; ranks outside it apply their own gradients.
      scale_local_gradients: divide the gradients of local variables (``register_local_var``) by the number of ranks.
      local_layers: Keras layer or layers whose variables are local; None for no layer.

    Raises:
      ValueError: arguments that contradict each other, Adasum with an optimizer of Keras, an object that is no
        optimizer or no layer, or a wrapped optimizer.
      tf.errors.InvalidArgumentError: an unknown process set.
    """
    reduction = GradientReduction(
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients,
        local_layers, backward_passes_per_step, average_aggregated_gradients,
    )  # fmt: skip
    if isinstance(optimizer, _Wrapped) or reduction_of(optimizer) is not None:
        raise ValueError(f"{type(optimizer).__name__} is a DistributedOptimizer already: wrap an optimizer once")
    if isinstance(optimizer, _V1):
        if reduction.op != Adasum:
            return _ReducingOptimizer(optimizer, reduction, name, use_locking)
        if reduction.members.number != 0:
            raise NotImplementedError("op=hvd.Adasum with a process set: leave process_set out")
        if backward_passes_per_step > 1:
            raise NotImplementedError("op=hvd.Adasum with backward_passes_per_step > 1: leave one of them out")
        return _AdasumOptimizer(optimizer, reduction, name, use_locking)
    if reduction.op == Adasum:
        raise ValueError("op=hvd.Adasum is for optimizers of tf.compat.v1.train: use hvd.Average or such an optimizer")
    if not (hasattr(optimizer, "apply_gradients") or hasattr(optimizer, "apply")):
        raise ValueError(f"{optimizer!r} is no optimizer of TensorFlow, Keras 3 or tf_keras")
    wrap(optimizer, reduction.update)
    reduction.begin()
    object.__setattr__(optimizer, "register_local_var", reduction.register_local_var)
    return optimizer


PartialDistributedOptimizer = DistributedOptimizer  # with ``local_layers``


class _Tape(tf.GradientTape):  # type: ignore[misc]
    """A tape that reduces its gradients."""

    __slots__ = ("_tfdist_reduction",)  # only this belongs to it: __dict__ is shared with the wrapped tape

    def __init__(self, tape: Any, reduction: GradientReduction) -> None:
        # Both tapes record into the same state, so that this one also has what the script's tape has recorded.
        self.__dict__ = tape.__dict__  # type: ignore[misc]
        self._tfdist_reduction = reduction
        reduction.begin()

    def register_local_source(self, source: Any) -> None:
        """Exclude a variable's gradients from the reduction: each rank keeps its own."""
        self._tfdist_reduction.register_local_var(source)

    def gradient(
        self, target: Any, sources: Any, output_gradients: Any = None, use_generic_names: bool = False, **kwargs: Any
    ) -> Any:
        """Return the reduced gradients, in the structure of ``sources``. Collective: the process set's ranks."""
        found = super().gradient(target, sources, output_gradients, **kwargs)
        flat = list(zip(tf.nest.flatten(found), tf.nest.flatten(sources), strict=True))
        reduced = [gradient for gradient, _ in self._tfdist_reduction.reduced(flat)]
        return tf.nest.pack_sequence_as(sources, reduced)


def DistributedGradientTape(
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
    *,
    local_layers: Any = None,
) -> Any:
    """Return a tape that reduces gradients over the ranks. Arguments and errors: see ``DistributedOptimizer``."""
    reduction = GradientReduction(
        compression, sparse_as_dense, op, gradient_predivide_factor, process_set, scale_local_gradients, local_layers
    )
    return _Tape(gradtape, reduction)


PartialDistributedGradientTape = DistributedGradientTape  # with ``local_layers``
__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
]
