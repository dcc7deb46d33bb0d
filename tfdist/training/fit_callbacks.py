"""Callbacks of ``model.fit`` by which the ranks agree on logs, on the end of training, and on weights.

Logs at an epoch's end are means over the ranks, so that a script's callbacks decide the same on all ranks. An epoch
ends on all ranks after the same step.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.compat import keras_fit, optimizers
from tfdist.compat import variables as tf_variables
from tfdist.compat.variables import native, random_state
from tfdist.engine.collective import StopRequest
from tfdist.graph.job import Job, LastSteps
from tfdist.replicas.check import ReplicaCheck
from tfdist.replicas.eager_program import EagerProgram
from tfdist.replicas.shared_variables import SharedVariables
from tfdist.training.moments import Moments
from tfdist.transport.errors import DisagreementError

_STOP = "stop_training"


class Stops:
    """``stop_training`` of models: within an epoch it becomes true on all ranks after the same step.

    One rank may set it within an epoch, for example because its loss is not finite. This rank continues to train until
    the exchange of the next step has passed the request to all ranks.

    Args:
      told: request to end an epoch, which ranks pass on with their exchanges.
      training: request to end training, which ranks pass on with their exchanges; it may end an epoch at once.
    """

    def __init__(self, told: StopRequest, training: StopRequest) -> None:
        self._told, self._training = told, training
        self._model: weakref.ref[Any] | None = None  # the model that is within an epoch

    def epoch_begins(self, model: Any) -> None:
        """Note that all ranks begin an epoch with a model. A callback may have stopped it: it ends after a step."""
        self._told.mine, self._told.heard = self.of(model), False
        self._model = weakref.ref(model)

    def epoch_ends(self, model: Any) -> bool:
        """Note the end of an epoch, and return whether this rank wants training to end."""
        self._model = None
        return self._told.mine or self._told.heard or self.of(model)

    def of(self, model: Any) -> bool:
        """Return the value of a model's ``stop_training``."""
        own = bool(vars(model).get(_STOP, False))
        amid = self._model is not None and self._model() is model
        return self._told.heard or (own and self._training.heard) if amid else own

    def set(self, model: Any, value: bool) -> None:
        """Set a model's ``stop_training``; within an epoch also request the end on all ranks."""
        vars(model)[_STOP] = value
        if value and self._model is not None and self._model() is model:
            self._told.mine = True


def averaged_logs(logs: dict[str, Any], place: str, job: Job) -> dict[str, Any]:
    """Return the mean of each number over the ranks.

    Collective: all ranks.

    Args:
      logs: numbers by name; all ranks have the same names.
      place: description of the call, for messages.
      job: the ranks.

    Raises:
      DisagreementError: the ranks have different names.
    """
    gathered: list[dict[str, Any]] = job.world.control.all_gather_object(logs, place)
    for name in dict.fromkeys(name for other in gathered for name in other):
        ranks = [rank for rank, other in enumerate(gathered) if name in other]
        if len(ranks) < len(gathered):
            raise DisagreementError(
                f"{place}: {name!r} is logged on rank {', '.join(map(str, ranks))} only. All ranks must have the same "
                "metrics. If one rank has validation data, all ranks must have them."
            )
    return {name: mean_of_logged([other[name] for other in gathered], logs[name]) for name in logs}


def mean_of_logged(values: Sequence[Any], own: Any) -> Any:
    """Return the mean of numbers or arrays over the ranks; for other values, this rank's own value."""
    arrays = [np.asarray(value) for value in values]
    if arrays[0].dtype.kind not in "fiub" or len({a.shape for a in arrays}) > 1:
        return own
    mean = np.mean(arrays, axis=0)
    return mean if mean.shape else float(mean)


