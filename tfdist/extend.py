"""Extension points: add a reducer, a stage of an update, or an exchange in the graph.

Add the same extensions on all ranks, before the first step.

::

    import tfdist
    from tfdist import extend


    class Centralised(extend.Stage):
        '''Averages without their mean (Yong et al., "Gradient centralization", ECCV 2020, equation 1).'''

        def update(self, update, go_on):
            pairs = [(g if g is None else g - tf.reduce_mean(g), v) for g, v in update.pairs]
            return go_on(update.with_(pairs=pairs))


    extend.add_stage(Centralised())
"""

from __future__ import annotations

from typing import Literal

from tfdist.core import exclusions
from tfdist.engine.engines import Bucket
from tfdist.gradients.average import Average
from tfdist.graph.graph_exchange import GraphExchange
from tfdist.graph.job import Reducer
from tfdist.start import process
from tfdist.updates.order import pipeline_of
from tfdist.updates.pipeline import GoOn, Stage, Update
from tfdist.updates.windows import STEPS as WINDOW_STEPS
from tfdist.updates.windows import Windows

__all__ = [
    "WINDOW_STEPS",
    "Bucket",
    "GoOn",
    "GraphExchange",
    "Reducer",
    "Stage",
    "Update",
    "Windows",
    "add_stage",
    "average",
    "remove_stage",
    "use_exchange",
    "use_reducer",
]


def average() -> Reducer:
    """Return the default reducer: the mean of gradients over the ranks.

    Example:
      >>> reducer = tfdist.extend.average()
    """
    return Average(process().job)


def use_reducer(reducer: Reducer | None) -> None:
    """Use a reducer instead of the average, in graphs and eager steps from now on.

    Args:
      reducer: object whose ``reduce`` gets the gradients of a step, the names of their variables and the ranks. It
        returns the gradients to apply. None: the average again.

    Example::

        class Clipped:
            def reduce(self, gradients, names, group):
                return [tf.minimum(g, 2.0) for g in extend.average().reduce(gradients, names, group)]


        extend.use_reducer(Clipped())
    """
    process().job.switches.reducer = reducer


def add_stage(stage: Stage, where: Literal["own", "averages"] = "averages") -> None:
    """Add a stage to the updates that are built or executed from now on.

    Args:
      stage: its ``update`` gets what an optimizer is to apply, and passes it on to the next stage.
      where: ``own``: before the exchange, with this rank's own gradients. If gradients were averaged earlier, for
        example before a script's clipping, the stage gets averages. ``averages``: after the exchange. What a stage
        computes from averages alone is the same on all ranks.

    Raises:
      ValueError: ``where`` is neither ``own`` nor ``averages``.
      RuntimeError: ``tfdist.horovod`` is in use, where the script itself asks for each reduction.

    Example:
      >>> stage = tfdist.extend.Stage()  # a subclass overrides ``update``
      >>> tfdist.extend.add_stage(stage)
      >>> tfdist.extend.remove_stage(stage)
    """
    if where not in ("own", "averages"):
        raise ValueError(f"add_stage(where={where!r}): it is 'own' or 'averages'")
    if not process().job.switches.automatic:
        raise RuntimeError(exclusions.HOROVOD_AND_STAGE.told("tfdist.horovod", f"the stage {type(stage).__name__}"))
    pipeline_of(process().steps).add(stage, before_exchange=where == "own")


def remove_stage(stage: Stage) -> None:
    """Remove a stage that was added before.

    Raises:
      ValueError: the stage was not added.

    Example:
      >>> stage = tfdist.extend.Stage()
      >>> tfdist.extend.add_stage(stage)
      >>> tfdist.extend.remove_stage(stage)
    """
    pipeline_of(process().steps).remove(stage)


def use_exchange(exchange: GraphExchange | None) -> None:
    """Combine gradients by TensorFlow operations instead of engines, in what is built or executed from now on.

    Args:
      exchange: builds the operations for the buckets that it accepts. Engines combine the other buckets, and all
        accumulated gradients. None: engines combine everything again.

    Example::

        extend.use_exchange(Gathered())  # tests/multirank/cases_toy_exchange.py
    """
    process().job.switches.exchange = exchange
