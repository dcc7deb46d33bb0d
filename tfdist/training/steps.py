"""The session, function and fit steps of this process, made once, for the hooks to call."""

from __future__ import annotations

from tensorflow.python.client import session as tf_session

from tfdist.graph.job import Job
from tfdist.training.fit import FitSteps
from tfdist.training.function_step import FunctionSteps
from tfdist.training.session_step import SessionSteps


class Steps:
    """What happens around training steps, by the way in which a program trains.

    Args:
      job: the ranks and settings.

    Attributes:
      sessions: TensorFlow 1.
      functions: ``tf.function``, tapes and what is executed eagerly.
      fit: Keras.
    """

    def __init__(self, job: Job) -> None:
        self.sessions = SessionSteps(tf_session.BaseSession.run, job)  # before it is hooked
        self.functions = FunctionSteps(job)
        self.fit = FitSteps(job, self.functions)
