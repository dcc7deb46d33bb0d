"""Plan of an epoch: bucketing, shuffling and the assignment of sentences to steps, for all ranks together.

Batches are formed over the whole corpus, each from one length bucket, and then divided among the ranks. So all ranks
have nearly equal work in a step. One rank with batch size 128 and two ranks with 64 get the same batches, and a run can
resume at any step. The plan is a pure function of the lengths, the cut, the seed and the epoch, but not of the number
of ranks.

All sorts are stable. NumPy's faster sorts order equal keys differently on CPUs with different instruction sets, and
the ranks' plans would differ.

Cost: O(n log n) time and about 60 bytes a pair for n pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nmt.core.errors import InputError

CUT_VERSION = 2  # version of plans with pools or token batches; a continued run compares it with the run before
_WIDTH_WITHOUT_LIMIT = 10  # tokens; a bucket's width if there is no limit of length to derive it from
_FEWEST_POOLS = 3  # per bucket and epoch: with fewer, the same sentences would be in one batch again and again
_MIXED_TOKENS = 2  # random offset, in tokens, of the shorter sides' lengths when batches are cut by tokens


@dataclass(frozen=True)
class Cut:
    """Settings that cut the sentences of an epoch into global batches.

    Attributes:
      global_batch_size: number of sentences of a step on all ranks.
      num_buckets: number of length buckets; 1 or less for none.
      src_max_len: length in tokens that a source is cut to; None or 0 for no limit.
      tgt_max_len: length in tokens that a target is cut to; None or 0 for no limit.
      pool_batches: size of a pool in batches, at most a third of the bucket's batches. A pool's sentences are sorted by
        length before they are cut into batches. A larger pool gives less padding.
      global_batch_tokens: number of tokens of a step on all ranks, on the longer side with padding; it replaces
        global_batch_size and num_buckets. None: these are used.
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
    """Return the global batches of one epoch, in the order of its steps.

    Pairs with an empty side are left out. The others are put into buckets of similar length. Each bucket is shuffled,
    sorted by length within its pools and cut into batches; the bucket's last batch may be smaller. With
    global_batch_tokens, sentences are sorted by length, the longest first; those of equal length are in random order,
    except that their shorter sides are similar. They are cut with the smallest number of tokens that does not increase
    the number of batches, so that no batch is small. Then the batches are shuffled. Every epoch has the same number of
    batches (`steps_per_epoch`). Within a batch, sentences are sorted by length, for `rank_slice`.

    Args:
      src_lengths: number of tokens of each source, int [pairs].
      tgt_lengths: number of tokens of each target without the end mark, int [pairs].
      cut: settings of the batches.
      seed: seed of the random order, 0 or more.
      epoch: number of the epoch from 0; each epoch has another order.

    Returns:
      arrays of pair numbers, int64 [sentences].

    Raises:
      InputError: no pair has tokens on both sides, or a sentence has more tokens than a batch.
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
    # The decoder does most of the work, so the target lengths are to be divided evenly: they are the first sort key.
    order = order[np.lexsort((src[order], tgt[order], batch))]
    batches = np.split(pairs[order], starts[1:])
    return [batches[i] for i in generator.permutation(len(batches))]


def steps_per_epoch(src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut) -> int:
    """Return the number of batches of every epoch. Arguments and errors as for `epoch_plan`."""
    _, src, tgt = _usable(src_lengths, tgt_lengths, cut)
    return len(_batch_starts(src, tgt, cut))


def widest_batch(src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut) -> tuple[int, int, int]:
    """Return the batch with the most tokens, with padding, that any epoch may have. Arguments as for `epoch_plan`.

    Returns:
      the number of its sentences, the tokens of its longest sentence (longer side, with end mark), and the number of
        that sentence pair.
    """
    pairs, src, tgt = _usable(src_lengths, tgt_lengths, cut)
    lengths = np.maximum(src, tgt + 1)
    if cut.global_batch_tokens is None:
        bucket = _buckets(src, tgt, cut)
        order = np.lexsort((-lengths, bucket))
        longest = order[np.flatnonzero(np.diff(bucket[order], prepend=-1))]  # one per non-empty bucket
        sentences = np.minimum(np.bincount(bucket)[bucket[longest]], cut.global_batch_size)
    else:
        starts = _batch_starts(src, tgt, cut)
        longest = np.argsort(-lengths, kind="stable")[starts]
        sentences = np.diff(starts, append=len(pairs))
    widest = int(np.argmax(sentences * lengths[longest].astype(np.int64)))
    return int(sentences[widest]), int(lengths[longest[widest]]), int(pairs[longest[widest]])


def rank_slice(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return the sentences of a global batch that `rank` of `size` ranks processes; empty if there are too few.

    A rank gets every `size`-th sentence. The batch is sorted by length, so every rank gets the same mix of lengths.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks")
    return batch[rank::size]


def _usable(src_lengths: np.ndarray, tgt_lengths: np.ndarray, cut: Cut) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the numbers of the pairs with tokens on both sides, and their lengths after truncation."""
    if len(src_lengths) != len(tgt_lengths):
        raise ValueError(f"{len(src_lengths)} source lengths and {len(tgt_lengths)} target lengths")
    pairs = np.flatnonzero((src_lengths > 0) & (tgt_lengths > 0))
    if not len(pairs):
        raise InputError("no sentence pair has words on both sides; check the parallel files")
    src, tgt = src_lengths[pairs], tgt_lengths[pairs]
    return pairs, np.minimum(src, cut.src_max_len or src.max()), np.minimum(tgt, cut.tgt_max_len or tgt.max())


def _pooled(shuffled: np.ndarray, src: np.ndarray, tgt: np.ndarray, cut: Cut) -> np.ndarray:
    """Return the pairs sorted by bucket; within a bucket pools are in random order, sorted by length inside."""
    bucket = _buckets(src, tgt, cut)
    shuffled = shuffled[np.argsort(bucket[shuffled], kind="stable")]
    of, counts = bucket[shuffled], np.bincount(bucket)
    in_bucket = np.arange(len(shuffled)) - (np.cumsum(counts) - counts)[of]
    batches = counts[of] // cut.global_batch_size  # number of full batches
    pool = in_bucket // (cut.global_batch_size * np.clip(batches // _FEWEST_POOLS, 1, cut.pool_batches))
    pool[in_bucket >= batches * cut.global_batch_size] = len(shuffled)  # the rest comes after all pools
    return shuffled[np.lexsort((src[shuffled], tgt[shuffled], pool, of))]


def _buckets(src: np.ndarray, tgt: np.ndarray, cut: Cut) -> np.ndarray:
    """Return the bucket of each pair, from 0 to num_buckets inclusive; the target's end mark counts."""
    if cut.num_buckets <= 1:
        return np.zeros(len(src), dtype=np.int16)
    width = -(-cut.src_max_len // cut.num_buckets) if cut.src_max_len else _WIDTH_WITHOUT_LIMIT
    return np.minimum(np.maximum(src // width, (tgt + 1) // width), cut.num_buckets).astype(np.int16)


def _batch_starts(src: np.ndarray, tgt: np.ndarray, cut: Cut) -> np.ndarray:
    """Return the first index of each batch, int64 [batches], in the order of buckets, or of falling lengths."""
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
    """Return the first index of each batch of at most `tokens` tokens, for falling lengths; the last may be small."""
    starts = [0]
    while (end := starts[-1] + tokens // int(lengths[starts[-1]])) < len(lengths):
        starts.append(end)
    return starts
