"""Elastic: states that can be saved, restored and broadcast, and a retry loop around training; with fixed ranks.

Ranks are neither added nor removed while a job runs. When a rank is lost, the job ends. ``tfdist-run --max-restarts``
then starts the job again, on the hosts that answer, from the last checkpoint on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat.variables import native, random_state
from tfdist.core.log import announce
from tfdist.horovod.basics import init, shutdown
from tfdist.horovod.functions import broadcast_object, broadcast_variables
from tfdist.transport.errors import PeerError

_LOST = (
    "hvd.elastic.run: a rank is lost, and a running job cannot add or remove ranks. Save checkpoints and start with "
    "tfdist-run --max-restarts N, which restarts from the last checkpoint"
)


class HorovodInternalError(RuntimeError):
    """A collective operation has failed. Raise it on all ranks to return to the last commit."""


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts have changed. tfdist never raises it, since hosts are not added while a job runs."""


class ObjectState:
    """State of Python objects, which are its attributes. It can be saved, restored and broadcast.

    Args:
      bcast_object: has no meaning here.
      get_rank: has no meaning here.
      **kwargs: the objects, by attribute name.
    """

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._saved_state = kwargs
        self._set_attrs()

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Register functions to call before training continues after an error."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call ``reset`` and the registered functions, before training continues after an error."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def reset(self) -> None:
        """Prepare the state before training continues after an error; a subclass may override it."""

    def commit(self) -> None:
        """Save the state, and check for changed hosts, of which there are none here."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Do nothing, since hosts do not change."""

    def save(self) -> None:
        """Save the state in memory."""
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        """Restore the state that was saved last."""
        self._set_attrs()

    def sync(self) -> None:
        """Broadcast rank 0's state. Collective: all ranks."""
        if self._saved_state:
            self._saved_state = broadcast_object(self._saved_state, 0)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


class TensorFlowState(ObjectState):
    """State of variables and of Python objects.

    Args:
      variables: variables of TensorFlow; None for all global variables of the graph.
      session: TensorFlow 1 session that holds their values; None for the default session, or when executing eagerly.
      **kwargs: the objects, by attribute name.
    """

    def __init__(self, variables: Iterable[Any] | None = None, session: Any = None, **kwargs: Any) -> None:
        self.variables = [native(v) for v in (tf.compat.v1.global_variables() if variables is None else variables)]
        self.session = session or (None if tf.executing_eagerly() else tf.compat.v1.get_default_session())
        self._broadcast_op = None if self.session is None else broadcast_variables(self.variables, 0)
        self._keep()
        super().__init__(**kwargs)

    def save(self) -> None:
        """See ``ObjectState``."""
        self._keep()
        super().save()

    def restore(self) -> None:
        """See ``ObjectState``."""
        for variable, value in zip(self._known(), self._values, strict=False):
            if self.session is None:
                variable.assign(value)
            else:
                variable.load(value, self.session)
        super().restore()

    def sync(self) -> None:
        """See ``ObjectState``. Collective: all ranks."""
        if self.session is None:
            broadcast_variables(self._known(), 0)
        else:
            self.session.run(self._broadcast_op)
        self._keep()
        super().sync()

    def _known(self) -> list[Any]:
        return self.variables

    def _keep(self) -> None:
        known = self._known()
        self._values = [np.array(v.numpy()) for v in known] if self.session is None else self.session.run(known)


class TensorFlowKerasState(TensorFlowState):
    """State of a Keras model, its optimizer, and Python objects.

    Args:
      model: Keras model that has been built.
      optimizer: optimizer of the model; None for the optimizer of the compiled model.
      backend: has no meaning here.
      **kwargs: the objects, by attribute name.

    Raises:
      ValueError: the model has not been built.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model = model
        if not getattr(model, "built", True):
            raise ValueError("the model must have been built: call model.build(input_shape) before")
        self.optimizer = optimizer or model.optimizer
        if not getattr(self.optimizer, "built", getattr(self.optimizer, "_built", True)):
            self.optimizer.build(model.trainable_variables)  # so that the optimizer has a state to save
        super().__init__((), **kwargs)

    def _known(self) -> list[Any]:
        known = [*self.model.variables, *optimizers.listed(self.optimizer)]
        return [native(v) for v in known if not random_state(v)]


class KerasState(TensorFlowKerasState):
    """State of a Keras model, its optimizer, and Python objects: see ``TensorFlowKerasState``."""


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a training function: it begins with rank 0's state, and starts again after a ``HorovodInternalError``.

    Collective: all ranks; the exception must be raised on all ranks too.

    Args:
      func: training function; its arguments are the state and the further arguments of the wrapped function.
    """

    @functools.wraps(func)
    def wrapper(state: ObjectState, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                state.sync()
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                announce(f"hvd.elastic.run: back to the last commit after {error}")
                state.restore()
            except PeerError as error:
                raise PeerError(f"{error} ({_LOST})") from None
            shutdown()
            init()
            state.on_reset()

    return wrapper
