"""The thread that prepares the next batch."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

from nmt.options.config import Config
from nmt.train.feed import Feed
from nmt.train.prefetch import Prefetcher


class Recorded:
    """A feed; a batch is its (step, part), and some steps raise an error."""

    parts = 2

    def __init__(self, bad: tuple[int, ...] = ()) -> None:
        self.asked: list[tuple[int, int]] = []
        self.threads: set[str] = set()
        self._bad = bad

    def batch(self, step: int, part: int = 0) -> Any:
        self.asked.append((step, part))
        self.threads.add(threading.current_thread().name)
        if step in self._bad:
            raise OSError(f"step {step}")
        return step, part

    def epoch_ended(self, step: int) -> int:
        return step


def test_each_batch_is_prepared_once_and_one_ahead_to_the_last_step() -> None:
    batches = Recorded()
    with contextlib.closing(Prefetcher(batches, 3)) as ahead:
        wanted = [(step, part) for step in range(3) for part in range(2)]
        assert [ahead.batch(*place) for place in wanted] == wanted
        assert batches.asked == wanted
    assert threading.current_thread().name not in batches.threads and len(batches.threads) == 1


def test_batches_may_be_asked_for_in_any_order() -> None:
    with contextlib.closing(Prefetcher(Recorded(), 9)) as ahead:
        assert [ahead.batch(step, part) for step, part in ((4, 1), (2, 0), (2, 0))] == [(4, 1), (2, 0), (2, 0)]


def test_what_goes_wrong_is_raised_at_the_step_that_wants_the_batch() -> None:
    with contextlib.closing(Prefetcher(Recorded(bad=(1,)), 3)) as ahead:
        assert ahead.batch(0, 1) == (0, 1)  # the next batch fails in the thread, now or later
        with pytest.raises(OSError, match="step 1"):
            ahead.batch(1)


def test_nothing_runs_on_once_it_is_closed() -> None:
    before = threading.active_count()
    ahead = Prefetcher(Recorded(), 9)
    ahead.batch(0)
    assert threading.active_count() == before + 1
    ahead.close()
    assert threading.active_count() == before


def test_they_are_the_feeds(toy: Any) -> None:
    feeds = [
        Feed(toy.train, toy.src_vocab, toy.tgt_vocab, Config(batch_size=4, num_buckets=2, random_seed=1))
        for _ in range(2)
    ]
    with contextlib.closing(Prefetcher(feeds[0], 25)) as ahead:
        for step in range(25):  # more than two epochs
            one, other = ahead.batch(step), feeds[1].batch(step)
            np.testing.assert_array_equal(one.source, other.source, str(step))
            np.testing.assert_array_equal(one.target_out, other.target_out, str(step))
