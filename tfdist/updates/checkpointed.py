"""What of tfdist's own belongs into checkpoints: variables of a graph, or of an optimizer, and what int8 has lost.

What int8's rounding has lost on each rank, and is to be sent with the next step, lies in the engines. Before a
checkpoint ``LeftOver.keep`` adds it up over the ranks: the next step's averages get the sum as it is, on all ranks, and
so do those after the checkpoint is read, on however many ranks. A rank that saves puts it into a variable for as long.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import is_open
from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.graph import function_state
from tfdist.graph.graph_state import state_of
from tfdist.training.steps import Steps
from tfdist.variables.eager_variables import mean_of_ranks

_NAME = "int8_feedback"
_ATTRIBUTE = "_tfdist_int8_feedback"  # of a session's graph: its variables, by their collectives


def graph_variable(name: str, make: Callable[[], tf.Tensor]) -> Any:
    """One of a session's graph, of which a Saver that is made later takes all.

    Args:
      name: in no scope.
      make: of its first value, in the graph.
    """
    with tf.init_scope(), tf.compat.v1.name_scope(None):
        return tf.compat.v1.Variable(make(), trainable=False, use_resource=True, name=name)


class LeftOver:
    """What int8 has lost, in the graphs of sessions.

    Args:
      steps: of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        steps.moments.begins.append(self._begun)

    def built(self) -> None:
        """The averages that an optimizer applies have been built: their graph's checkpoints are to hold it."""
        state = state_of(tf.compat.v1.get_default_graph()) if function_state.in_session() else None
        for collective in state.world_collectives if state else ():
            exchanges, known = _with_rest(collective), _variables(tf.compat.v1.get_default_graph())
            if exchanges and collective not in known:
                elements = sum(exchange.elements for exchange in exchanges)
                known[collective] = graph_variable(_NAME, functools.partial(tf.zeros, [elements]))

    def keep(self) -> None:
        """Have the next step of the session that has trained last get what was lost. Collective: all ranks."""
        job, session = self._steps.job, self._steps.sessions.trained
        if session is None or not is_open(session) or len(job.world.topology.nodes) == 1:
            return
        for collective in _variables(session.graph):
            for exchange in _with_rest(collective):
                lost = mean_of_ranks(exchange.take_lost(), job) * np.float32(job.world.size)
                exchange.pending = lost if exchange.pending is None else exchange.pending + lost

    @contextlib.contextmanager
    def saving(self, session: Any) -> Iterator[None]:
        """A checkpoint is being written: it gets what ``keep`` has kept, if there was no step since."""
        kept = {v.name: _pending(c) for c, v in _variables(session.graph).items()}
        kept = {name: pending for name, pending in kept.items() if pending.any()}
        variables = self._steps.sessions.variables(session)
        variables.load(kept)
        try:
            yield
        finally:
            variables.load({name: np.zeros_like(pending) for name, pending in kept.items()})

    def _begun(self, session: Any) -> None:
        """All ranks have the same values of a session's variables, of a checkpoint perhaps: the next step gets it."""
        variables = self._steps.sessions.variables(session)
        for collective, variable in _variables(session.graph).items():
            value = variables.value(variable)
            if value is None or not value.any():
                continue
            exchanges = _with_rest(collective)
            ends = np.cumsum([exchange.elements for exchange in exchanges])[:-1]
            for exchange, part in zip(exchanges, np.split(value, ends), strict=True):
                exchange.take_lost()  # of the steps after that checkpoint
                exchange.pending = part
            variables.load({variable.name: np.zeros_like(value)})


@functools.cache
def left_over_of(steps: Steps) -> LeftOver:
    """That of this process."""
    return LeftOver(steps)


def _variables(graph: Any) -> dict[Collective, Any]:
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    found: dict[Collective, Any] = getattr(graph, _ATTRIBUTE)
    return found


def _with_rest(collective: Collective) -> list[AllReduce]:
    return [e for e in collective.exchanges if isinstance(e, AllReduce) and e.has_rest]


def _pending(collective: Collective) -> np.ndarray:
    """Of all exchanges, float32 [elements]."""
    every = _with_rest(collective)
    return np.concatenate([np.zeros(e.elements, np.float32) if e.pending is None else e.pending for e in every])
