"""Padded batches: sentences as the arrays that the model is fed with.

Everything is time-major, [time, batch]: a step of a recurrent loop then reads one contiguous row. Sources are padded
with the source's end mark, both target arrays with the target's; the lengths tell what is padding. Source words that
are read as characters are arrays themselves: [time, batch, characters].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nmt.text.corpus import ParallelCorpus
from nmt.text.tokens import split
from nmt.text.vocabulary import SourceVocabulary, Vocabulary

_TOKENS_PER_SENTENCE = 200  # that memory is thought of for where a batch's tokens are not limited: 4 usual sentences


def token_limit(batch_size: int, max_batch_tokens: int | None, *limits: int | None) -> int:
    """Most tokens, padding counted, of one side of a batch: those given; else what the sentences usually take.

    Args:
      batch_size: most sentences of a batch.
      max_batch_tokens: the limit, if one was given.
      limits: what sentences are cut to, where they are: these are always allowed.
    """
    longest = max(_TOKENS_PER_SENTENCE, *(limit or 0 for limit in limits)) + 1  # the end mark
    return max_batch_tokens or batch_size * longest


def cut_by_tokens(lengths: Sequence[int] | np.ndarray, batch_size: int, most_tokens: int) -> list[slice]:
    """Cuts sentences of these lengths into batches one after the other, by sentences and by tokens with padding.

    A batch has at most `batch_size` sentences, and fewer where that many, as long as its longest, would be more than
    `most_tokens`; but at least one.
    """
    slices, start, longest = [], 0, 0
    for end, length in enumerate(lengths):
        longest = max(longest, int(length))
        if end > start and (end - start == batch_size or (end - start + 1) * longest > most_tokens):
            slices.append(slice(start, end))
            start, longest = end, int(length)
    return [*slices, slice(start, len(lengths))] if len(lengths) else []


@dataclass(frozen=True)
class Batch:
    """Sentence pairs of one step on one rank.

    Attributes:
      source: int32 [src_time, batch], or [src_time, batch, characters].
      source_lengths: int32 [batch], words.
      target_in: int32 [tgt_time, batch], the start mark and the words: what the decoder reads.
      target_out: int32 [tgt_time, batch], the words and the end mark: what it should predict.
      target_lengths: int32 [batch], words + 1; 0 for a sentence that counts for nothing.
      sentences_per_rank: of this step, by the number of ranks.
      divisor: what the summed loss is divided by: that, or the step's target words by the number of ranks. It is the
        same on all ranks, so that the mean of their gradients is that of one process with all sentences, however
        unevenly these were dealt.
    """

    source: np.ndarray
    source_lengths: np.ndarray
    target_in: np.ndarray
    target_out: np.ndarray
    target_lengths: np.ndarray
    sentences_per_rank: float
    divisor: float


def make_batch(
    sentence_ids: Sequence[int] | np.ndarray,
    corpus: ParallelCorpus,
    src_vocab: SourceVocabulary,
    tgt_vocab: Vocabulary,
    src_max_len: int | None,
    tgt_max_len: int | None,
    global_sentences: int,
    ranks: int,
    global_divisor: int | None = None,
) -> Batch:
    """Read and number the sentences of a rank's slice.

    A slice without sentences, which a rank gets when a global batch is smaller than the number of ranks, becomes one
    sentence of target length 0: the rank takes part in the step and adds nothing.

    Args:
      sentence_ids: pair numbers; none of them has an empty side.
      corpus: where the pairs are.
      src_vocab: numbers the words of the source.
      tgt_vocab: the words of the target.
      src_max_len: tokens that a source sentence is cut to; None or 0 for all.
      tgt_max_len: the same for the target, before the end mark is added.
      global_sentences: sentences of this step over all ranks.
      ranks: the number of ranks.
      global_divisor: what the loss of this step, summed over all ranks, is divided by; None: the sentences.
    """
    sources = [src_vocab.encode(split(corpus.src.line(i))[: src_max_len or None]) for i in sentence_ids]
    targets = [tgt_vocab.encode(split(corpus.tgt.line(i))[: tgt_max_len or None]) for i in sentence_ids]
    target_lengths = np.array([len(words) + 1 for words in targets], dtype=np.int32)
    if not sources:
        sources, targets = [src_vocab.encode([tgt_vocab.eos])], [np.array([], dtype=np.int32)]
        target_lengths = np.zeros(1, dtype=np.int32)
    source, source_lengths = _padded(sources, src_vocab.padding_id)
    target_out, _ = _padded(targets, tgt_vocab.eos_id, extra=1)
    # The start mark takes the place of the last row: an end mark, in every column.
    target_in = np.roll(target_out, 1, axis=0)
    target_in[0] = tgt_vocab.sos_id
    divisor = global_sentences if global_divisor is None else global_divisor
    numbers = global_sentences / ranks, divisor / ranks
    return Batch(source, source_lengths, target_in, target_out, target_lengths, *numbers)


def eval_batches(
    corpus: ParallelCorpus,
    src_vocab: SourceVocabulary,
    tgt_vocab: Vocabulary,
    src_max_len: int | None,
    tgt_max_len: int | None,
    batch_size: int,
    rank: int = 0,
    size: int = 1,
    max_batch_tokens: int | None = None,
) -> Iterator[Batch]:
    """All pairs with words on both sides, once, in batches of similar length; the same ones in every call.

    Batches of very long sentences have fewer of them (`token_limit`).

    Of `size` ranks, `rank` gets every `size`-th of these batches: together they get all.

    The batches' `divisor` is 1: a loss divided by it stays the sum that a perplexity is made from.
    """
    pairs = np.flatnonzero((corpus.src.lengths > 0) & (corpus.tgt.lengths > 0))
    pairs = pairs[np.lexsort((corpus.src.lengths[pairs], corpus.tgt.lengths[pairs]))]
    src, tgt = (
        np.minimum(text.lengths[pairs], most or text.lengths.max())
        for text, most in ((corpus.src, src_max_len), (corpus.tgt, tgt_max_len))
    )
    most_tokens = token_limit(batch_size, max_batch_tokens, src_max_len, tgt_max_len)
    for chosen in cut_by_tokens(np.maximum(src, tgt + 1), batch_size, most_tokens)[rank::size]:
        yield make_batch(pairs[chosen], corpus, src_vocab, tgt_vocab, src_max_len, tgt_max_len, 1, 1)


def source_batch(
    lines_tokens: Sequence[Sequence[str]], vocab: SourceVocabulary, max_len: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Source sentences to be translated: ids, as in `Batch`, and lengths, int32 [batch], in the order given.

    Raises:
      ValueError: there is no sentence, or one has no tokens, which attention has no answer for.
    """
    if not lines_tokens or not all(lines_tokens):
        raise ValueError("a batch to translate needs sentences, and each of them a token")
    return _padded([vocab.encode(tokens[: max_len or None]) for tokens in lines_tokens], vocab.padding_id)


def _padded(sentences: Sequence[np.ndarray], padding: int, extra: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The sentences as columns, int32 [longest + extra, batch, ...], and their lengths, int32 [batch]."""
    lengths = np.array([len(ids) for ids in sentences], dtype=np.int32)
    shape = (int(lengths.max()) + extra, len(sentences), *sentences[0].shape[1:])
    columns = np.full(shape, padding, dtype=np.int32)
    for column, ids in enumerate(sentences):
        columns[: len(ids), column] = ids
    return columns, lengths
