"""Extensions of one's own: a reducer, a stage of an update, an engine, an exchange in the graph.

The same on all ranks, before the first step.

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
from tfdist.core.log import announce
from tfdist.core.windows import STEPS as WINDOW_STEPS
from tfdist.core.windows import Windows
from tfdist.engine.engines import AllReduceContext, Bucket, BucketAllReduce, Candidates, Engine, register
from tfdist.graph.gradient_average import Average
from tfdist.graph.graph_exchange import GraphExchange
from tfdist.graph.job import Reducer
from tfdist.start import process
from tfdist.updates.order import pipeline_of
from tfdist.updates.pipeline import GoOn, Stage, Update

__all__ = [
    "WINDOW_STEPS",
    "AllReduceContext",
    "Bucket",
    "BucketAllReduce",
    "Engine",
    "GoOn",
    "GraphExchange",
    "Reducer",
    "Stage",
    "Update",
    "Windows",
    "add_engine",
    "add_stage",
    "average",
    "remove_stage",
    "use_exchange",
    "use_reducer",
]


def average() -> Reducer:
    """What becomes of gradients where no other reducer is used: their mean over the ranks."""
    return Average(process().job)


def use_reducer(reducer: Reducer | None) -> None:
    """Have a reducer take the place of the average, in what is built or executed from now on.

    Args:
      reducer: gets the gradients of a step, the names of their variables and the ranks, and returns what is applied
        instead; None: the average again.

    ::

        class Clipped:
            def reduce(self, gradients, names, group):
                return [tf.minimum(g, 2.0) for g in extend.average().reduce(gradients, names, group)]


        extend.use_reducer(Clipped())
    """
    process().job.switches.reducer = reducer


def add_stage(stage: Stage, where: Literal["own", "averages"] = "averages") -> None:
    """Have a stage take part in the updates that are built or executed from now on.

    Args:
      stage: whose ``update`` gets what an optimizer is to apply, and has it go on.
      where: ``own``: before the exchange, with this rank's own gradients; where they are averaged as they are computed,
        before a script's clipping say, they are there already. ``averages``: behind it; what is made of averages alone
        is the same on all ranks.

    Raises:
      ValueError: there is no such place.
      RuntimeError: ``tfdist.horovod`` is in use, where a script asks for each reduction by itself.
    """
    if where not in ("own", "averages"):
        raise ValueError(f"add_stage(where={where!r}): it is 'own' or 'averages'")
    if not process().job.switches.automatic:
        raise RuntimeError(exclusions.HOROVOD_AND_STAGE.told("tfdist.horovod", f"the stage {type(stage).__name__}"))
    pipeline_of(process().steps).add(stage, before_exchange=where == "own")


def remove_stage(stage: Stage) -> None:
    """Take one that was added out again.

    Raises:
      ValueError: it was not added.
    """
    pipeline_of(process().steps).remove(stage)


def add_engine(name: str, candidates: Candidates) -> None:
    """Add a way to add arrays of all ranks, which is timed beside the others at the first gradients.

    Args:
      name: its own.
      candidates: (world, settings) -> the ``Engine`` in its variants as far as the system allows it; collective.

    After the first gradients, for which an engine was chosen, it has no effect, which is told.

    ::

        extend.add_engine("everything", lambda world, settings: [Everything()])  # tests/multirank/cases_toy_engine.py
    """
    if process().job.engines.choice is not None:
        announce(f"add_engine({name!r}) after the first gradients, whose engine stays: call it before")
    register(name, candidates)


def use_exchange(exchange: GraphExchange | None) -> None:
    """Have gradients combined by operations of TensorFlow's, in what is built or executed from now on.

    Args:
      exchange: builds them for the buckets that it takes; engines combine the rest, and what is accumulated. None:
        engines combine everything again.

    ::

        extend.use_exchange(Gathered())  # tests/multirank/cases_toy_exchange.py
    """
    process().job.switches.exchange = exchange
