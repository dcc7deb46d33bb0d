"""Checkpointed state: tfdist's own variables in checkpoints, and the rounding errors of int8 compression.

The engines keep the rounding error of each rank, and send it with the next step. Before a checkpoint,
``ErrorFeedback.keep`` adds up the errors of all ranks. On all ranks the next step adds this sum to its averages. So
does the first step after the checkpoint is restored, with any number of ranks. While a rank saves, a variable contains
the sum.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.engine.all_reduce import AllReduce
from tfdist.engine.collective import Collective
from tfdist.graph import function_state
from tfdist.graph.graph_state import state_of
from tfdist.replicas.eager_variables import mean_of_ranks
from tfdist.training.steps import Steps
from tfdist.transport import agreement

_NAME = "int8_feedback"
_ATTRIBUTE = "_tfdist_int8_feedback"  # attribute of a session's graph: a dict of variables by collective


def graph_variable(name: str, make: Callable[[], tf.Tensor]) -> Any:
    """Make a variable in a session's graph. A Saver that is made later saves it.

    Args:
      name: name of the variable, without scopes.
      make: function that builds the initial value in the graph.
    """
    with tf.init_scope(), tf.compat.v1.name_scope(None):
        return tf.compat.v1.Variable(make(), trainable=False, use_resource=True, name=name)


class ErrorFeedback:
    """Rounding errors of int8 compression, in the graphs of sessions.

    Args:
      steps: objects around the training steps of this process.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        steps.moments.begins.append(self._begun)

    def make_variables(self) -> None:
        """Make variables for the rounding errors, after the averages that an optimizer applies have been built."""
        state = state_of(tf.compat.v1.get_default_graph()) if function_state.in_session() else None
        for collective in state.world_collectives if state else ():
            exchanges, known = _with_rest(collective), _variables(tf.compat.v1.get_default_graph())
            if exchanges and collective not in known and not collective.blocks:  # ``LocalSGD.end`` sends what they keep
                elements = sum(exchange.elements for exchange in exchanges)
                known[collective] = graph_variable(_NAME, functools.partial(tf.zeros, [elements]))

    def keep(self) -> None:
        """Add up the rounding errors of the ranks, for the next steps of all sessions that have trained.

        Collective: all ranks.

        Raises:
          DisagreementError: the ranks have trained different graphs.
        """
        job = self._steps.job
        if len(job.world.topology.nodes) == 1:
            return
        graphs = dict.fromkeys(session.graph for session in self._steps.sessions.that_trained())
        collectives = [collective for graph in graphs for collective in _variables(graph)]
        agreement.agree(job.world.control, [line for c in collectives for line in c.plan], "tfdist.end_block")
        for collective in collectives:
            for exchange in _with_rest(collective):
                lost = mean_of_ranks(exchange.take_lost(), job) * np.float32(job.world.size)
                exchange.pending = lost if exchange.pending is None else exchange.pending + lost

    @contextlib.contextmanager
    def saving(self, session: Any) -> Iterator[None]:
        """Put the sums of ``keep`` into variables while a checkpoint is written, if there was no step since.

        A sum that stayed there would be sent again when the ranks meet again in this session.
        """
        kept = {v.name: _pending(c) for c, v in _variables(session.graph).items()}
        kept = {name: pending for name, pending in kept.items() if pending.any()}
        program = self._steps.sessions.program(session)
        program.set(kept)
        try:
            yield
        finally:
            program.set({name: np.zeros_like(pending) for name, pending in kept.items()})

    def _begun(self, session: Any) -> None:
        """Pass rounding errors from a restored checkpoint to the next step, before a session's first step."""
        program = self._steps.sessions.program(session)
        for collective, variable in _variables(session.graph).items():
            value = program.value(variable)
            if value is None or not value.any():
                continue
            exchanges = _with_rest(collective)
            ends = np.cumsum([exchange.elements for exchange in exchanges])[:-1]
            for exchange, part in zip(exchanges, np.split(value, ends), strict=True):
                exchange.take_lost()  # drop errors of steps after that checkpoint
                exchange.pending = part
            program.load([(variable, np.zeros_like(value))])


error_feedback_of = functools.cache(ErrorFeedback)  # the one of this process


def _variables(graph: Any) -> dict[Collective, Any]:
    if not hasattr(graph, _ATTRIBUTE):
        setattr(graph, _ATTRIBUTE, {})
    found: dict[Collective, Any] = getattr(graph, _ATTRIBUTE)
    return found


def _with_rest(collective: Collective) -> list[AllReduce]:
    return [e for e in collective.exchanges if isinstance(e, AllReduce) and e.has_rest]


def _pending(collective: Collective) -> np.ndarray:
    """Return the pending sums of all exchanges of a collective, float32 [elements]."""
    every = _with_rest(collective)
    return np.concatenate([np.zeros(e.elements, np.float32) if e.pending is None else e.pending for e in every])
