"""Batches of ``model.fit``: an epoch has the same number of batches on every rank, and other ones."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.graph.job import Job, LastSteps
from tfdist.transport.interfaces import Channel, DisagreementError

_NOTHING = (
    "rank {} has no data to train on ({}), and an epoch ends on all ranks when the first has no batch left: nothing "
    "would be trained. Give each rank data: tfdist.shard(data), fewer ranks, or a smaller batch"
)
_START = "the beginning of model.fit, where the ranks compare their data"


class EqualBatches:
    """Makes the iterator of a Keras 3 training (keras/src/backend/tensorflow/trainer.py, ``TFEpochIterator``) end an
    epoch on all ranks together.

    Where all ranks know how many batches they have, the smallest number counts, and nothing is exchanged in an epoch.
    Else they tell each other before each batch whether they have one.

    Args:
      job: the ranks.

    Attributes:
      batch_size: of this rank, in the last training; None: it is not known.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.batch_size: int | None = None
        self._channel: Channel | None = None
        self._digest: int | None = None
        self._told: set[int] = set()

    def begin(self, given: Mapping[str, Any]) -> None:
        """A training begins with what ``fit`` was given, by name."""
        x = given.get("x")
        leaves = tf.nest.flatten(x)
        arrays = all(isinstance(leaf, np.ndarray | tf.Tensor) for leaf in leaves)
        self._digest = checksum([leaf[: given.get("batch_size") or 32] for leaf in leaves]) if arrays else None

    def equalise(self, iterator: Any) -> None:
        """Collective: all ranks, each with its own iterator."""
        dataset, adapter = iterator._distributed_dataset, iterator.data_adapter
        self.batch_size = getattr(adapter, "batch_size", None)
        if not isinstance(dataset, tf.data.Dataset):  # a strategy of one replica has wrapped it
            dataset = adapter.get_tf_dataset()
        if isinstance(dataset, tf.distribute.DistributedDataset):
            raise TypeError("model.fit is given a DistributedDataset: give it the tf.data.Dataset that was distributed")
        infinite = bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
        world = self._job.world
        own = _Facts(adapter.num_batches, iterator.steps_per_epoch, infinite, self._digest)
        ranks: list[_Facts] = world.control.all_gather_object(own, _START)
        numbers = [facts.num_batches for facts in ranks]
        steps = [facts.steps_per_epoch for facts in ranks if facts.steps_per_epoch]
        if steps:
            iterator.steps_per_epoch = min(steps)
        self._channel = self._channel or world.channel("the data of model.fit")
        first = _FirstBatch(self._job, self._channel, self._told)
        digests = [facts.digest for facts in ranks]
        if None not in digests:  # Keras may shuffle arrays: the batches differ though the data do not
            first.compared(digests)
        if any(n is None for n in numbers) and not all(facts.infinite for facts in ranks):
            iterator._get_iterator = functools.partial(_agreeing, dataset, first)  # a rank may have less each time
            self._channel.aside = False
            return
        self._channel.aside = True  # its one meeting is made by a thread of tf.data
        known = [n for n in numbers if n is not None]
        if known and not min(known) and max(known):
            raise DisagreementError(_NOTHING.format(known.index(0), f"{known} batches an epoch"))
        if len(set(known)) > 1:
            announce(f"the ranks have {known} batches an epoch: it ends after {min(known)} on all (see tfdist.shard)")
            iterator.data_adapter = _Shorter(adapter, min(known))
            iterator._num_batches = min(known)
            dataset = dataset.take(min(known))
        watched = [dataset, first.watched(dataset)]  # the latter in the first epoch
        iterator._get_iterator = lambda: watched.pop() if len(watched) > 1 else watched[0]


class _Facts(NamedTuple):
    """What a rank says of its data.

    Attributes:
      num_batches: of an epoch; None if it is not known.
      steps_per_epoch: as given.
      infinite: they never end.
      digest: of the first rows of arrays; None for other data.
    """

    num_batches: int | None
    steps_per_epoch: int | None
    infinite: bool
    digest: int | None


class _Shorter:
    """A data adapter with fewer batches."""

    def __init__(self, adapter: Any, num_batches: int) -> None:
        self._adapter = adapter
        self.num_batches = num_batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


class _FirstBatch:
    """Warns once if all ranks have the same first batch: then they train on the same data, which gains nothing.

    Args:
      job: the ranks.
      channel: of the data.
      told: the digests of first batches that a warning was given of, in this training or earlier ones.

    Attributes:
      channel: of the data.
      job: the ranks.
    """

    def __init__(self, job: Job, channel: Channel, told: set[int]) -> None:
        self.job = job
        self.channel = channel
        self._told = told
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
            self.compared(self.channel.arrive("the first batch of model.fit", checksum(arrays)))
        return np.array(True)

    def compared(self, digests: Sequence[int | None]) -> None:
        """What all ranks have is known."""
        self._compared = True
        first = digests[0]
        if len(digests) > 1 and len(set(digests)) == 1 and first is not None and first not in self._told:
            self._told.add(first)
            announce(
                "all ranks feed model.fit the same first batch, and so probably the same data: give each its own, "
                "by tfdist.shard(x) and tfdist.shard(y), or tfdist.shard(dataset); or set TFDIST_AUTOSHARD=1"
            )


def _agreeing(dataset: Any, first: _FirstBatch) -> _Agreeing:
    accumulates = first.job.switches.settings.accumulate_steps > 1
    return _Ahead(dataset, first) if accumulates else _Agreeing(dataset, first)


class _Agreeing:
    """A dataset's elements, as long as all ranks have one."""

    def __init__(self, dataset: Any, first: _FirstBatch) -> None:
        self._elements: Iterator[Any] = iter(dataset)
        self._first = first
        self._begun = False

    def __iter__(self) -> _Agreeing:
        return self

    def __next__(self) -> Any:
        """Collective: all ranks."""
        element = next(self._elements, None)
        flags = self._first.channel.arrive("the next batch of model.fit", int(element is None))
        if any(flags):
            ended = [rank for rank, flag in enumerate(flags) if flag]
            if len(ended) < len(flags):
                if not self._begun:
                    raise DisagreementError(_NOTHING.format(ended[0], "not one batch, while other ranks have some"))
                announce(f"rank {', '.join(map(str, ended))} has no batch left: the epoch ends here on all ranks")
            raise tf.errors.OutOfRangeError(None, None, "the epoch has ended")  # as TensorFlow's own iterators do
        self._begun = True
        leaves = [x for x in tf.nest.flatten(element, expand_composites=True) if _has_bytes(x)]
        self._first.compare(*[x.numpy() for x in leaves])
        return element


class _Ahead(_Agreeing):
    """Such elements, of which it is known which one is the last: what has been accumulated is applied with it."""

    def __init__(self, dataset: Any, first: _FirstBatch) -> None:
        super().__init__(dataset, first)
        self._ahead: list[Any] = []
        self._ended: tf.errors.OutOfRangeError | None = None

    def __next__(self) -> Any:
        """Collective: all ranks."""
        if not self._ahead:
            self._ahead.append(self._following())
        element = self._ahead.pop()
        if self._ended is not None:
            raise self._ended
        self._ahead.append(self._following())
        if self._ended is not None:
            self._first.job.switches.last_steps = LastSteps(1)
        return element

    def _following(self) -> Any:
        try:
            return super().__next__()
        except tf.errors.OutOfRangeError as error:
            self._ended = error
            return None


def _has_bytes(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype not in (tf.variant, tf.resource)
