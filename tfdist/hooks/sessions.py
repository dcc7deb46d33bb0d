"""Hooks of sessions, plain and monitored, and of the initialisers that they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.client import session as tf_session
from tensorflow.python.ops import variables as tf_variables
from tensorflow.python.training import monitored_session

from tfdist.graph.job import Job
from tfdist.hooks.patches import Patches
from tfdist.training.initial_broadcast import broadcast_behind
from tfdist.training.session_step import SessionSteps
from tfdist.training.steps import Steps


def hook(patches: Patches, job: Job, steps: Steps) -> None:
    """See the module."""
    _initializers(patches, job)
    _sessions(patches, steps.sessions)


def _initializers(patches: Patches, job: Job) -> None:
    """``variables_initializer``, behind ``global_variables_initializer`` too: tensorflow/python/ops/variables.py."""

    def initializer(original: Callable[..., Any], var_list: Any, name: str = "init") -> Any:
        result = original(var_list, name=name)
        return result if tf.executing_eagerly() else broadcast_behind(result, var_list, job)

    patches.replace_everywhere(tf_variables, "variables_initializer", initializer, ("var_list", "name"))


def _sessions(patches: Patches, sessions: SessionSteps) -> None:
    """Sessions, plain and monitored: tensorflow/python/client/session.py, …/training/monitored_session.py."""
    base = tf_session.BaseSession

    def run(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return sessions.around(self, fetches, lambda: original(self, fetches, *args, **kwargs))

    def hooked(session: Any, fetches: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *feeds, **options: sessions.around(session, fetches, lambda: plain(*feeds, **options))

    def make_callable(original: Callable[..., Any], self: Any, fetches: Any, *args: Any, **kwargs: Any) -> Any:
        return hooked(self, fetches, original(self, fetches, *args, **kwargs))

    def make_from_options(original: Callable[..., Any], self: Any, callable_options: Any) -> Any:
        """What Keras trains with in a session's graph: tf_keras/src/backend.py, ``GraphExecutionFunction``."""
        fetches = [*callable_options.fetch, *callable_options.target]
        return hooked(self, fetches, original(self, callable_options))

    def create_session(original: Callable[..., Any], self: Any) -> Any:
        session = original(self)
        sessions.created(session)
        return session

    patches.replace(base, "run", run, ("self", "fetches", "feed_dict"))
    patches.replace(base, "make_callable", make_callable, ("self", "fetches", "feed_list"))
    patches.replace(base, "_make_callable_from_options", make_from_options, ("self", "callable_options"))
    for creator in (monitored_session.ChiefSessionCreator, monitored_session.WorkerSessionCreator):
        patches.replace(creator, "create_session", create_session, ("self",))
