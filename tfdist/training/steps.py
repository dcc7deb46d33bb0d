"""Steps: the objects around session, eager, function and ``fit`` steps of this process, which the hooks call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.graph.job import Job
from tfdist.replicas.check import ReplicaCheck
from tfdist.replicas.eager_program import EagerProgram
from tfdist.replicas.program import Program
from tfdist.replicas.shared_variables import SharedVariables
from tfdist.training.eager_step import EagerSteps
from tfdist.training.fit import FitSteps
from tfdist.training.function_step import FunctionSteps
from tfdist.training.moments import Moments
from tfdist.training.session_step import SessionSteps


class Steps:
    """Objects around training steps, one for each way in which a program can train.

    Args:
      job: the ranks and settings.

    Attributes:
      job: the ranks and settings.
      sessions: hooks around sessions of TensorFlow 1.
      variables: variables of this process, outside sessions.
      replicas: comparison of the variables between ranks.
      eager: hooks around tapes and eager updates.
      functions: hooks around ``tf.function``.
      fit: hooks around ``fit`` of Keras.
      moments: actions of other packages.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.moments = Moments()
        self.variables = SharedVariables(job)
        self.replicas = ReplicaCheck(job)
        self.sessions = SessionSteps(tf.compat.v1.Session.run, job, self.replicas, self.moments)  # not hooked yet
        self.eager = EagerSteps(job, self.variables, self.replicas)
        self.functions = FunctionSteps(job, self.variables, self.eager, self.replicas, self.moments.runs)
        self.fit = FitSteps(job, self.variables, self.replicas, self.moments)

    def program(self, session: Any, variables: Sequence[Any]) -> Program:
        """Return the program of these variables: a session, or for None this process outside sessions."""
        return EagerProgram(self.variables, variables) if session is None else self.sessions.program(session)
