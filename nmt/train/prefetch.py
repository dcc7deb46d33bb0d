"""Prefetching: a background thread prepares the next batch while the ranks train on the current one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from nmt.text.batches import Batch


class Batches(Protocol):
    """Source of batches (`nmt.train.feed.Feed`): a batch depends on step and part only."""

    parts: int

    def batch(self, step: int, part: int = 0) -> Batch:
        """Return batch number `part` of the step that follows `step` steps."""

    def epoch_ended(self, step: int) -> int:
        """Return the number, from 1, of the epoch that ends with this step; 0 if none does."""


class Prefetcher:
    """The batches of another source, prefetched by a background thread until `close`.

    An error in a batch is raised by the call of `batch` that asks for this batch. Only one thread may call at a time.

    Args:
        batches: the source.
        last_step: number of steps of the run; no batch is prepared after it.

    Attributes:
        parts: number of batches that a rank processes in a step.
    """

    def __init__(self, batches: Batches, last_step: int) -> None:
        self.parts = batches.parts
        self._batches, self._last_step = batches, last_step
        self._thread = ThreadPoolExecutor(1, "next batch")
        self._under_way: dict[tuple[int, int], Future[Batch]] = {}

    def batch(self, step: int, part: int = 0) -> Batch:
        """Wait for the batch and return it; start the preparation of the next one."""
        wanted = self._under_way.pop((step, part), None) or self._begin(step, part)
        for other in self._under_way.values():
            other.cancel()
        following = (step, part + 1) if part + 1 < self.parts else (step + 1, 0)
        found = wanted.result()
        self._under_way = {following: self._begin(*following)} if following[0] < self._last_step else {}
        return found

    def epoch_ended(self, step: int) -> int:
        """Return the number, from 1, of the epoch that ends with this step; 0 if none does."""
        return self._batches.epoch_ended(step)

    def close(self) -> None:
        """End the thread after its current batch."""
        self._thread.shutdown(cancel_futures=True)

    def _begin(self, step: int, part: int) -> Future[Batch]:
        return self._thread.submit(self._batches.batch, step, part)
