"""Hooks of sessions, plain and monitored, and of the initialisers that they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session
from tensorflow.python.ops import variables as tf_variables
from tensorflow.python.training import monitored_session

from tfdist.gradients import writes
from tfdist.graph.job import Job
from tfdist.graph.tensorflow_collectives import TensorFlowCollectives
from tfdist.hooks.patches import Patches, before
from tfdist.replicas.initial_broadcast import broadcast_behind
from tfdist.training.session_step import SessionSteps
from tfdist.training.steps import Steps
from tfdist.updates.local_sgd import LocalSGD, local_sgd_of


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """Install the hooks of this module."""
    _initializers(patches, job)
    _graphs(patches, job)
    _sessions(patches, steps.sessions, local_sgd_of(steps))
    _targets(patches, job)


def _initializers(patches: Patches, job: Job) -> None:
    """Hook ``variables_initializer``, and so ``global_variables_initializer``: tensorflow/python/ops/variables.py."""

    def initializer(original: Callable[..., Any], var_list: Any, name: str = "init") -> Any:
        result = original(var_list, name=name)
        return result if tf.executing_eagerly() else broadcast_behind(result, var_list, job)

    patches.replace_everywhere(tf_variables, "variables_initializer", initializer, ("var_list", "name"))


def _graphs(patches: Patches, job: Job) -> None:
    """Hook the end of a graph's construction: tensorflow/python/framework/ops.py."""

    built = before(lambda graph: writes.before_run(graph, job))
    patches.replace(tf.Graph, "finalize", built, ("self",))


def _targets(patches: Patches, job: Job) -> None:
    """Connect sessions to the other ranks if they use TensorFlow's collectives: …/client/session.py."""

    def begin(original: Callable[..., Any], self: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
        exchange = job.switches.exchange
        if isinstance(exchange, TensorFlowCollectives) and not target:
            target, config = exchange.of_session(config)
        original(self, target, graph, config)

    patches.replace(tf_session.BaseSession, "__init__", begin, ("self", "target", "graph", "config"))


def _sessions(patches: Patches, sessions: SessionSteps, blocks: LocalSGD) -> None:
    """Hook sessions, plain and monitored: tensorflow/python/client/session.py, …/training/monitored_session.py."""
    base = tf_session.BaseSession

    def run(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return sessions.around(self, fetches, lambda: original(self, fetches, *args, **kwargs))

    def hooked(session: Any, fetches: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *feeds, **options: sessions.around(session, fetches, lambda: plain(*feeds, **options))

    def make_callable(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        sessions.callable_made(self)
        return hooked(self, fetches, original(self, fetches, *args, **kwargs))

    def make_from_options(original: Callable[..., Any], self: Any, callable_options: Any) -> Any:
        """Hook the callable by which Keras trains in a session: tf_keras/src/backend.py, ``GraphExecutionFunction``."""
        fetches = [*callable_options.fetch, *callable_options.target]
        sessions.callable_made(self)
        return hooked(self, fetches, original(self, callable_options))

    def set_up(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        sessions.run_in_parts(self, fetches)
        return original(self, fetches, *args, **kwargs)

    def create_session(original: Callable[..., Any], self: Any) -> Any:
        session = original(self)
        sessions.created(session)
        return session

    def create_worker_session(original: Callable[..., Any], self: Any) -> Any:
        if self._master:
            return create_session(original, self)
        # A worker expects a chief in another process, on the same server. Here each rank has a session of its own,
        # which begins with rank 0's values: each rank is its own chief.
        return monitored_session.ChiefSessionCreator(self._scaffold, self._master, self._config).create_session()

    def close(original: Callable[..., Any], self: Any, exception_type: Any = None) -> Any:
        if exception_type is None and (session := self._tf_sess()) is not None:
            blocks.end_in(session)  # before the session's hooks save
        return original(self, exception_type)

    patches.replace(base, "run", run, ("self", "fetches", "feed_dict"))
    patches.replace(base, "close", before(sessions.closes), ("self",))
    patches.replace(base, "make_callable", make_callable, ("self", "fetches", "feed_list"))
    patches.replace(base, "_make_callable_from_options", make_from_options, ("self", "callable_options"))
    patches.replace(base, "partial_run_setup", set_up, ("self", "fetches"))
    patches.replace(monitored_session.ChiefSessionCreator, "create_session", create_session, ("self",))
    patches.replace(monitored_session.WorkerSessionCreator, "create_session", create_worker_session, ("self",))
    patches.replace(monitored_session._MonitoredSession, "_close_internal", close, ("self", "exception_type"))
