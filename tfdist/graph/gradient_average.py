"""Gradient average, the default reducer: fuses dense gradients into buckets, and exchanges IndexedSlices as rows.

IndexedSlices stay IndexedSlices. They hold each row that any rank touched once, or the unmerged rows of all ranks if
that is configured. A dense average in their place would change the training, since the sparse updates of momentum and
RMSProp leave untouched rows alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import cast

import numpy as np
import tensorflow as tf

from tfdist.core import buckets, exclusions
from tfdist.core.reduce_ops import Op
from tfdist.core.settings import CONFIGURABLE
from tfdist.core.wires import float32
from tfdist.core.wires.format import Format
from tfdist.core.wires.table import FORMATS
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Bucket
from tfdist.engine.sparse_rows import Rows, SparseMode, Table
from tfdist.graph import function_state
from tfdist.graph.graph_exchange import part_of
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import Gradient, numberless
from tfdist.graph.op_builder import Part, build, signature
from tfdist.graph.step_sums import Accumulation
from tfdist.transport.interfaces import Group

# Settings that an average is built by. Sparse modes are compared per table; blocks read their settings when they begin.
_BUILT_BY = tuple(name for name in CONFIGURABLE if name != "sparse" and not name.startswith("block_"))


class Average:
    """The default reducer: the mean over the ranks, as one process would compute it.

    Args:
      job: the ranks and settings.
      accumulation: adds up several steps' gradients before they are exchanged; None: each step is exchanged.
    """

    def __init__(self, job: Job, accumulation: Accumulation | None = None) -> None:
        self._job = job
        self._accumulation = accumulation

    def reduce(self, gradients: Sequence[Gradient], names: Sequence[str], group: Group) -> list[Gradient]:
        """Build one fused, ordered average in the current graph, or execute it eagerly. See ``job.Reducer``.

        Slices are merged: each row that any rank touched appears once. They are concatenated by rank if they are to
        stay unmerged, and in functions that XLA compiles, where shapes are fixed.
        """
        job, full_names = self._job, names
        if not function_state.in_session():
            names = [numberless(name) for name in names]
        dense = [i for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)]
        sparse = [i for i, g in enumerate(gradients) if not isinstance(g, tf.Tensor)]
        spread = _compiled(job)
        rows = {i: _spread(gradients[i], group) for i in sparse if spread}
        whole = [*dense, *rows]
        own = [gradients[i] for i in dense] + [values for _, values in rows.values()]
        kinds = ["gradient"] * len(dense) + ["slices for"] * len(rows)
        lines = [signature(kind, names[i], tensor) for kind, i, tensor in zip(kinds, whole, own, strict=True)]
        given = None if self._accumulation is None else own
        found, parts = fused(
            [_to_wire(t, job) for t in own], [names[i] for i in whole], lines, job, group, self._sums(), given
        )
        members = [[whole[i] for i in b] for b in found]
        if rows:
            parts.append(_indices([i for i, _ in rows.values()], [names[i] for i in rows], job, group))
        elif sparse:
            parts.append(self._rows([gradients[i] for i in sparse], [names[i] for i in sparse]))

        exchanges = [part.exchange for part in parts]
        everyone = group is job.world
        collective = Collective(self._name(names), exchanges, group, job.recorder, everyone, averages=True)
        made_by = functools.partial(_made_by, job, [names[i] for i in sparse], job.switches.sparse_as_dense)
        built = build(collective, parts, job, job.switches.shares, made_by, full_names, self._accumulation)
        results: dict[int, Gradient] = {}
        for of_bucket, averages in zip(members, built, strict=False):
            results.update({i: tf.cast(t, gradients[i].dtype) for i, t in zip(of_bucket, averages, strict=True)})
        for k, i in enumerate(sparse):
            if rows:
                indices = _of_any_rows(tf.cast(built[-1][k], gradients[i].indices.dtype))
                values = _of_any_rows(results[i])
            else:
                indices, values = built[-1][2 * k : 2 * k + 2]
            results[i] = tf.IndexedSlices(tf.cast(values, gradients[i].dtype), indices, gradients[i].dense_shape)
        return [results[i] for i in range(len(gradients))]

    def _rows(self, slices: Sequence[tf.IndexedSlices], names: Sequence[str]) -> Part:
        ways = [_way(name, self._job) for name in names]
        own = [s if way == "unmerged" else merge(s) for s, way in zip(slices, ways, strict=True)]
        flat = [t for s in own for t in (s.indices, _to_wire(s.values, self._job))]
        tables = [
            _table(name, ways[k], s, flat[2 * k + 1]) for k, (name, s) in enumerate(zip(names, slices, strict=True))
        ]
        # The number of rows may differ between ranks, the shape of a row must not.
        lines = [signature("slices for", name, _unknown_rows(s.values)) for name, s in zip(names, slices, strict=True)]
        exchange = Rows(f"rows of {few(names)}", tables, lines + self._sums())
        given = flat if self._accumulation is None else [t for s in own for t in (s.indices, s.values)]
        return Part(exchange, given, [_unknown_rows(t) for t in flat])

    def _sums(self) -> list[str]:
        """Return the number of accumulated steps as a line of the plan."""
        return [] if self._accumulation is None else [f"sums of {self._accumulation.steps} steps"]

    def _name(self, names: Sequence[str]) -> str:
        """Return a name that is unique in a session's graph. A function that is traced again gets the same name."""
        if function_state.in_session():
            return f"average of gradients {len(make_state(tf.compat.v1.get_default_graph()).world_collectives)}"
        return f"average of gradients ({few(names)})"


