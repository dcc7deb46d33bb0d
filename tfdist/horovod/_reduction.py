"""GradientReduction: the reduction of a wrapped optimizer's or tape's gradients, every ``steps`` passes.

It uses the static order and the engine of the automatic average: see ``gradients.average``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.graphs import is_symbolic, order
from tfdist.gradients.average import Average as AverageReducer
from tfdist.graph.markers import times, variable_key, variable_name
from tfdist.graph.step_sums import Accumulation
from tfdist.horovod._state import ProcessSetState, state
from tfdist.horovod.collectives import grouped_allreduce
from tfdist.horovod.compression import Compression
from tfdist.horovod.ops import Adasum, Average, ReduceOp, op_of
from tfdist.horovod.process_sets import global_process_set, number_of
from tfdist.updates.conditional import update_if

Pairs = Sequence[tuple[Any, Any]]


@dataclasses.dataclass(eq=False)
class GradientReduction:
    """The reduction of one optimizer's or tape's gradients. Arguments: see ``DistributedOptimizer``.

    Attributes:
      steps: number of backward passes whose gradients are added up before a reduction.
    """

    compression: Any = Compression.none
    sparse_as_dense: bool = False
    op: Any = Average
    gradient_predivide_factor: float = 1.0
    process_set: Any = global_process_set
    scale_local_gradients: bool = True
    local_layers: Any = None
    steps: int = 1
    average_aggregated_gradients: bool = False

    def __post_init__(self) -> None:
        self.op = op_of(self.op, None)
        _check(self.op, self.gradient_predivide_factor, self.steps, self.average_aggregated_gradients)
        self._number = number_of(self.process_set)
        state.members(self._number)
        self._local = {variable_key(variable) for variable in _variables_of(self.local_layers)}
        self._known: dict[Hashable, Any] = {}
        self._held: list[Any] = []
        self._passes = 0

    def begin(self) -> None:
        """Register this reduction with the job, when an optimizer or a tape is wrapped."""
        state.job.switches.wrapped = True
        state.reduced_by |= {self.op.name, *(["backward_passes_per_step"] if self.steps > 1 else [])}

    @property
    def members(self) -> ProcessSetState:
        """The process set that reduces the gradients.

        Raises:
          tf.errors.InvalidArgumentError: the process set was removed.
        """
        return state.members(self._number)

    def register_local_var(self, variable: Any) -> None:
        """Exclude a variable's gradients from the reduction: each rank keeps its own."""
        self._local.add(variable_key(variable))

    def update(self, pairs: Pairs, apply: Callable[[Pairs, str | None], Any], name: str | None = None) -> Any:
        """Call ``apply`` with the reduced gradients, in each pass that completes ``steps`` passes.

        Collective: the process set's ranks.

        Args:
          pairs: gradients and variables.
          apply: function that applies gradients; its arguments are pairs and a name.
          name: name of the operation, or None.
        """
        if self.steps == 1:
            return apply(self.reduced(pairs), name)
        if tf.executing_eagerly():
            added = self._add(pairs)
            return None if added is None else apply(self.reduced(added), name)
        held = self.accumulated(pairs)
        averages = self.reduced(pairs, held)
        return self.when_due(held, averages, lambda: apply(averages, f"{name}/update" if name else None), name)

    def accumulated(self, pairs: Pairs) -> Accumulation:
        """Return the sum of several passes, for the graph that is being built."""
        return Accumulation(state.job, self.steps, self._known, [v for gradient, v in pairs if gradient is not None])

    def when_due(self, held: Accumulation, pairs: Pairs, call: Callable[[], Any], name: str | None) -> Any:
        """Call ``call`` in the passes that have gradients to apply."""
        due = held.all_due()
        if due is None:
            return call()
        trained = [variable for gradient, variable in pairs if gradient is not None]
        return update_if(due, trained, call, name, "backward_passes_per_step")

    def reduced(self, pairs: Pairs, held: Accumulation | None = None) -> list[tuple[Any, Any]]:
        """Return the pairs with reduced gradients. Collective: the process set's ranks.

        Args:
          pairs: gradients (or None) and variables.
          held: sum over several passes; None to reduce the gradients of each pass.
        """
        members = self.members
        size = len(members.ranks)
        own = [_tensor(gradient, self.sparse_as_dense) for gradient, _ in pairs]
        local = [variable_key(variable) in self._local for _, variable in pairs]
        if self.scale_local_gradients and size > 1:
            own = [times(g, 1 / size) if stays and g is not None else g for g, stays in zip(own, local, strict=True)]
        there = [i for i, gradient in enumerate(own) if gradient is not None]
        there.sort(key=lambda i: _built(own[i]))  # the order of the backward pass, which is the same on all ranks
        shared = [i for i in there if members.negotiation is not None and not local[i]]
        if shared and (size > 1 or held is not None):
            self._reduce(own, shared, pairs, members, held)
        stay = [i for i in there if i not in shared]
        if stay and held is not None:  # the sum over several passes, of this rank alone
            added = AverageReducer(state.job, held).reduce(
                [own[i] for i in stay], [variable_name(pairs[i][1]) for i in stay], state.alone
            )
            for i, gradient in zip(stay, added, strict=True):
                own[i] = times(gradient, 1 if self.average_aggregated_gradients else self.steps)
        return [(gradient, variable) for gradient, (_, variable) in zip(own, pairs, strict=True)]

    def _reduce(
        self, own: list[Any], chosen: Sequence[int], pairs: Pairs, members: ProcessSetState, held: Accumulation | None
    ) -> None:
        """Reduce the chosen gradients in place in ``own``. Collective: the process set's ranks."""
        packed = [_compressed(own[i], self.compression, 1 / self.gradient_predivide_factor) for i in chosen]
        names = [variable_name(pairs[i][1]) for i in chosen]
        gradients = [gradient for gradient, _ in packed]
        assert members.negotiation is not None
        if self.op == Adasum:
            found = grouped_allreduce(gradients, op=Adasum, process_set=members.number)
        else:
            found = AverageReducer(state.job, held).reduce(gradients, names, members.negotiation.group)
        factor = self.gradient_predivide_factor * (len(members.ranks) if self.op == ReduceOp.Sum else 1)
        factor *= 1 if held is None or self.average_aggregated_gradients else self.steps
        for i, gradient, (_, context) in zip(chosen, found, packed, strict=True):
            own[i] = _decompressed(gradient, self.compression, context, factor)

    def _add(self, pairs: Pairs) -> list[tuple[Any, Any]] | None:
        """Add one eager pass; return the sum or mean of ``steps`` passes, or None until they are complete."""
        own = [_tensor(gradient, dense=True) for gradient, _ in pairs]
        if self._passes == 0:
            self._held = own
        else:
            self._held = [_sum(a, b) for a, b in zip(self._held, own, strict=True)]
        self._passes += 1
        if self._passes < self.steps:
            return None
        self._passes = 0
        factor = 1 / self.steps if self.average_aggregated_gradients else 1
        held, self._held = self._held, []
        return [(None if g is None else times(g, factor), v) for g, (_, v) in zip(held, pairs, strict=True)]


