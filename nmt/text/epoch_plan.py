"""Bucketing and shuffling: the plan of an epoch, which sentences make which step, for all ranks together.

Batches are formed over the whole corpus, each from one length bucket, and only then dealt to the ranks. All ranks of
a step so have nearly equal work, one rank of batch 128 and two of 64 see the same batches, and a run can resume at
any step: the plan is a pure function of the lengths, the global batch size, the seed and the epoch. It does not know
how many ranks there are.

Every sort here is a stable one. NumPy's faster sorts order equal keys by the instruction set at hand, so that ranks
on different machines would disagree about the plan.

Cost: O(n log n) time and about 60 bytes a pair for n pairs.
"""

from __future__ import annotations

import numpy as np

from nmt.core.errors import InputError

_WIDTH_WITHOUT_LIMIT = 10  # tokens; a bucket's width where no limit of length tells one


def epoch_plan(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    global_batch_size: int,
    num_buckets: int,
    src_max_len: int | None,
    tgt_max_len: int | None,
    seed: int,
    epoch: int,
) -> list[np.ndarray]:
    """The global batches of one epoch, in the order of its steps.

    Pairs with an empty side are left out. The others go to buckets of similar length; each bucket is shuffled and cut
    into batches, of which the last may be short, and the batches of all buckets are shuffled. Every epoch has the same
    number of batches (`steps_per_epoch`). Within a batch sentences are in order of length, for `rank_slice`.

    Args:
      src_lengths: int [pairs], tokens of the source sentences.
      tgt_lengths: int [pairs], tokens of the target sentences, without the end mark.
      global_batch_size: sentences of a step over all ranks.
      num_buckets: length buckets; at most 1 means none.
      src_max_len: tokens that a source sentence is cut to; None or 0 for all.
      tgt_max_len: the same for target sentences.
      seed: not negative; other seeds give other orders.
      epoch: from 0; other epochs give other orders.

    Returns:
      Arrays int64 [at most global_batch_size] of pair numbers.

    Raises:
      InputError: no pair has tokens on both sides.
    """
    pairs, src, tgt = _usable(src_lengths, tgt_lengths, src_max_len, tgt_max_len)
    bucket = _bucket(src, tgt, num_buckets, src_max_len)
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    shuffled = generator.permutation(len(pairs))
    shuffled = shuffled[np.argsort(bucket[shuffled], kind="stable")]  # by bucket, in random order within it
    starts = _batch_starts(np.bincount(bucket), global_batch_size)
    batch = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(pairs)))
    # The decoder does most of the work, so its lengths are the ones to be dealt evenly.
    shuffled = shuffled[np.lexsort((src[shuffled], tgt[shuffled], batch))]
    batches = np.split(pairs[shuffled], starts[1:])
    return [batches[i] for i in generator.permutation(len(batches))]


def steps_per_epoch(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    global_batch_size: int,
    num_buckets: int,
    src_max_len: int | None,
    tgt_max_len: int | None,
) -> int:
    """The number of batches of every epoch. Arguments and errors as for `epoch_plan`."""
    _, src, tgt = _usable(src_lengths, tgt_lengths, src_max_len, tgt_max_len)
    return len(_batch_starts(np.bincount(_bucket(src, tgt, num_buckets, src_max_len)), global_batch_size))


def widest_batch(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    *,
    global_batch_size: int,
    num_buckets: int,
    src_max_len: int | None,
    tgt_max_len: int | None,
) -> tuple[int, int, int]:
    """The batch of any epoch that may have the most tokens, padding counted. Arguments and errors as for `epoch_plan`.

    Returns:
      its sentences, the tokens of its longest one on its longer side, end mark counted, and the number of that pair.
    """
    pairs, src, tgt = _usable(src_lengths, tgt_lengths, src_max_len, tgt_max_len)
    bucket, lengths = _bucket(src, tgt, num_buckets, src_max_len), np.maximum(src, tgt + 1)
    order = np.lexsort((-lengths, bucket))
    longest = order[np.flatnonzero(np.diff(bucket[order], prepend=-1))]  # of each bucket that has any
    sentences = np.minimum(np.bincount(bucket)[bucket[longest]], global_batch_size)
    widest = int(np.argmax(sentences * lengths[longest].astype(np.int64)))
    return int(sentences[widest]), int(lengths[longest[widest]]), int(pairs[longest[widest]])


def rank_slice(batch: np.ndarray, rank: int, size: int) -> np.ndarray:
    """The sentences of a global batch that `rank` of `size` ranks works on; empty where there are too few.

    Dealing a batch that is in order of length like cards gives every rank the same mix of lengths.
    """
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} of {size} ranks")
    return batch[rank::size]


def _usable(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, src_max_len: int | None, tgt_max_len: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers of the pairs with two sides, and the lengths of these after truncation."""
    if len(src_lengths) != len(tgt_lengths):
        raise ValueError(f"{len(src_lengths)} source lengths and {len(tgt_lengths)} target lengths")
    pairs = np.flatnonzero((src_lengths > 0) & (tgt_lengths > 0))
    if not len(pairs):
        raise InputError("no sentence pair has words on both sides; check the parallel files")
    src, tgt = src_lengths[pairs], tgt_lengths[pairs]
    return pairs, np.minimum(src, src_max_len or src.max()), np.minimum(tgt, tgt_max_len or tgt.max())


def _bucket(src: np.ndarray, tgt: np.ndarray, num_buckets: int, src_max_len: int | None) -> np.ndarray:
    """The bucket of each pair, from 0 to num_buckets inclusive; the target's end mark counts."""
    if num_buckets <= 1:
        return np.zeros(len(src), dtype=np.int16)
    width = -(-src_max_len // num_buckets) if src_max_len else _WIDTH_WITHOUT_LIMIT
    return np.minimum(np.maximum(src // width, (tgt + 1) // width), num_buckets).astype(np.int16)


def _batch_starts(bucket_sizes: np.ndarray, global_batch_size: int) -> np.ndarray:
    """Where batches begin, int64 [batches], if the buckets lie one behind the other."""
    if global_batch_size < 1:
        raise ValueError(f"a global batch of {global_batch_size} sentences")
    ends = np.cumsum(bucket_sizes)
    return np.concatenate(
        [np.arange(end - size, end, global_batch_size) for size, end in zip(bucket_sizes, ends, strict=True)]
    )