def _compiled(job: Job) -> bool:
    """Return whether XLA compiles the function under construction, and the job's exchange supports it."""
    graph = function_state.current()
    return graph is not None and bool(function_state.compiled_as(graph)) and job.compiles


def _spread(slices: tf.IndexedSlices, group: Group) -> tuple[tf.Tensor, tf.Tensor]:
    """Return slices as tensors whose sum over the ranks is the concatenation of all ranks' slices.

    Args:
      slices: values [rows, …], with the same number of rows on all ranks.
      group: ranks whose slices are concatenated.

    Returns:
      Indices [rows * ranks], int64, and values [rows * ranks, …]; zeros in the rows of other ranks.
    """

    def spread(tensor: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(tensor)
        before, behind = group.rank * shape[0], (group.size - 1 - group.rank) * shape[0]
        padding = [[before, behind], *([[0, 0]] * (tensor.shape.rank - 1))]
        found = tf.pad(tensor, padding)
        rows = tensor.shape[0]
        found.set_shape([None if rows is None else rows * group.size, *tensor.shape[1:]])
        return found

    return spread(tf.cast(slices.indices, tf.int64)), spread(slices.values)


def _of_any_rows(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor with an unknown number of rows, as it replaces this rank's tensor, which has fewer rows."""
    return tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])


def _indices(indices: Sequence[tf.Tensor], names: Sequence[str], job: Job, group: Group) -> Part:
    """Return the part that sums the indices of ``_spread`` over the ranks."""
    bucket = bucket_of(f"indices of {few(names)}", "sum", indices)
    lines = [signature("indices for", name, own) for name, own in zip(names, indices, strict=True)]
    exchange = job.switches.exchange
    if exchange.takes(bucket, group):
        return part_of(exchange, bucket, lines, indices, group)
    return Part(AllReduce(bucket, lines), indices, [_spec(t) for t in indices])


def fused(
    tensors: Sequence[tf.Tensor],
    names: Sequence[str],
    lines: Sequence[str],
    job: Job,
    group: Group | None = None,
    more: Sequence[str] = (),
    given: Sequence[tf.Tensor] | None = None,
    format: Format | None = None,
) -> tuple[list[list[int]], list[Part]]:
    """Return the exchanges that average dense tensors, in buckets.

    Args:
      tensors: tensors in the dtypes in which they are sent.
      names: names of their variables.
      lines: plan lines that describe the tensors.
      job: the ranks and settings.
      group: ranks for which the job's graph exchange may combine the tensors; None: engines combine them.
      more: further lines of the plan.
      given: arguments of the exchanges, if not ``tensors``; for accumulation, the gradients before their cast.
      format: format in which the tensors travel; None: that of gradients.

    Returns:
      The positions of the tensors of each bucket, and the part that exchanges each bucket.
    """
    items = [buckets.Item(t.dtype.name, _size_bytes(t)) for t in tensors]
    members = buckets.plan(items, int(job.switches.settings.bucket_mb * 2**20))
    parts = []
    for number, of_bucket in enumerate(members):
        what = f"bucket {number} ({few([names[i] for i in of_bucket])})"
        own = [tensors[i] for i in of_bucket]
        bucket = bucket_of(what, "mean", own, format or _format(job))
        of_tensors = [*(lines[i] for i in of_bucket), *more]
        # (Sums over several steps are kept on the host.)
        exchange = job.switches.exchange if given is None and group is not None else None
        if exchange is not None and group is not None and exchange.takes(bucket, group):
            parts.append(part_of(exchange, bucket, of_tensors, own, group))
        else:
            host = AllReduce(bucket, of_tensors, tuned=True)
            parts.append(Part(host, [(given or tensors)[i] for i in of_bucket], [_spec(t) for t in own]))
    return members, parts


