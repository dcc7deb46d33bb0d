"""Bucketing and shuffling: the plan of an epoch, which sentences make which step, for all ranks together.

Batches are formed over the whole corpus, each from one length bucket, and only then dealt to the ranks. All ranks of
a step so have nearly equal work, one rank of batch 128 and two of 64 see the same batches, and a run can resume at
any step: the plan is a pure function of the lengths, the cut, the seed and the epoch. It does not know how many ranks
there are.

Every sort here is a stable one. NumPy's faster sorts order equal keys by the instruction set at hand, so that ranks
on different machines would disagree about the plan.

Cost: O(n log n) time and about 60 bytes a pair for n pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmt.core.errors import InputError

CUT_VERSION = 2  # of pools and of batches by tokens, for runs that are continued: another number, another plan
_WIDTH_WITHOUT_LIMIT = 10  # tokens; a bucket's width where no limit of length tells one
_FEWEST_POOLS = 3  # of a bucket, in an epoch: with fewer, the same sentences would meet again and again
_MIXED_TOKENS = 2  # where batches are cut by tokens: so far the shorter sides of companions may lie apart


@dataclass(frozen=True)
class Cut:
    """How the sentences of an epoch are cut into global batches.

    Attributes:
      global_batch_size: sentences of a step over all ranks.
      num_buckets: length buckets; at most 1 means none.
      src_max_len: tokens that a source sentence is cut to; None or 0 for all.
      tgt_max_len: the same for target sentences.
      pool_batches: within a bucket, the sentences of so many batches, or of a third of the bucket's if these are
        fewer, are put in order of length before they are cut: the more, the less padding.
      global_batch_tokens: tokens of a step over all ranks, on the longer side, padding counted; in place of sentences
        and buckets. None: these count.
    """

    global_batch_size: int
    num_buckets: int
    src_max_len: int | None
    tgt_max_len: int | None
    pool_batches: int = 1
    global_batch_tokens: int | None = None


def epoch_plan(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut, *, seed: int, epoch: int
) -> list[np.ndarray]:
    """The global batches of one epoch, in the order of its steps.

    Pairs with an empty side are left out. The others go to buckets of similar length; each bucket is shuffled, put in
    order within pools, and cut into batches; what is left over, of any length, is a short one. By tokens, the longest
    come first, those of equal length in random order but for their shorter sides; batches are cut by the fewest tokens
    that make no more batches, so that none is short. Then the batches are shuffled. Every epoch has the same number of
    batches (`steps_per_epoch`). Within a batch sentences are in order of length, for `rank_slice`.

    Args:
      src_lengths: int [pairs], tokens of the source sentences.
      tgt_lengths: int [pairs], tokens of the target sentences, without the end mark.
      cut: how.
      seed: not negative; other seeds give other orders.
      epoch: from 0; other epochs give other orders.

    Returns:
      Arrays int64 [sentences] of pair numbers.

    Raises:
      InputError: no pair has tokens on both sides, or a sentence more tokens than a batch.
    """
    pairs, src, tgt = _usable(src_lengths, tgt_lengths, cut)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    shuffled = generator.permutation(len(pairs))
    if cut.global_batch_tokens is None:
        order = _pooled(shuffled, src, tgt, cut)
    else:
        longer, shorter = np.maximum(src, tgt + 1)[shuffled], np.minimum(src, tgt + 1)[shuffled]
        mixed = shorter + generator.integers(-_MIXED_TOKENS, _MIXED_TOKENS + 1, len(pairs))
        order = shuffled[np.lexsort((mixed, -longer))]
    starts = _batch_starts(src, tgt, cut)
    batch = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(pairs)))
    # The decoder does most of the work, so its lengths are the ones to be dealt evenly.
    order = order[np.lexsort((src[order], tgt[order], batch))]
    batches = np.split(pairs[order], starts[1:])
    return [batches[i] for i in generator.permutation(len(batches))]


def steps_per_epoch(src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut) -> int:
    """The number of batches of every epoch. Arguments and errors as for `epoch_plan`."""
    _, src, tgt = _usable(src_lengths, tgt_lengths, cut)
    return len(_batch_starts(src, tgt, cut))


def widest_batch(src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut) -> tuple[int, int, int]:
    """The batch of any epoch that may have the most tokens, padding counted. Arguments and errors as for `epoch_plan`.

    Returns:
      its sentences, the tokens of its longest one on its longer side, end mark counted, and the number of that pair.
    """
    pairs, src, tgt = _usable(src_lengths, tgt_lengths, cut)
    lengths = np.maximum(src, tgt + 1)
    if cut.global_batch_tokens is None:
        bucket = _buckets(src, tgt, cut)
        order = np.lexsort((-lengths, bucket))
        longest = order[np.flatnonzero(np.diff(bucket[order], prepend=-1))]  # of each bucket that has any
        sentences = np.minimum(np.bincount(bucket)[bucket[longest]], cut.global_batch_size)
    else:
        starts = _batch_starts(src, tgt, cut)
        longest = np.argsort(-lengths, kind="stable")[starts]
        sentences = np.diff(starts, append=len(pairs))
    widest = int(np.argmax(sentences * lengths[longest].astype(np.int64)))
    return int(sentences[widest]), int(lengths[longest[widest]]), int(pairs[longest[widest]])


def rank_slice(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The sentences of a global batch that `rank` of `size` ranks works on; empty where there are too few.

    Dealing a batch that is in order of length like cards gives every rank the same mix of lengths.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks")
    return batch[rank::size]


def _usable(src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the pairs with two sides, and the lengths of these after truncation."""
    if len(src_lengths) != len(tgt_lengths):
        raise ValueError(f"{len(src_lengths)} source lengths and {len(tgt_lengths)} target lengths")
    pairs = np.flatnonzero((src_lengths > 0) & (tgt_lengths > 0))
    if not len(pairs):
        raise InputError("no sentence pair has words on both sides; check the parallel files")
    src, tgt = src_lengths[pairs], tgt_lengths[pairs]
    return pairs, np.minimum(src, cut.src_max_len or src.max()), np.minimum(tgt, cut.tgt_max_len or tgt.max())


