"""nmt.text.epoch_plan: each pair once per epoch, one bucket per batch, for any number of ranks."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.text.epoch_plan import Cut, epoch_plan, rank_slice, steps_per_epoch, widest_batch

SHAPE = Cut(global_batch_size=8, num_buckets=5, src_max_len=50, tgt_max_len=50)


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
    plan = epoch_plan(src, tgt, SHAPE, seed=3, epoch=epoch)
    assert sorted(np.concatenate(plan)) == [i for i in range(1001) if src[i] and tgt[i]]


def test_a_batch_comes_from_one_bucket_and_all_but_a_bucket_s_last_are_full() -> None:
    src, tgt = lengths(1001)
    short: list[int] = []
    buckets = set()
    for batch in epoch_plan(src, tgt, SHAPE, seed=3, epoch=0):
        (bucket,) = {expected_bucket(int(src[i]), int(tgt[i])) for i in batch}
        buckets.add(bucket)
        assert 1 <= len(batch) <= 8, batch
        if len(batch) < 8:
            short.append(bucket)
    assert buckets == {0, 1, 2, 3, 4, 5}
    assert len(short) == len(set(short))


def test_the_tutorials_bucket_edges() -> None:
    # Width 10: a target of 9 words counts 10 with its end mark; lengths from 50 on share the last bucket.
    src = np.array([9, 9, 10, 50, 90])
    tgt = np.array([8, 9, 3, 2, 2])
    plan = epoch_plan(src, tgt, Cut(9, 5, 0, None), seed=0, epoch=0)
    assert sorted(tuple(sorted(batch)) for batch in plan) == [(0,), (1, 2), (3, 4)]


def test_plans_differ_by_seed_and_epoch_only() -> None:
    src, tgt = lengths(300)

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_plan(src, tgt, SHAPE, seed=seed, epoch=epoch)).tolist()

    assert order(3, 0) == order(3, 0)
    assert len({tuple(order(seed, epoch)) for seed in (3, 4) for epoch in (0, 1, 2)}) == 6


@pytest.mark.parametrize("num_buckets", [0, 1, 2, 5])
@pytest.mark.parametrize("batch", [1, 7, 64, 5000])
def test_steps_per_epoch_counts_the_plan(num_buckets: int, batch: int) -> None:
    src, tgt = lengths(1001)
    cut = replace(SHAPE, num_buckets=num_buckets, global_batch_size=batch)
    steps = steps_per_epoch(src, tgt, cut)
    for epoch in (0, 5):
        assert len(epoch_plan(src, tgt, cut, seed=1, epoch=epoch)) == steps, epoch


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
    for batch in epoch_plan(src, tgt, replace(SHAPE, global_batch_size=128), seed=1, epoch=0):
        slices = [rank_slice(batch, rank, size) for rank in range(size)]
        work = [len(ids) * (src[ids].max() + tgt[ids].max() + 1) for ids in slices if len(ids)]
        slowest += max(work)
        mean += sum(work) / size
    assert mean / slowest > 0.97


def test_a_corpus_without_usable_pairs_is_the_users_error() -> None:
    with pytest.raises(InputError, match="no sentence pair has words on both sides"):
        epoch_plan(np.array([0, 3]), np.array([2, 0]), SHAPE, seed=1, epoch=0)


def test_impossible_arguments() -> None:
    with pytest.raises(ValueError, match="0 sentences"):
        steps_per_epoch(np.array([1]), np.array([1]), replace(SHAPE, global_batch_size=0))
    with pytest.raises(ValueError, match="1 source lengths and 2 target"):
        steps_per_epoch(np.array([1]), np.array([1, 2]), SHAPE)


def test_a_large_corpus_takes_seconds() -> None:
    src, tgt = lengths(500_000)
    start = time.process_time()
    epoch_plan(src, tgt, replace(SHAPE, global_batch_size=128), seed=1, epoch=0)
    assert time.process_time() - start < 3


@pytest.mark.parametrize("more", [{}, {"pool_batches": 10, "num_buckets": 1}])
@pytest.mark.parametrize("limit", [0, 50])
def test_the_widest_batch_bounds_those_of_all_epochs(limit: int, more: dict[str, int]) -> None:
    src, tgt = lengths(1001)
    tgt[400] = 900
    cut = replace(SHAPE, src_max_len=limit, tgt_max_len=limit, **more)
    sentences, longest, pair = widest_batch(src, tgt, cut)
    cut_src, cut_tgt = (np.minimum(one, limit or one.max()) for one in (src, tgt))
    found = [
        len(batch) * int(np.maximum(cut_src, cut_tgt + 1)[batch].max())
        for epoch in range(3)
        for batch in epoch_plan(src, tgt, cut, seed=3, epoch=epoch)
    ]
    assert max(found) <= sentences * longest
    assert (sentences, longest) == ((8, 51) if limit else (8, 901))
    assert np.maximum(cut_src, cut_tgt + 1)[pair] == longest


def filled(src: np.ndarray, tgt: np.ndarray, plan: list[np.ndarray]) -> float:
    """Return the share of positions that is not padding."""
    longest = sum(len(batch) * int(src[batch].max() + tgt[batch].max() + 1) for batch in plan)
    return float((src + tgt + 1).sum()) / longest


def sentences_like_captions(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    src = np.clip(generator.normal(13, 4, count), 4, 40).astype(np.int32)
    return src, np.clip(src + generator.normal(0, 3, count), 2, 45).astype(np.int32)


def test_pools_leave_less_padding_and_as_many_steps() -> None:
    src, tgt = sentences_like_captions(30_000)
    cut = replace(SHAPE, global_batch_size=128)
    pooled = replace(cut, num_buckets=1, pool_batches=100)
    plan, other = (epoch_plan(src, tgt, pooled, seed=1, epoch=epoch) for epoch in (0, 1))
    assert sorted(np.concatenate(plan)) == list(range(30_000))
    assert len(plan) == len(other) == steps_per_epoch(src, tgt, pooled) == -(-30_000 // 128)
    assert filled(src, tgt, epoch_plan(src, tgt, cut, seed=1, epoch=0)) < 0.75 < 0.88 < filled(src, tgt, plan)
    companions = [frozenset(batch.tolist()) for batch in plan]
    assert not set(companions) & {frozenset(batch.tolist()) for batch in other}
    # The order of the steps does not follow the lengths.
    means = np.array([tgt[batch].mean() for batch in plan])
    assert abs(np.corrcoef(means[1:], means[:-1])[0, 1]) < 0.2


@pytest.mark.parametrize("tokens", [50, 400, 4096, 10**6])
def test_batches_of_so_many_tokens(tokens: int) -> None:
    src, tgt = sentences_like_captions(5_000)
    cut = replace(SHAPE, global_batch_tokens=tokens)
    plans = [epoch_plan(src, tgt, cut, seed=1, epoch=epoch) for epoch in range(3)]
    assert {len(plan) for plan in plans} == {steps_per_epoch(src, tgt, cut)}
    for plan in plans:
        assert sorted(np.concatenate(plan)) == list(range(5_000))
        used = [len(batch) * int(np.maximum(src, tgt + 1)[batch].max()) for batch in plan]
        assert max(used) <= tokens
        if tokens == 4096:
            assert np.mean(used) > 0.8 * tokens and filled(src, tgt, plan) > 0.85
    sentences, longest, _ = widest_batch(src, tgt, cut)
    assert max(used) <= sentences * longest <= tokens


def kept_company(plans: list[list[np.ndarray]]) -> float:
    """Return the share of a sentence's companions in a batch that it meets again in the next epoch."""
    first, second = plans
    batch_of = np.empty(sum(map(len, first)), int)
    for number, batch in enumerate(first):
        batch_of[batch] = number
    again = sum(int((batch_of[batch][:, None] == batch_of[batch]).sum()) - len(batch) for batch in second)
    return again / sum(len(batch) * (len(batch) - 1) for batch in first)


