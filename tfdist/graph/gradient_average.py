"""Gradient average, the default reducer: fuses dense gradients into buckets, and exchanges IndexedSlices as rows.

IndexedSlices stay IndexedSlices. They hold each row that any rank touched once, or the unmerged rows of all ranks if
that is configured. A dense average in their place would change the training, since the sparse updates of momentum and
RMSProp leave untouched rows alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tfdist.core import exclusions
from tfdist.core.settings import CONFIGURABLE
from tfdist.engine.collective import Collective
from tfdist.graph import function_state
from tfdist.graph.fusing import few, fused, gradient_to_wire
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job, Reducer
from tfdist.graph.markers import Gradient, numberless
from tfdist.graph.op_builder import Part, build, signature
from tfdist.graph.slices import indices_part, of_any_rows, row_parts, spread, way_of
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
        slices = [i for i, g in enumerate(gradients) if not isinstance(g, tf.Tensor)]
        fixed = {i: spread(gradients[i], group) for i in slices} if _compiled(job) else {}
        whole = {i: ("gradient", g) for i, g in enumerate(gradients) if isinstance(g, tf.Tensor)}
        whole |= {i: ("slices for", values) for i, (_, values) in fixed.items()}
        buckets, parts = self._buckets(whole, names, group)
        of_parts: list[list[int]] = []  # the gradients whose rows each further part exchanges
        if fixed:
            parts.append(
                indices_part([indices for indices, _ in fixed.values()], [names[i] for i in fixed], job, group)
            )
        elif slices:
            own, of_slices = [gradients[i] for i in slices], [names[i] for i in slices]
            found, more = row_parts(own, of_slices, job, group, self._sums(), self._accumulation is not None)
            of_parts, parts = [[slices[k] for k in members] for members in found], parts + more

        exchanges, everyone = [part.exchange for part in parts], group is job.world
        collective = Collective(self._name(names), exchanges, group, job.recorder, everyone, averages=True)
        made_by = functools.partial(_made_by, job, [names[i] for i in slices], job.switches.sparse_as_dense)
        built = build(collective, parts, job, job.switches.shares, made_by, full_names, self._accumulation)
        averages = {
            i: tf.cast(t, gradients[i].dtype)
            for members, of_bucket in zip(buckets, built, strict=False)
            for i, t in zip(members, of_bucket, strict=True)
        }
        rows = {i: of_any_rows(built[-1][k], averages[i]) for k, i in enumerate(fixed)}
        for members, flat in zip(of_parts, built[len(buckets) :], strict=False):
            rows.update(zip(members, zip(flat[::2], flat[1::2], strict=True), strict=True))
        averages.update({i: _slices(gradients[i], *pair) for i, pair in rows.items()})
        return [averages[i] for i in range(len(gradients))]

    def _buckets(
        self, whole: Mapping[int, tuple[str, tf.Tensor]], names: Sequence[str], group: Group
    ) -> tuple[list[list[int]], list[Part]]:
        """Return the exchanges of tensors, by numbers with words for the plan; and the numbers of each exchange."""
        job, own = self._job, [tensor for _, tensor in whole.values()]
        lines = [signature(kind, names[i], tensor) for i, (kind, tensor) in whole.items()]
        sent, of_whole = [gradient_to_wire(tensor, job) for tensor in own], [names[i] for i in whole]
        given = None if self._accumulation is None else own
        found, parts = fused(sent, of_whole, lines, job, group, self._sums(), given)
        numbers = list(whole)
        return [[numbers[k] for k in members] for members in found], parts

    def _sums(self) -> list[str]:
        """Return the number of accumulated steps as a line of the plan."""
        return [] if self._accumulation is None else [f"sums of {self._accumulation.steps} steps"]

    def _name(self, names: Sequence[str]) -> str:
        """Return a name that is unique in a session's graph. A function that is traced again gets the same name."""
        if function_state.in_session():
            return f"average of gradients {len(make_state(tf.compat.v1.get_default_graph()).world_collectives)}"
        return f"average of gradients ({few(names)})"


def _slices(own: tf.IndexedSlices, indices: tf.Tensor, values: tf.Tensor) -> tf.IndexedSlices:
    """Return the average of slices, in their dtypes."""
    return tf.IndexedSlices(tf.cast(values, own.dtype), tf.cast(indices, own.indices.dtype), own.dense_shape)


def _compiled(job: Job) -> bool:
    """Return whether XLA compiles the function under construction, and the job's exchange supports it."""
    return bool(function_state.compiled_as(function_state.current())) and job.compiles


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
