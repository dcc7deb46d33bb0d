"""The next batch is prepared on a thread while this one is trained on."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from nmt.text.batches import Batch


class Batches(Protocol):
    """Where a step's batches come from, `nmt.train.feed.Feed`: a pure function of step and part."""

    parts: int

    def batch(self, step: int, part: int = 0) -> Batch:
        """The batch of a part of the step that follows `step` steps."""

    def epoch_ended(self, step: int) -> int:
        """The number of the epoch, from 1, that ends with this step; 0 if none does."""


class Ahead:
    """The same batches, of which the next is always on its way, until it is closed.

    What goes wrong with a batch is raised where that batch is asked for, not before; for one thread at a time.

    Args:
        batches: the batches.
        last_step: the steps of the run; nothing is prepared for those after it.

    Attributes:
        parts: of a step.
    """

    def __init__(self, batches: Batches, last_step: int) -> None:
        self.parts = batches.parts
        self._batches, self._last_step = batches, last_step
        self._thread = ThreadPoolExecutor(1, "next batch")
        self._under_way: dict[tuple[int, int], Future[Batch]] = {}

    def batch(self, step: int, part: int = 0) -> Batch:
        """The batch, once it is there; the one that follows is begun."""
        wanted = self._under_way.pop((step, part), None) or self._begin(step, part)
        for other in self._under_way.values():
            other.cancel()
        following = (step, part + 1) if part + 1 < self.parts else (step + 1, 0)
        found = wanted.result()
        self._under_way = {following: self._begin(*following)} if following[0] < self._last_step else {}
        return found

    def epoch_ended(self, step: int) -> int:
        """The number of the epoch that ends with this step."""
        return self._batches.epoch_ended(step)

    def close(self) -> None:
        """Ends the thread, after the batch that it is at."""
        self._thread.shutdown(cancel_futures=True)

    def _begin(self, step: int, part: int) -> Future[Batch]:
        return self._thread.submit(self._batches.batch, step, part)