def _check(op: ReduceOp, predivide: float, steps: int, average_aggregated: bool) -> None:
    if op not in (Average, ReduceOp.Sum, Adasum):
        raise ValueError(f"op={op.name}: gradients are reduced by hvd.Average, hvd.Sum or hvd.Adasum")
    if predivide != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor={predivide} with op={op.name}: the factor is for hvd.Average")
    if steps < 1:
        raise ValueError(f"backward_passes_per_step={steps} must be at least 1")
    if op == Adasum and average_aggregated:
        raise ValueError("average_aggregated_gradients=True with op=hvd.Adasum: leave it out")


def _variables_of(layers: Any) -> list[Any]:
    """Return the trainable variables of a layer or layers that keep each rank's own gradients."""
    layers = list(layers) if isinstance(layers, list | tuple | set) else [] if layers is None else [layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers: {layer!r} is no layer of Keras")
    return [variable for layer in layers for variable in layer.trainable_weights]


def _tensor(gradient: Any, dense: bool) -> Any:
    if gradient is None or (isinstance(gradient, tf.IndexedSlices) and not dense):
        return gradient
    return tf.convert_to_tensor(gradient)


def _built(gradient: Any) -> int:
    tensor = _values(gradient)
    return order(tensor.op) if is_symbolic(tensor) else 0


def _values(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _with_values(gradient: Any, values: Any) -> Any:
    slices = isinstance(gradient, tf.IndexedSlices)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape) if slices else values


def _sum(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _compressed(gradient: Any, compression: Any, factor: float) -> tuple[Any, Any]:
    values, context = compression.compress(times(_values(gradient), factor))
    return _with_values(gradient, values), context


def _decompressed(gradient: Any, compression: Any, context: Any, factor: float) -> Any:
    return _with_values(gradient, times(compression.decompress(_values(gradient), context), factor))
