"""Callbacks: Horovod's Keras callbacks for broadcast, metrics, and learning rates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.variables import native
from tfdist.ddl_keras import DDLCallback
from tfdist.graph import function_state
from tfdist.horovod import basics
from tfdist.horovod.functions import broadcast_variables
from tfdist.start import process
from tfdist.training.fit_callbacks import weights_and_state
from tfdist.updates.learning_rate import warmed

Callback = tf.keras.callbacks.Callback  # of Keras 3, or of tf_keras if TF_USE_LEGACY_KERAS=1 selects it


def _check_eager(name: str) -> None:
    """Check that Keras does not execute in a session's graph.

    Raises:
      RuntimeError: Keras executes in a session's graph.
    """
    if function_state.in_session():
        raise RuntimeError(
            f"{name} needs Keras to execute eagerly or in functions: remove tf.compat.v1.disable_eager_execution(), or "
            "use hvd.broadcast_global_variables and hvd.allreduce in the session"
        )


class BroadcastGlobalVariablesCallback(Callback):  # type: ignore[misc,valid-type]
    """Broadcasts one rank's model and optimizer when training begins.

    If the first batch builds the model, it broadcasts after the first batch.

    Args:
      root_rank: rank that has the values.
      device: has no meaning here.
      local_variables: variables to leave out of the broadcast, or None.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.broadcast_done = False
        self._local = {id(native(variable)) for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Leave a variable out of the broadcast: each rank keeps its own value."""
        self._local.add(id(native(var)))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast if the model is built on all ranks. Collective: all ranks."""
        _check_eager(type(self).__name__)
        self.broadcast_done = False
        self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, unless it was done before. Collective: all ranks."""
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        known = weights_and_state(self.model, process().job)  # none if the first batch builds a rank's model
        self.broadcast_done = bool(known)
        broadcast_variables([variable for variable in known if id(variable) not in self._local], self.root_rank)


class MetricAverageCallback(DDLCallback):
    """Averages the epoch's logged metrics over the ranks. Put it before callbacks that read them.

    Args:
      device: has no meaning here.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics. Collective: all ranks, with the same metrics' names."""
        _check_eager(type(self).__name__)
        super().on_epoch_end(epoch, logs)


class LearningRateScheduleCallback(Callback):  # type: ignore[misc,valid-type]
    """Sets the learning rate by the epoch, and corrects the momentum for one step when the rate changes.

    Momentum correction: Goyal et al. 2017, arXiv:1706.02677, remark 2 of section 3.

    Args:
      initial_lr: learning rate before multiplication.
      multiplier: factor of the learning rate, as a function of the epoch or a number.
      start_epoch: first epoch to adjust.
      end_epoch: first epoch not to adjust any more; None for no end.
      staircase: adjust once an epoch; else in each step, by the fraction of the epoch.
      momentum_correction: whether to correct SGD's momentum.
      steps_per_epoch: number of steps of an epoch; None to take it from Keras.

    Raises:
      ValueError: ``initial_lr`` is None.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is required: the learning rate that is multiplied")
        self.initial_lr = initial_lr
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase or not callable(multiplier)
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = multiplier if callable(multiplier) else lambda epoch: multiplier
        self.current_epoch = 0
        self._momentum: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the number of steps of an epoch, if it is needed."""
        _check_eager(type(self).__name__)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    f"{type(self).__name__} does not get an epoch's number of steps from Keras: give steps_per_epoch"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate of the next step."""
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            assert self.steps_per_epoch
            self._adjust(epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Restore the momentum after a corrected step."""
        if self._momentum is not None:
            self.model.optimizer.momentum.assign(self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the learning rate."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum: Any = getattr(optimizer, "momentum", None)
        # Keras 3 has a number, which is a constant of the traced step.
        if self.momentum_correction and hasattr(momentum, "assign") and old and new != old and float(momentum):
            self._momentum = float(momentum)
            momentum.assign(self._momentum * new / old)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate in the first epochs from ``initial_lr / size`` to ``initial_lr``.

    Goyal et al. 2017, arXiv:1706.02677, section 2.2: ``initial_lr / size * (1 + epoch * (size - 1) / warmup_epochs)``.

    Args:
      initial_lr: learning rate at the end of the warmup.
      warmup_epochs: number of epochs of the warmup.
      momentum_correction: see ``LearningRateScheduleCallback``.
      steps_per_epoch: see ``LearningRateScheduleCallback``.
      verbose: above 0, rank 0 prints a line when the warmup is finished.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            size = basics.size()
            assert self.steps_per_epoch
            reached = epoch + 1 / self.steps_per_epoch  # a whole number at the end of each epoch
            return float(warmed(size, reached, warmup_epochs) / size)

        super().__init__(
            initial_lr, multiplier, end_epoch=int(warmup_epochs), staircase=False,
            momentum_correction=momentum_correction, steps_per_epoch=steps_per_epoch,
        )  # fmt: skip
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the learning rate, and print a line when the warmup is finished."""
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and basics.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def BestModelCheckpoint(*args: Any, **kwargs: Any) -> Any:
    """Refuse.

    Raises:
      NotImplementedError: always, with what to use instead.
    """
    raise NotImplementedError(
        "hvd.callbacks.BestModelCheckpoint sets no file, which Keras requires: use "
        "keras.callbacks.ModelCheckpoint(filepath, save_best_only=True), on one rank"
    )
