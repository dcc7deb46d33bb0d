"""Callbacks: Horovod's Keras callbacks for broadcast, metrics, learning rates, the best model and elastic states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat import optimizers
from tfdist.compat.variables import random_state
from tfdist.graph import function_state
from tfdist.horovod import basics, collectives
from tfdist.horovod.functions import allgather_object, broadcast_variables, build
from tfdist.horovod.ops import Min
from tfdist.training.fit_callbacks import mean_of_logged

# Classes of Keras 3, or of tf_keras if TF_USE_LEGACY_KERAS=1 selects it.
Callback, ModelCheckpoint = tf.keras.callbacks.Callback, tf.keras.callbacks.ModelCheckpoint


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
        self._local = {id(variable) for variable in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """Leave a variable out of the broadcast: each rank keeps its own value."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast if the model is built on all ranks. Collective: all ranks."""
        _check_eager(type(self).__name__)
        self.broadcast_done = False
        # One rank may have loaded a built model, while the first batch builds the others'.
        if int(collectives.allreduce(int(bool(self.model.built)), op=Min, name="whether the model is built")):
            build(self.model.optimizer, self.model.trainable_variables)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast after the first batch, unless it was done before. Collective: all ranks."""
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        self.broadcast_done = True
        known = [*self.model.variables, *optimizers.listed(self.model.optimizer)]
        # Each rank keeps its random states. The ranks must draw different masks, as one process does for its examples.
        wanted = [v for v in known if id(v) not in self._local and not random_state(v)]
        broadcast_variables(wanted, self.root_rank)


class MetricAverageCallback(Callback):  # type: ignore[misc,valid-type]
    """Averages the epoch's logged metrics over the ranks. Put it before callbacks that read them.

    Args:
      device: has no meaning here.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Average the metrics. Collective: all ranks, with the same metrics' names."""
        _check_eager(type(self).__name__)
        gathered = allgather_object(dict(logs or {}), name="metrics")
        for other in gathered:
            if other.keys() != gathered[0].keys():
                said = f"rank 0 logs {sorted(gathered[0])}, and a rank {sorted(other)}: all must have the same metrics"
                raise tf.errors.FailedPreconditionError(None, None, f"MetricAverageCallback: {said}")
        for name in gathered[0]:
            logs[name] = mean_of_logged([other[name] for other in gathered], logs[name])


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
            _set_momentum(self.model.optimizer, self._momentum)
            self._momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the learning rate."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = _momentum_of(optimizer)
        if momentum and self.momentum_correction and old and new != old and _can_set_momentum(optimizer):
            self._momentum = momentum
            _set_momentum(optimizer, momentum * new / old)


def _momentum_of(optimizer: Any) -> float:
    value = getattr(optimizer, "momentum", 0.0)
    return float(value) if isinstance(value, int | float) or hasattr(value, "numpy") else 0.0


def _can_set_momentum(optimizer: Any) -> bool:
    """Return whether the momentum is a variable. Keras 3 has a number, which is a constant of the traced step."""
    return hasattr(optimizer.momentum, "assign")


def _set_momentum(optimizer: Any, value: float) -> None:
    optimizer.momentum.assign(value)


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
            return (reached * (size - 1) / warmup_epochs + 1) / size

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


class BestModelCheckpoint(ModelCheckpoint):  # type: ignore[misc,valid-type]
    """Keras's ModelCheckpoint that saves only the best model. Use it on one rank, and set ``filepath`` before training.

    Args:
      monitor: name of the metric to compare.
      verbose: see Keras.
      save_weights_only: see Keras.
      mode: see Keras.
      save_freq: see Keras.
      filepath: file of the model; scripts for Horovod set it afterwards.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str = "best.weights.h5",
    ) -> None:
        if not save_weights_only and filepath == "best.weights.h5":
            filepath = "best.keras"
        super().__init__(
            filepath, monitor=monitor, verbose=verbose, save_best_only=True, save_weights_only=save_weights_only,
            mode=mode, save_freq=save_freq,
        )  # fmt: skip


class CommitStateCallback(Callback):  # type: ignore[misc,valid-type]
    """Commits an elastic state every few batches, and at the end of each epoch.

    Args:
      state: a state of ``hvd.elastic``.
      batches_per_commit: number of batches between commits.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit after every ``batches_per_commit`` batches."""
        if (batch + 1) % self.batches_per_commit == 0:
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit."""
        self.state.commit()


class UpdateBatchStateCallback(Callback):  # type: ignore[misc,valid-type]
    """Stores the number of the batch within the epoch in an elastic state's ``batch``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Store the number of the batch."""
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set the number to 0."""
        self.state.batch = 0


class UpdateEpochStateCallback(Callback):  # type: ignore[misc,valid-type]
    """Stores the number of finished epochs, over all calls of ``fit``, in an elastic state's ``epoch``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the number of epochs finished before this call of ``fit``."""
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Store the number of finished epochs."""
        self.state.epoch = self.initial_epoch + epoch + 1
