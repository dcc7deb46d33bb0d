"""``model.fit`` of Keras: rank 0's values before the first batch, equal numbers of batches, output of rank 0 alone.

When training begins, all ranks take rank 0's weights and optimizer state. All ranks end an epoch after the same batch.
The logs at its end are means over the ranks, so that callbacks decide the same on all ranks. Only rank 0 shows progress
and writes files.
"""

from __future__ import annotations

import importlib
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.compat import datasets
from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.gradients import rewrite
from tfdist.graph.job import Job
from tfdist.replicas.check import ReplicaCheck
from tfdist.replicas.shared_variables import SharedVariables
from tfdist.training._fit_batches import EqualBatchCounts
from tfdist.training.data_shard import digest, shard
from tfdist.training.fit_callbacks import Stops, agreeing
from tfdist.training.moments import Moments
from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import Channel

# Callbacks that write files, or send data that only one rank should send.
_ON_RANK_0 = ("ModelCheckpoint", "CSVLogger", "TensorBoard", "BackupAndRestore", "RemoteMonitor", "OrbaxCheckpoint")


class _Thread(threading.local):
    awaiting = False  # True in fit, until its training iterator is made


class FitSteps:
    """Hooks around ``fit``, ``evaluate`` and ``predict``.

    Args:
      job: the ranks and settings.
      variables: variables of this process.
      replicas: comparison of the variables between ranks.
      moments: actions of other packages.

    Attributes:
      stops: ``stop_training`` of models, on all ranks after the same step.
    """

    def __init__(
        self,
        job: Job,
        variables: SharedVariables,
        replicas: ReplicaCheck,
        moments: Moments,
    ) -> None:
        self._moments = moments
        self._job = job
        self._variables = variables
        self._replicas = replicas
        self._batches = EqualBatchCounts(job)
        self.stops = Stops(job.ends_epoch, job.stop)
        self._thread = _Thread()
        self._said_uncompiled = False

    def fit(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook around ``Model.fit`` of Keras 3 and tf_keras. Collective: all ranks, unless inside ``alone``.

        tf_keras makes no epoch iterator: its batches stay as they are.
        """
        if not self._job.switches.rewrites:
            return self._job.failing_plainly(lambda: original(model, *args, **kwargs))
        rewrite.check_replicas(getattr(model, "distribute_strategy", None))
        bound = inspect.signature(original).bind(model, *args, **kwargs)
        given = bound.arguments
        self._shard(given)
        given["callbacks"] = self._around(given.get("callbacks"), model)
        self._quieten(given)
        self._batches.begin(given)
        self._thread.awaiting = _package(model) == "keras"
        try:
            return self._job.failing_plainly(lambda: original(*bound.args, **bound.kwargs))
        finally:
            self._thread.awaiting = False
            self._job.switches.last_steps = None

    def log_on_rank_0(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook around ``evaluate`` and ``predict``, which each rank runs for itself: only rank 0 shows progress."""
        bound = inspect.signature(original).bind(model, *args, **kwargs)
        self._quieten(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    def epoch_iterator(self, original: Callable[..., Any], iterator: Any, *args: Any, **kwargs: Any) -> None:
        """Hook around the constructor of an epoch iterator. The first iterator in ``fit`` is the training data's.

        Reading the data may make others, for example if a generator of the script evaluates a model.
        """
        of_training, self._thread.awaiting = self._thread.awaiting, False
        original(iterator, *args, **kwargs)
        if of_training:
            self._batches.equalise(iterator)

    def make_train_function(self, original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
        """Hook around ``make_train_function``. XLA cannot compile a training step with most kinds of exchanges."""
        compiled = model.jit_compile
        if not compiled or self._job.compiles:
            return original(model, *args, **kwargs)
        model.jit_compile = False
        try:
            if not self._said_uncompiled:
                announce(
                    "model.fit trains without XLA (jit_compile), which cannot compile the exchange between the ranks"
                )
            self._said_uncompiled = True
            return original(model, *args, **kwargs)
        finally:
            model.jit_compile = compiled

    def _quieten(self, given: dict[str, Any]) -> None:
        if self._job.world.rank and self._job.switches.automatic:
            given["verbose"] = 0

    def _shard(self, given: dict[str, Any]) -> None:
        """Replace data by this rank's shard, if a setting says so. Collective then: all ranks."""
        world = self._job.world
        names = ("x", "y", "sample_weight", "validation_data") if self._job.switches.settings.autoshard else ()
        for name in names:
            try:
                if given.get(name) is not None:
                    _check_order(given[name], name, world.control)
                    given[name] = _sharded(given[name], name, world.rank, world.size)
            except (ValueError, DisagreementError) as error:
                if name != "validation_data":
                    raise
                announce(f"{error}. Now all ranks evaluate all of validation_data")

    def _around(self, callbacks: Any, model: Any) -> Any:
        """Return this rank's callbacks, surrounded by the callbacks of ``fit_callbacks.agreeing``."""
        package = importlib.import_module(_package(model)).callbacks
        begin, end, last = agreeing(package.Callback)
        if isinstance(callbacks, package.CallbackList):
            inside = callbacks.callbacks
            if not any(isinstance(c, begin) for c in inside):
                inside[:] = self._surrounded(inside, begin, end, last, package)
                callbacks.set_model(model)
            return callbacks
        return self._surrounded(_flat(callbacks), begin, end, last, package)

    def _surrounded(self, callbacks: Sequence[Any], begin: Any, end: Any, last: Any, package: Any) -> list[Any]:
        own = list(callbacks)
        writing = tuple(getattr(package, name) for name in _ON_RANK_0 if hasattr(package, name))
        writes = any(isinstance(c, writing) for c in own)
        if self._job.world.rank:
            own = [c for c in own if not isinstance(c, writing)]
            for callback in own:
                if getattr(callback, "verbose", 0):
                    callback.verbose = 0
        accumulated = [last(self._job)] if self._job.switches.settings.accumulate_steps > 1 else []
        first = begin(self._job, self._moments, self._variables, self._replicas)
        return [first, *own, end(self._job, self._variables, self._replicas, self.stops, first, writes), *accumulated]


def _flat(callbacks: Any) -> list[Any]:
    """Return the callbacks in nested lists as one list."""
    if isinstance(callbacks, list | tuple):
        return [one for part in callbacks for one in _flat(part)]
    return [] if callbacks is None else [callbacks]


def _package(model: Any) -> str:
    """Return ``keras`` or ``tf_keras``, whichever the model's class comes from."""
    modules = [cls.__module__.split(".")[0] for cls in type(model).__mro__]
    return next(module for module in modules if module in ("keras", "tf_keras"))


def _check_order(data: Any, name: str, control: Channel) -> None:
    """Check that all ranks have the elements of a dataset in the same order. Collective: all ranks.

    Raises:
      DisagreementError: they have not, or each rank shuffles without a seed.
    """
    own = None
    if isinstance(data, tf.data.Dataset):
        source = digest(data)  # else of the first element, which takes it from a generator that gives it once
        if not source and tf.executing_eagerly():
            source = checksum([np.asarray(t) for t in tf.nest.flatten(next(iter(data), ()), True)])
        own = datasets.seeds(data), source
    said = control.all_gather_object(own, f"the order of {name}, of which TFDIST_AUTOSHARD=1 takes a share")
    other = next((rank for rank, one in enumerate(said) if one != said[0] or (one and one[0] is None)), None)
    if other is not None:
        seeds = [one and one[0] for one in (said[0], said[other])]
        what = "other elements" if seeds[0] == seeds[1] is not None else "another order"
        raise DisagreementError(
            f"TFDIST_AUTOSHARD=1: rank {other} has {what} of {name}. So some would come twice and others never. Give "
            "its shuffle a seed, shuffle(n, seed=7), and set seeds of a rank (tf.random.set_seed) after the dataset is "
            "made. Or leave the setting out, and call tfdist.shard(dataset) before shuffle and random maps"
        )


def _sharded(data: Any, name: str, rank: int, size: int) -> Any:
    """Return this rank's shard of an argument of ``fit``: arrays in any structure, or a dataset of batches."""
    if isinstance(data, tf.data.Dataset):
        return shard(data, rank, size)
    leaves = tf.nest.flatten(data)
    there = {number: leaf for number, leaf in enumerate(leaves) if leaf is not None}
    if not all(hasattr(leaf, "shape") for leaf in there.values()):
        raise ValueError(
            f"TFDIST_AUTOSHARD=1 shards arrays and tf.data datasets, but {name} is a {type(data).__name__}. Give each "
            "rank its own part of the data, and leave the setting out"
        )
    parts = shard(there, rank, size)
    return tf.nest.pack_sequence_as(data, [parts.get(number) for number in range(len(leaves))])
