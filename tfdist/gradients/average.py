"""Gradient average, the default reducer: fuses dense gradients into buckets, and exchanges IndexedSlices as rows.

IndexedSlices stay IndexedSlices. They hold each row that any rank touched once, or the unmerged rows of all ranks if
that is configured. A dense average in their place would change the training, since the sparse updates of momentum and
RMSProp leave untouched rows alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.core import exclusions
from tfdist.core.settings import CONFIGURABLE
from tfdist.engine.collective import Collective
from tfdist.gradients.rows import of_any_rows, row_parts, spread, way_of
from tfdist.graph import function_state
from tfdist.graph.fusing import fused
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import Gradient
from tfdist.graph.op_builder import Builder, by_value, plan_names
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
        names, number = plan_names(names)
        accumulates = self._accumulation is not None
        more = [] if self._accumulation is None else [f"sums of {self._accumulation.steps} steps"]
        whole = {i: g for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)}
        slices = {i: g for i, g in enumerate(gradients) if i not in whole}
        compiled = job.compiles and function_state.compiled_as()
        fixed = {i: spread(g, group) for i, g in slices.items()} if compiled else {}
        indices = {i: indices for i, (indices, _) in fixed.items()}
        whole |= {i: values for i, (_, values) in fixed.items()}
        parts = [
            *fused(indices, [f"indices of {name}" for name in names], job, group, op="sum"),
            *fused(whole, names, job, group, more, accumulates=accumulates),
            *row_parts({} if fixed else slices, names, job, group, more, accumulates),
        ]

        exchanges, everyone = [part.exchange for part in parts], group is job.world
        collective = Collective(
            f"average of gradients {number}", exchanges, group, job.recorder, everyone, averages=True
        )
        made_by = functools.partial(_made_by, job, [names[i] for i in slices], job.switches.sparse_as_dense)
        builder = Builder(collective, parts, job, job.switches.shares, made_by, full_names, self._accumulation)
        found = by_value(parts, builder.build())
        return [_like(own, *results, fixed=bool(fixed)) for own, results in zip(gradients, found, strict=True)]


def _like(own: Gradient, *results: tf.Tensor, fixed: bool) -> Gradient:
    """Return the average of a gradient, in its dtypes. ``fixed``: its rows are more than those that it replaces."""
    if isinstance(own, tf.Tensor):
        return tf.cast(results[0], own.dtype)
    indices, values = of_any_rows(*results) if fixed else results
    return tf.IndexedSlices(tf.cast(values, own.dtype), tf.cast(indices, own.indices.dtype), own.dense_shape)


def reducer_of(job: Job, accumulation: Accumulation | None = None) -> Reducer:
    """Return the job's reducer, or the average if the job has chosen none.

    Raises:
      RuntimeError: gradients are accumulated, and the job's own reducer does not support accumulation.
    """
    if accumulation is not None and job.switches.reducer is not None:
        reducer = f"gradients go through the reducer {type(job.switches.reducer).__name__}"
        raise RuntimeError(exclusions.HELD_AND_REDUCER.told(f"accumulate_steps={accumulation.steps}", reducer))
    return job.switches.reducer or Average(job, accumulation)


def _made_by(job: Job, tables: Sequence[str], made_dense: bool) -> dict[str, object]:
    """Return the current values of the settings that an average with slices for these variables depends on."""
    switches = job.switches
    settings = switches.settings
    made: dict[str, object] = {n: getattr(settings, n) for n in _BUILT_BY}
    made.update({f"sparse for {name}": way_of(name, job) for name in tables})
    return made | {"sparse_as_dense": switches.sparse_as_dense} if tables or made_dense else made