def weights_and_state(model: Any, job: Job) -> list[Any]:
    """Return a model's weights and its optimizer's state, without the states of random generators.

    If another rank's optimizer is built, this rank's optimizer is built too. A restore on rank 0 alone builds it there.

    Collective: all ranks.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    built = getattr(optimizer, "built", None)
    place = "the beginning of model.fit, whether the optimizer has its state"
    said = job.world.control.all_gather_object((built, bool(model.built)), place)
    if not all(known for _, known in said):
        return []  # the first step builds a tf_keras model, and shares its variables
    if any(known for known, _ in said) and built is False:
        optimizer.build(model.trainable_variables)
    known = [*model.weights, *optimizers.listed(optimizer)]
    return [native(v) for v in known if not random_state(v)]


def program_of(model: Any, variables: SharedVariables) -> EagerProgram:
    """Return the variables of a trained model that must be the same on all ranks."""
    own = [v for v in optimizers.variables(getattr(model, "optimizer", None)) if tf_variables.has_name(v)]
    return EagerProgram(variables, [*map(native, model.weights), *own])


@functools.cache
def agreeing(callback: Any) -> tuple[Any, Any, Any]:
    """Return three callback classes: the first callback, the last callback, and one for accumulated steps."""

    class Begin(callback):  # type: ignore[misc]
        """First callback. It calls the actions of ``Moments``, and averages the logs before other callbacks read them.

        If a callback writes files (``writes``), it compares the variables of the ranks at the end of each epoch.
        """

        def __init__(self, job: Job, moments: Moments, variables: SharedVariables, replicas: ReplicaCheck) -> None:
            super().__init__()
            self._job, self._moments = job, moments
            self._variables, self._replicas = variables, replicas
            self._paused = False
            self.writes = False

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            for action in self._moments.fits:
                action()

        def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._paused = False

        def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._pause()

        def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
            self._paused = False
            self._pause()

        def _pause(self) -> None:
            """Call the actions once after the steps of an epoch: a rank without validation calls them at its end."""
            for action in () if self._paused else self._moments.pauses:
                action()
            self._paused = True

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._pause()
            place = f"the end of epoch {epoch + 1} of model.fit"
            if self.writes:
                self._replicas.now(place, program_of(self.model, self._variables))
            if logs is not None:
                logs.update(averaged_logs(dict(logs), place, self._job))

    class End(callback):  # type: ignore[misc]
        """Last callback. It shares rank 0's weights, also restored ones, and ends training on all ranks together."""

        def __init__(
            self, job: Job, variables: SharedVariables, replicas: ReplicaCheck, stops: Stops, first: Begin, writes: bool
        ) -> None:
            super().__init__()
            self._job, self._variables, self._replicas, self._stops = job, variables, replicas, stops
            self._first, self._writes = first, writes

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            self._variables.adapted.compare(self._job.world.control)
            known = weights_and_state(self.model, self._job)
            if self._job.switches.shares:
                self._variables.take(known)
            own = (keras_fit.initial_epoch(self.model), self._writes)
            said = self._job.world.control.all_gather_object(own, "the beginning of model.fit")
            keras_fit.begin_at(self.model, said[0][0])
            self._first.writes = any(writes for _, writes in said)

        def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._stops.epoch_begins(self.model)

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            place = f"the end of epoch {epoch + 1} of model.fit, whether to go on"
            stops = self._job.world.control.all_gather_object(self._stops.epoch_ends(self.model), place)
            self.model.stop_training = any(stops)

        def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
            """Share rank 0's weights if a callback has set weights, for example the best ones; compare the ranks."""
            place = "the end of model.fit"
            if any(self._job.world.control.arrive(place, int(self._variables.any_set))):
                self._variables.share_new(f"{place}, where a callback has set weights")
            self._replicas.now(place, program_of(self.model, self._variables))

    class Last(callback):  # type: ignore[misc]
        """Marks the last steps of an epoch when the number of steps is known."""

        def __init__(self, job: Job) -> None:
            super().__init__()
            self._job = job

        def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
            left = (self.params.get("steps") or math.inf) - batch
            if left <= getattr(self.model, "steps_per_execution", 1):
                self._job.switches.last_steps = LastSteps(int(left))

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            self._job.switches.last_steps = None

    return Begin, End, Last