def reducer_of(job: Job, accumulation: Accumulation | None = None) -> Reducer:
    """Return the job's reducer, or the average if the job has chosen none.

    Raises:
      RuntimeError: gradients are accumulated, and the job's own reducer does not support accumulation.
    """
    if accumulation is not None and job.switches.reducer is not None:
        reducer = f"gradients go through the reducer {type(job.switches.reducer).__name__}"
        raise RuntimeError(exclusions.HELD_AND_REDUCER.told(f"accumulate_steps={accumulation.steps}", reducer))
    return job.switches.reducer or Average(job, accumulation)


def bucket_of(what: str, op: Op, tensors: Sequence[tf.Tensor], format: Format = float32.FORMAT) -> Bucket:
    """Return a bucket: tensors of one dtype that are combined together.

    Args:
      what: description for messages.
      op: reduction operation, for example ``"mean"``.
      tensors: tensors of one dtype.
      format: wire format between hosts; used if the tensors are float32 and their shapes are known.
    """
    sizes = [t.shape.num_elements() for t in tensors]
    known = tuple(s for s in sizes if s is not None)
    dtype = np.dtype(tensors[0].dtype.as_numpy_dtype)
    if dtype != np.float32 or len(known) < len(sizes):
        format = float32.FORMAT
    return Bucket(what, op, dtype, known if len(known) == len(sizes) else None, format)


def _to_wire(tensor: tf.Tensor, job: Job) -> tf.Tensor:
    return to_wire(tensor, _format(job))


def to_wire(tensor: tf.Tensor, format: Format) -> tf.Tensor:
    """Return the tensor in the dtype in which it is sent; half-precision values are added in float32."""
    return tf.cast(tensor, format.dtype) if tensor.dtype == tf.float32 else tensor


def _format(job: Job) -> Format:
    """Return the format of gradients; in a warm-up before blocks that travel in few bits they travel unchanged."""
    found = FORMATS[job.switches.settings.compression]
    return found if found.of_gradients else float32.FORMAT


def _table(name: str, way: SparseMode, slices: tf.IndexedSlices, values: tf.Tensor) -> Table:
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return Table(
        name,
        None if shape is None else int(shape[0]),
        way,
        np.dtype(slices.indices.dtype.as_numpy_dtype),
        np.dtype(values.dtype.as_numpy_dtype),
        tuple(slices.values.shape[1:].as_list()),
    )


def _made_by(job: Job, tables: Sequence[str], made_dense: bool) -> dict[str, object]:
    """Return the current values of the settings that an average with slices for these variables depends on."""
    switches = job.switches
    settings = switches.settings
    made: dict[str, object] = {n: getattr(settings, n) for n in _BUILT_BY}
    made.update({f"sparse for {name}": _way(name, job) for name in tables})
    return made | {"sparse_as_dense": switches.sparse_as_dense} if tables or made_dense else made


def _way(name: str, job: Job) -> SparseMode:
    switches = job.switches
    return switches.sparse_ways.get(name.removesuffix(":0"), cast("SparseMode", switches.settings.sparse))


def _spec(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def _unknown_rows(tensor: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)


def merge(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Merge slices: each row appears once, and the values of duplicates are added.

    Args:
      slices: values [rows, …], indices [rows].

    Returns:
      Values [distinct rows, …], with ascending indices.
    """
    found, where = tf.unique(slices.indices)
    count = tf.size(found)
    order = tf.math.top_k(-found, count).indices  # ascending
    places = tf.gather(tf.math.invert_permutation(order), where)
    values = tf.math.unsorted_segment_sum(slices.values, places, count)
    values.set_shape([None, *slices.values.shape[1:]])
    return tf.IndexedSlices(values, tf.gather(found, order), slices.dense_shape)


def _size_bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def few(names: Sequence[str]) -> str:
    """Return names for a message: up to three, else the first and the last."""
    return ", ".join(names) if len(names) <= 3 else f"{names[0]}, …, {names[-1]}"
