"""An epoch of ``model.fit`` has the same number of batches on every rank, and other ones."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.job import Job
from tfdist.settings import log
from tfdist.world import Channel

_START = "the beginning of model.fit, where the ranks compare their data"


class EqualBatches:
    """Makes the iterator of a Keras 3 training (keras/src/backend/tensorflow/trainer.py, ``TFEpochIterator``) end an
    epoch on all ranks together.

    Where all ranks know how many batches they have, the smallest number counts, and nothing is exchanged in an epoch.
    Else they tell each other before each batch whether they have one.

    Args:
      job: the ranks.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def equalise(self, iterator: Any) -> None:
        """Collective: all ranks, each with its own iterator."""
        dataset, adapter = iterator._distributed_dataset, iterator.data_adapter
        infinite = bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
        world = self._job.world
        own = (adapter.num_batches, iterator.steps_per_epoch, infinite)
        ranks: list[tuple[int | None, int | None, bool]] = world.control.all_gather_object(own, _START)
        numbers = [number for number, _, _ in ranks]
        steps = [s for _, s, _ in ranks if s]
        if steps:
            iterator.steps_per_epoch = min(steps)
        first = _FirstBatch(self._job, world.channel("the data of model.fit"))
        if any(n is None for n in numbers) and not all(endless for _, _, endless in ranks):
            iterator._get_iterator = functools.partial(_Agreeing, dataset, first)  # a rank may have less each time
            return
        known = [n for n in numbers if n is not None]
        if len(set(known)) > 1:
            if world.rank == 0:
                log(f"the ranks have {known} batches an epoch: it ends after {min(known)} on all (see tfdist.shard)")
            iterator.data_adapter = _Shorter(adapter, min(known))
            iterator._num_batches = min(known)
            dataset = dataset.take(min(known))
        watched = [dataset, first.watched(dataset)]  # the latter in the first epoch
        iterator._get_iterator = lambda: watched.pop() if len(watched) > 1 else watched[0]


class _Shorter:
    """A data adapter with fewer batches."""

    def __init__(self, adapter: Any, num_batches: int) -> None:
        self._adapter = adapter
        self.num_batches = num_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


class _FirstBatch:
    """Warns once if all ranks have the same first batch: then they train on the same data, which gains nothing.

    Attributes:
      channel: of the data.
      job: the ranks.
    """

    def __init__(self, job: Job, channel: Channel) -> None:
        self.job = job
        self.channel = channel
        self._compared = False

    def watched(self, dataset: Any) -> Any:
        """The dataset with a look at its first element, as it is taken."""

        def look(index: Any, *element: Any) -> Any:
            leaves = [leaf for leaf in tf.nest.flatten(element, expand_composites=True) if _has_bytes(leaf)]

            def compare() -> Any:
                return tf.numpy_function(self.compare, leaves, tf.bool, stateful=True)

            tf.cond(tf.equal(index, 0), compare, lambda: True)
            return element[0] if len(element) == 1 else element

        return dataset.enumerate().map(look)

    def compare(self, *arrays: Any) -> np.ndarray:
        """Collective: all ranks, the first time."""
        if not self._compared:
            self._compared = True
            digest = 0
            for array in arrays:
                digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
            found = self.channel.arrive("the first batch of model.fit", digest)
            if self.job.world.rank == 0 and len(set(found)) == 1:
                log(
                    "all ranks feed model.fit the same first batch, and so probably the same data: give each its own, "
                    "by tfdist.shard(x) and tfdist.shard(y), or tfdist.shard(dataset); or set TFDIST_AUTOSHARD=1"
                )
        return np.array(True)


class _Agreeing:
    """A dataset's elements, as long as all ranks have one."""

    def __init__(self, dataset: Any, first: _FirstBatch) -> None:
        self._elements: Iterator[Any] = iter(dataset)
        self._first = first

    def __iter__(self) -> _Agreeing:
        return self

    def __next__(self) -> Any:
        """Collective: all ranks."""
        element = next(self._elements, None)
        flags = self._first.channel.arrive("the next batch of model.fit", int(element is None))
        if any(flags):
            ended = [rank for rank, flag in enumerate(flags) if flag]
            if self._first.job.world.rank == 0 and len(ended) < len(flags):
                log(f"rank {', '.join(map(str, ended))} has no batch left: the epoch ends here on all ranks")
            raise tf.errors.OutOfRangeError(None, None, "the epoch has ended")  # as TensorFlow's own iterators do
        leaves = [x for x in tf.nest.flatten(element, expand_composites=True) if _has_bytes(x)]
        self._first.compare(*[x.numpy() for x in leaves])
        return element


def _has_bytes(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype not in (tf.string, tf.variant, tf.resource)
