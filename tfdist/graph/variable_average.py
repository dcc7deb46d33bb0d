"""Variable average: the fused mean over the ranks of variables' values, where they are then set to what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.engine.collective import Collective
from tfdist.graph import function_state
from tfdist.graph.gradient_average import few, fused
from tfdist.graph.graph_state import make_state
from tfdist.graph.job import Job
from tfdist.graph.markers import numberless
from tfdist.graph.op_builder import Made, build, signature


def means(values: Sequence[tf.Tensor], names: Sequence[str], job: Job, made_by: Callable[[], Made]) -> list[tf.Tensor]:
    """Build one fused, ordered average of floating-point tensors in a graph or a function.

    Variables travel in their own dtype: what was rounded would be rounded in each block again.

    Collective: all ranks, with the same names, dtypes and shapes.

    Args:
      values: of the variables, in the same order on all ranks.
      names: of the variables.
      job: the ranks and settings.
      made_by: see ``op_builder.build``.

    Returns:
      As many, of the same dtypes and shapes.
    """
    in_session = function_state.in_session()
    shown = list(names) if in_session else [numberless(name) for name in names]
    lines = [signature("variable", name, value) for name, value in zip(shown, values, strict=True)]
    members, parts = fused(values, shown, lines, job, job.world)
    graph = tf.compat.v1.get_default_graph()
    name = f"average of variables {len(make_state(graph).world_collectives) if in_session else few(shown)}"
    exchanges = [part.exchange for part in parts]
    collective = Collective(name, exchanges, job.world, job.recorder, everyone=True, averages=True)
    built = build(collective, parts, job, job.switches.shares, made_by, names)
    results = {
        i: mean
        for of_bucket, found in zip(members, built, strict=True)
        for i, mean in zip(of_bucket, found, strict=True)
    }
    return [results[i] for i in range(len(values))]