def _pooled(shuffled: np.ndarray, src: np.ndarray, tgt: np.ndarray, cut: Cut) -> np.ndarray:
    """By bucket, in random order within it but for the pools, which are in order of length."""
    bucket = _buckets(src, tgt, cut)
    shuffled = shuffled[np.argsort(bucket[shuffled], kind="stable")]
    of, counts = bucket[shuffled], np.bincount(bucket)
    in_bucket = np.arange(len(shuffled)) - (np.cumsum(counts) - counts)[of]
    batches = counts[of] // cut.global_batch_size  # whole ones
    pool = in_bucket // (cut.global_batch_size * np.clip(batches // _FEWEST_POOLS, 1, cut.pool_batches))
    pool[in_bucket >= batches * cut.global_batch_size] = len(shuffled)  # what is left over: after all pools
    return shuffled[np.lexsort((src[shuffled], tgt[shuffled], pool, of))]


def _buckets(src: np.ndarray, tgt: np.ndarray, cut: Cut) -> np.ndarray:
    """The bucket of each pair, from 0 to num_buckets inclusive; the target's end mark counts."""
    if cut.num_buckets <= 1:
        return np.zeros(len(src), dtype=np.int16)
    width = -(-cut.src_max_len // cut.num_buckets) if cut.src_max_len else _WIDTH_WITHOUT_LIMIT
    return np.minimum(np.maximum(src // width, (tgt + 1) // width), cut.num_buckets).astype(np.int16)


def _batch_starts(src: np.ndarray, tgt: np.ndarray, cut: Cut) -> np.ndarray:
    """Where batches begin, int64 [batches], if the buckets lie one behind the other, or the longest come first."""
    if cut.global_batch_tokens is not None:
        lengths = np.sort(np.maximum(src, tgt + 1))[::-1]
        if lengths[0] > cut.global_batch_tokens:
            raise InputError(f"a sentence of {lengths[0]} tokens is more than a batch of {cut.global_batch_tokens}")
        starts = _full_batches(lengths, cut.global_batch_tokens)
        few, enough = int(lengths[0]), cut.global_batch_tokens
        while few < enough:
            tokens = (few + enough) // 2
            fuller = _full_batches(lengths, tokens)
            few, enough = (few, tokens) if len(fuller) == len(starts) else (tokens + 1, enough)
        return np.array(_full_batches(lengths, enough))
    if cut.global_batch_size < 1:
        raise ValueError(f"a global batch of {cut.global_batch_size} sentences")
    sizes = np.bincount(_buckets(src, tgt, cut))
    ends = np.cumsum(sizes)
    return np.concatenate(
        [np.arange(end - size, end, cut.global_batch_size) for size, end in zip(sizes, ends, strict=True)]
    )


def _full_batches(lengths: np.ndarray, tokens: int) -> list[int]:
    """Where batches of at most so many tokens begin, the longest first; the last may be short."""
    starts = [0]
    while (end := starts[-1] + tokens // int(lengths[starts[-1]])) < len(lengths):
        starts.append(end)
    return starts
