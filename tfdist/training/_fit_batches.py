"""Batches of ``model.fit``: each rank trains on its own batches, equally many per epoch on all ranks."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import keras_fit
from tfdist.core.log import announce
from tfdist.graph.job import Job, LastSteps
from tfdist.training import data_shard
from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import Channel

_NOTHING = (
    "rank {} has no data to train on ({}). An epoch ends on all ranks when one rank has no batch left, so nothing "
    "would be trained. Give each rank data: tfdist.shard(data), fewer ranks, or a smaller batch"
)
_START = "the beginning of model.fit, where the ranks compare their data"


class EqualBatchCounts:
    """Makes the epoch iterator of Keras 3 end on all ranks after the same batch.

    If the number of batches is known on all ranks, the smallest number counts, without exchanges during an epoch.
    Otherwise the ranks exchange before each batch whether they have one.

    Args:
      job: the ranks.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._channel: Channel | None = None
        self._digest = 0

    def begin(self, given: Mapping[str, Any]) -> None:
        """Note the data of a training that begins.

        Args:
          given: the arguments of ``fit``, by name.
        """
        self._digest = data_shard.digest_of_all(given.get(name) for name in ("x", "y", "sample_weight"))

    def equalise(self, iterator: Any) -> None:
        """Make an iterator end after the same batch on all ranks. Collective: all ranks, each with its own iterator."""
        dataset, adapter = keras_fit.dataset_of(iterator), iterator.data_adapter
        infinite = bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
        world = self._job.world
        own = _Facts(adapter.num_batches, iterator.steps_per_epoch, infinite, self._digest)
        ranks: list[_Facts] = world.control.all_gather_object(own, _START)
        numbers = [facts.num_batches for facts in ranks]
        steps = [facts.steps_per_epoch for facts in ranks if facts.steps_per_epoch]
        if steps:
            iterator.steps_per_epoch = min(steps)
        same = len({facts.digest for facts in ranks}) == 1 < world.size
        self._job.data_comparison.fit_begins(self._digest if same else 0)
        if any(n is None for n in numbers) and not all(facts.infinite for facts in ranks):
            self._channel = self._channel or world.channel("the data of model.fit")
            # A rank may have fewer batches in each epoch, so the ranks must agree in each.
            keras_fit.take_from(iterator, functools.partial(_agreeing, dataset, self._channel, self._job))
            return
        known = [n for n in numbers if n is not None]
        if known and not min(known) and max(known):
            raise DisagreementError(_NOTHING.format(known.index(0), f"{known} batches an epoch"))
        if len(set(known)) > 1:
            announce(
                f"the ranks have {known} batches an epoch: epochs end after {min(known)} on all (see tfdist.shard)"
            )
            keras_fit.shorten(iterator, min(known))
            dataset = dataset.take(min(known))
        keras_fit.take_from(iterator, lambda: dataset)


class _Facts(NamedTuple):
    """Description of a rank's data, which it sends to all ranks.

    Attributes:
      num_batches: number of batches in an epoch; None if it is unknown.
      steps_per_epoch: argument of ``fit``; None if it was not given.
      infinite: True if the dataset never ends.
      digest: see ``data_shard.digest``.
    """

    num_batches: int | None
    steps_per_epoch: int | None
    infinite: bool
    digest: int


def _agreeing(dataset: Any, channel: Channel, job: Job) -> _Agreeing:
    accumulates = job.switches.settings.accumulate_steps > 1
    return _Ahead(dataset, channel, job) if accumulates else _Agreeing(dataset, channel)


class _Agreeing:
    """Iterator over a dataset's elements that ends on all ranks when one rank has no element left."""

    def __init__(self, dataset: Any, channel: Channel) -> None:
        self._elements: Iterator[Any] = iter(dataset)
        self._channel = channel
        self._begun = False

    def __iter__(self) -> _Agreeing:
        return self

    def __next__(self) -> Any:
        """Return the next element of this rank. Collective: all ranks."""
        element = next(self._elements, None)
        flags = self._channel.arrive("the next batch of model.fit", int(element is None))
        if any(flags):
            ended = [rank for rank, flag in enumerate(flags) if flag]
            if len(ended) < len(flags):
                if not self._begun:
                    raise DisagreementError(_NOTHING.format(ended[0], "no batch, while other ranks have batches"))
                announce(f"rank {', '.join(map(str, ended))} has no batch left: the epoch ends here on all ranks")
            raise tf.errors.OutOfRangeError(None, None, "the epoch has ended")  # TensorFlow's own iterators raise it
        self._begun = True
        return element


class _Ahead(_Agreeing):
    """``_Agreeing`` that reads one element ahead, to mark the last step, which applies the accumulated gradients."""

    def __init__(self, dataset: Any, channel: Channel, job: Job) -> None:
        super().__init__(dataset, channel)
        self._job = job
        self._ahead: list[Any] = []
        self._ended: tf.errors.OutOfRangeError | None = None

    def __next__(self) -> Any:
        """Return the next element, and mark the last step of the epoch. Collective: all ranks."""
        if not self._ahead:
            self._ahead.append(self._following())
        element = self._ahead.pop()
        if self._ended is not None:
            raise self._ended
        self._ahead.append(self._following())
        if self._ended is not None:
            self._job.switches.last_steps = LastSteps(1)
        return element

    def _following(self) -> Any:
        try:
            return super().__next__()
        except tf.errors.OutOfRangeError as error:
            self._ended = error
            return None
