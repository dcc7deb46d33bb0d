"""The session, function and fit steps of this process, made once, for the hooks to call."""

from __future__ import annotations

import tensorflow as tf

from tfdist.graph.job import Job
from tfdist.training.eager_step import EagerSteps
from tfdist.training.fit import FitSteps
from tfdist.training.function_step import FunctionSteps
from tfdist.training.moments import Moments
from tfdist.training.replica_check import ReplicaCheck
from tfdist.training.session_step import SessionSteps
from tfdist.training.shared_variables import SharedVariables


class Steps:
    """What happens around training steps, by the way in which a program trains.

    Args:
      job: the ranks and settings.

    Attributes:
      job: the ranks and settings.
      sessions: TensorFlow 1.
      variables: of this process, outside sessions.
      replicas: whether all ranks hold the same.
      eager: tapes and what is executed eagerly.
      functions: ``tf.function``.
      fit: Keras.
      moments: at which others have their part done.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.moments = Moments()
        self.variables = SharedVariables(job)
        self.replicas = ReplicaCheck(job)
        self.sessions = SessionSteps(tf.compat.v1.Session.run, job, self.replicas, self.moments)  # before it is hooked
        self.eager = EagerSteps(job, self.variables, self.replicas)
        self.functions = FunctionSteps(job, self.variables, self.eager, self.replicas, self.moments.runs)
        self.fit = FitSteps(job, self.functions, self.variables, self.replicas, self.moments.pauses)
