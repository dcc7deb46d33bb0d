"""Tensor collectives: all-reduce, broadcast, all-gather … of the script's own values, in a graph or eagerly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import without_control_dependencies
from tfdist.core.reduce_ops import OPS, Op
from tfdist.engine import other_exchanges
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.other_exchanges import CollectiveCall, holds_objects, own_copy
from tfdist.graph.derivatives import differentiable, nothing_after
from tfdist.graph.fusing import bucket_of
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.graph.op_builder import Builder, Part, by_value, signature
from tfdist.transport.interfaces import Channel, Group

Function = Callable[[Channel, Sequence[np.ndarray]], list[np.ndarray]]


class TensorCollectives:
    """Collectives of a group of ranks on tensors and values; see the functions of the same names in ``tfdist``.

    Args:
      job: the ranks and settings.
      group: ranks that take part.
    """

    def __init__(self, job: Job, group: Group) -> None:
        self._job = job
        self._group = group
        self._calls = 0

    def all_reduce(self, value: Any, op: Op, name: str = "") -> Any:
        """See ``tfdist.all_reduce``. In a graph, ``name`` is the same on all ranks; default: the operation's name."""
        value, name = _named(value, name)
        _check(op, value)

        def forward(own: Any) -> Any:
            if _in_graph(own) and self._group.size > 1:
                return self._reduced([own], [name], op, name)[0]
            return self._run(f"all_reduce ({op})", functools.partial(other_exchanges.all_reduce, op), [own], name)[0]

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            _check_derivative("all_reduce", op)
            return self.all_reduce(upstream, op, f"the gradient of {name}")

        return differentiable(value, forward, backward)

    def all_reduce_together(self, tensors: Sequence[tf.Tensor], op: Op, trains: bool = False) -> list[tf.Tensor]:
        """Reduce tensors in one collective, an exchange for each dtype, in a graph or eagerly; without derivatives.

        Args:
          tensors: tensors with the same dtypes and shapes on all ranks.
          op: reduction operation; see ``tfdist.all_reduce``.
          trains: True if the tensors train variables, which then begin with rank 0's values.
        """
        for tensor in tensors:
            _check(op, tensor)
        if self._group.size == 1 or not tensors:
            return list(tensors)
        names = [f"tensor {number}" for number in range(len(tensors))]
        return self._reduced(tensors, names, op, f"{len(tensors)} tensors", trains and self._job.switches.shares)

    def _reduced(
        self, tensors: Sequence[tf.Tensor], names: Sequence[str], op: Op, of: str, trains: bool = False
    ) -> list[tf.Tensor]:
        """Return the reduced tensors, by one collective."""
        members: dict[tf.DType, list[int]] = {}
        for number, tensor in enumerate(tensors):
            members.setdefault(tensor.dtype, []).append(number)
        parts = []
        for dtype, numbers in members.items():
            own = [tf.identity(tensors[n]) for n in numbers]  # under the caller's control dependencies
            lines = [signature("all_reduce", names[n], tensors[n]) for n in numbers]
            exchange = AllReduce(bucket_of(f"tensors of {dtype.name}", op, own), lines)
            parts.append(Part(exchange, own, [tf.TensorSpec(t.shape, t.dtype) for t in own], values=numbers))
        return [result for (result,) in by_value(parts, self._built("all_reduce", parts, of, trains))]

    def broadcast(self, value: Any, root: int) -> Any:
        """See ``tfdist.broadcast``."""
        value, name = _named(value)
        if not 0 <= root < self._group.size:
            raise ValueError(f"root={root} is not one of the {self._group.size} ranks of the group")
        if not isinstance(value, tf.Tensor):
            return self._group.control.broadcast_object(value, self._place("broadcast"), root)
        kind, function = f"broadcast from {root}", functools.partial(other_exchanges.broadcast, root)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            total = self.all_reduce(upstream, "sum", f"the gradient of {name}")
            return total if self._group.rank == root else nothing_after(total)

        return differentiable(value, lambda own: self._run(kind, function, [own], name)[0], backward)

    def all_gather(self, value: Any, name: str = "") -> Any:
        """See ``tfdist.all_gather``."""
        value, name = _named(value, name)

        def forward(own: Any) -> Any:
            return self._run("all_gather", other_exchanges.all_gather, [own], name, False, [_rows_of(own)])[0]

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            total = self.all_reduce(upstream, "sum", f"the gradient of {name}")
            rows = self.all_gather(tf.shape(value)[:1], f"the rows of {name}")
            start = tf.reduce_sum(rows[: self._group.rank])
            return total[start : start + tf.shape(value)[0]]

        return differentiable(value, forward, backward)

    def reduce_scatter(self, value: Any, op: Op) -> Any:
        """See ``tfdist.reduce_scatter``."""
        value, name = _named(value)
        _check(op, value)
        kind, function = f"reduce_scatter ({op})", functools.partial(other_exchanges.reduce_scatter, op)

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            _check_derivative("reduce_scatter", op)
            gathered = self.all_gather(upstream, f"the gradient of {name}")
            return gathered / self._group.size if op == "mean" else gathered

        return differentiable(
            value, lambda own: self._run(kind, function, [own], name, shapes=[_rows_of(own)])[0], backward
        )

    def all_to_all(self, value: Any, splits: Any, name: str = "") -> tuple[Any, Any]:
        """See ``tfdist.all_to_all``."""
        value, name = _named(value, name)
        if splits is None:
            splits = _even(tf.shape(value)[0] if _in_graph(value) else np.shape(value)[0], self._group.size)
        splits = tf.cast(splits, tf.int64) if _in_graph(value) else np.asarray(splits, np.int64)
        shapes = [_rows_of(value), [self._group.size]]
        counts: list[Any] = []

        def forward(own: Any) -> Any:
            received, count = self._run("all_to_all", other_exchanges.all_to_all, [own, splits], name, False, shapes)
            counts.append(count)
            return received

        def backward(upstream: tf.Tensor) -> tf.Tensor:
            return self.all_to_all(upstream, counts[0], f"the gradient of {name}")[0]

        return differentiable(value, forward, backward), counts[0]

    def barrier(self) -> None:
        """See ``tfdist.barrier``."""
        self._group.control.arrive(self._place("barrier"))

    def _place(self, kind: str) -> str:
        self._calls += 1
        return f"tfdist.{kind}, call {self._calls}"

    def _run(
        self,
        kind: str,
        function: Function,
        values: Sequence[Any],
        name: str,
        same_size: bool = True,
        shapes: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Return what ``function`` returns for the values. In a graph ``shapes`` has its shapes; None: the values'."""
        if any(_in_graph(v) for v in values):
            tensors = [tf.convert_to_tensor(v) for v in values]
            if self._group.size == 1:
                return [tf.identity(t) for t in tensors]
            pairs = zip(shapes or [t.shape for t in tensors], tensors, strict=True)
            compared = tensors if same_size else [tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in tensors]
            exchange = CollectiveCall("tensor", [signature(kind, name, t) for t in compared], function, same_size)
            return self._built(kind, [Part(exchange, tensors, [tf.TensorSpec(s, t.dtype) for s, t in pairs])], name)[0]
        arrays = [own_copy(v.numpy() if isinstance(v, tf.Tensor) else v) for v in values]
        # Other shapes or dtypes would be combined wrongly: they are part of the name by which the ranks meet.
        shape = list(arrays[0].shape) if same_size else ["rows", *arrays[0].shape[1:]]
        sized = not holds_objects(arrays[0].dtype)
        place = self._place(f"{kind} of {arrays[0].dtype.name if sized else 'strings'} {shape}")
        self._group.control.arrive(place, size_bytes=arrays[0].nbytes if same_size and sized else 0)
        with np.errstate(over="ignore", invalid="ignore"):  # infinities are values, as in TensorFlow
            results = function(self._group.control, arrays)
        return [
            tf.constant(r, v.dtype) if isinstance(v, tf.Tensor) else r for r, v in zip(results, values, strict=True)
        ]

    def _built(self, kind: str, parts: Sequence[Part], of: str, broadcasts: bool = False) -> list[list[tf.Tensor]]:
        """Return the results of each part of one collective, built in a graph or executed now."""
        graph = tf.compat.v1.get_default_graph()
        everyone, eagerly = self._group is self._job.world, tf.executing_eagerly()
        # Ranks in different groups may have different graphs, but the name must be the same.
        number = len(make_state(graph).world_collectives) if everyone and not eagerly else ""
        name = f"{kind} {number} of {of}"
        collective = Collective(name, [part.exchange for part in parts], self._group, self._job.recorder, everyone)
        if eagerly:
            return Builder(collective, parts, self._job).build()
        with without_control_dependencies(graph), tf.name_scope(f"tfdist/{kind.split()[0]}"):
            return Builder(collective, parts, self._job, broadcasts).build()


def _in_graph(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not hasattr(value, "numpy")


def _named(value: Any, name: str = "") -> tuple[Any, str]:
    """Return a value, for a variable its tensor, and the name by which a graph's ranks know it."""
    value = tf.convert_to_tensor(value) if isinstance(value, tf.Variable) else value
    return value, name or (str(value.op.name) if _in_graph(value) else "")


def _rows_of(value: Any) -> list[int | None] | None:
    """Return the static shape with an unknown number of rows; None outside a graph."""
    return [None, *value.shape[1:]] if _in_graph(value) else None


def _check(op: Op, value: Any) -> None:
    """Raise if this operation cannot combine the value."""
    if op not in OPS:
        raise ValueError(f"op={op!r} is unknown; use one of {', '.join(map(repr, OPS))}")
    dtype = np.dtype(value.dtype.as_numpy_dtype) if isinstance(value, tf.Tensor) else np.asarray(value).dtype
    if holds_objects(dtype):
        raise ValueError(f"strings and objects ({dtype}) cannot be combined; tfdist.all_gather has those of all ranks")
    if op == "mean" and dtype.kind in "iub":
        raise ValueError(f"the mean of {dtype.name} values needs a float; use op='sum', or cast to a float")
    if op in ("min", "max") and dtype.kind == "c":
        raise ValueError(f"{dtype.name} has no {op}: complex numbers are not ordered; reduce tf.abs, for example")


def _check_derivative(kind: str, op: Op) -> None:
    """Raise for an operation that is not linear, as it has no derivative here."""
    if op not in ("sum", "mean"):
        raise LookupError(f"{kind} of {op!r} has no derivative: put tf.stop_gradient around it")


def _even(rows: Any, parts: int) -> Any:
    """Return the sizes of nearly equal parts of rows, the first parts longer; a tensor for a tensor."""
    if isinstance(rows, tf.Tensor):
        return rows // parts + tf.cast(tf.range(parts) < rows % parts, rows.dtype)
    return [rows // parts + (i < rows % parts) for i in range(parts)]