@pytest.mark.parametrize(("pairs", "most"), [(2_001, 0.3), (10_001, 0.3), (29_000, 0.2)])
def test_pools_of_a_small_text_are_as_random(pairs: int, most: float) -> None:
    """An epoch has several pools; the incomplete batch has other sentences each time, of all lengths."""
    src, tgt = sentences_like_captions(pairs)
    cut = replace(SHAPE, global_batch_size=64, num_buckets=1, pool_batches=100)
    plans = [epoch_plan(src, tgt, cut, seed=1, epoch=epoch) for epoch in range(2)]
    assert kept_company(plans) < most
    left = [next(batch for batch in plan if len(batch) < 64) for plan in plans]
    assert not set(left[0]) & set(left[1])
    assert {len(plan) for plan in plans} == {steps_per_epoch(src, tgt, cut)}
    assert tgt[np.concatenate(left)].mean() < tgt.mean() + 4  # not only the longest


@pytest.mark.parametrize("tokens", [700, 1_600, 4_096])
def test_no_batch_of_tokens_is_left_over(tokens: int) -> None:
    for pairs in (2_001, 5_003):
        src, tgt = sentences_like_captions(pairs)
        plan = epoch_plan(src, tgt, replace(SHAPE, global_batch_tokens=tokens), seed=1, epoch=0)
        words = [int((tgt[batch] + 1).sum()) for batch in plan]
        assert min(words) > 0.6 * np.mean(words), (pairs, min(words), np.mean(words))


def test_a_sentence_longer_than_a_batch_of_tokens() -> None:
    with pytest.raises(InputError, match="a sentence of 41 tokens is more than a batch of 40"):
        steps_per_epoch(np.array([3, 40]), np.array([3, 40]), replace(SHAPE, global_batch_tokens=40))
