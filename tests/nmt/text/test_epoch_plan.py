"""nmt.text.epoch_plan: every pair once an epoch, from one bucket a batch, whatever the number of ranks."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.text.epoch_plan import epoch_plan, rank_slice, steps_per_epoch, widest_batch

SHAPE: dict[str, Any] = {"global_batch_size": 8, "num_buckets": 5, "src_max_len": 50, "tgt_max_len": 50}


def lengths(count: int, seed: int = 7, longest: int = 70) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    src = generator.integers(0, longest, count).astype(np.int32)
    return src, np.maximum(src + generator.integers(-3, 4, count), 0).astype(np.int32)


def expected_bucket(src: int, tgt: int) -> int:
    src, tgt = min(src, 50), min(tgt, 50)
    return min(5, max(src // 10, (tgt + 1) // 10))


@pytest.mark.parametrize("epoch", [0, 1])
def test_every_usable_pair_occurs_once(epoch: int) -> None:
    src, tgt = lengths(1001)
    plan = epoch_plan(src, tgt, seed=3, epoch=epoch, **SHAPE)
    assert sorted(np.concatenate(plan)) == [i for i in range(1001) if src[i] and tgt[i]]


def test_a_batch_comes_from_one_bucket_and_all_but_a_bucket_s_last_are_full() -> None:
    src, tgt = lengths(1001)
    short: list[int] = []
    buckets = set()
    for batch in epoch_plan(src, tgt, seed=3, epoch=0, **SHAPE):
        (bucket,) = {expected_bucket(int(src[i]), int(tgt[i])) for i in batch}
        buckets.add(bucket)
        assert 1 <= len(batch) <= 8, batch
        if len(batch) < 8:
            short.append(bucket)
    assert buckets == {0, 1, 2, 3, 4, 5}
    assert len(short) == len(set(short))


def test_the_tutorials_bucket_edges() -> None:
    # width 10: a target of 9 words counts 10 with its end mark; everything from 50 on shares the last bucket.
    src = np.array([9, 9, 10, 50, 90])
    tgt = np.array([8, 9, 3, 2, 2])
    plan = epoch_plan(src, tgt, seed=0, epoch=0, global_batch_size=9, num_buckets=5, src_max_len=0, tgt_max_len=None)
    assert sorted(tuple(sorted(batch)) for batch in plan) == [(0,), (1, 2), (3, 4)]


def test_plans_differ_by_seed_and_epoch_only() -> None:
    src, tgt = lengths(300)

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_plan(src, tgt, seed=seed, epoch=epoch, **SHAPE)).tolist()

    assert order(3, 0) == order(3, 0)
    assert len({tuple(order(seed, epoch)) for seed in (3, 4) for epoch in (0, 1, 2)}) == 6


@pytest.mark.parametrize("num_buckets", [0, 1, 2, 5])
@pytest.mark.parametrize("batch", [1, 7, 64, 5000])
def test_steps_per_epoch_counts_the_plan(num_buckets: int, batch: int) -> None:
    src, tgt = lengths(1001)
    shape = {**SHAPE, "num_buckets": num_buckets, "global_batch_size": batch}
    steps = steps_per_epoch(src, tgt, **shape)
    for epoch in (0, 5):
        assert len(epoch_plan(src, tgt, seed=1, epoch=epoch, **shape)) == steps, epoch


def test_ranks_share_a_batch_without_overlap() -> None:
    batch = np.arange(100, 111)
    for size in (1, 2, 3, 4, 16):
        slices = [rank_slice(batch, rank, size) for rank in range(size)]
        assert sorted(np.concatenate(slices)) == batch.tolist(), size
        assert max(map(len, slices)) - min(map(len, slices)) <= 1, size
    with pytest.raises(ValueError, match="rank 2 of 2"):
        rank_slice(batch, 2, 2)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_have_nearly_equal_padded_work(size: int) -> None:
    src, tgt = lengths(20_000, longest=49)
    slowest = mean = 0
    for batch in epoch_plan(src, tgt, seed=1, epoch=0, **{**SHAPE, "global_batch_size": 128}):
        slices = [rank_slice(batch, rank, size) for rank in range(size)]
        work = [len(ids) * (src[ids].max() + tgt[ids].max() + 1) for ids in slices if len(ids)]
        slowest += max(work)
        mean += sum(work) / size
    assert mean / slowest > 0.97


def test_a_corpus_without_usable_pairs_is_the_users_error() -> None:
    with pytest.raises(InputError, match="no sentence pair has words on both sides"):
        epoch_plan(np.array([0, 3]), np.array([2, 0]), seed=1, epoch=0, **SHAPE)


def test_impossible_arguments() -> None:
    with pytest.raises(ValueError, match="0 sentences"):
        steps_per_epoch(np.array([1]), np.array([1]), **{**SHAPE, "global_batch_size": 0})
    with pytest.raises(ValueError, match="1 source lengths and 2 target"):
        steps_per_epoch(np.array([1]), np.array([1, 2]), **SHAPE)


def test_a_large_corpus_takes_seconds() -> None:
    src, tgt = lengths(500_000)
    start = time.process_time()
    epoch_plan(src, tgt, seed=1, epoch=0, **{**SHAPE, "global_batch_size": 128})
    assert time.process_time() - start < 3


@pytest.mark.parametrize("limit", [0, 50])
def test_the_widest_batch_bounds_those_of_all_epochs(limit: int) -> None:
    src, tgt = lengths(1001)
    tgt[400] = 900
    shape = SHAPE | {"src_max_len": limit, "tgt_max_len": limit}
    sentences, longest, pair = widest_batch(src, tgt, **shape)
    cut_src, cut_tgt = (np.minimum(one, limit or one.max()) for one in (src, tgt))
    found = [
        len(batch) * int(np.maximum(cut_src, cut_tgt + 1)[batch].max())
        for epoch in range(3)
        for batch in epoch_plan(src, tgt, seed=3, epoch=epoch, **shape)
    ]
    assert max(found) <= sentences * longest
    assert (sentences, longest) == ((8, 51) if limit else (8, 901))
    assert np.maximum(cut_src, cut_tgt + 1)[pair] == longest
