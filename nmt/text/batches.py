"""Padded batches: sentences as the arrays that the model is fed with.

All arrays are time-major, [time, batch]: a step of a recurrent loop then reads one contiguous row. Sources are padded
with the source's end mark, and both target arrays with the target's. The lengths exclude padding. Source words that are
read as characters are arrays themselves: [time, batch, characters].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nmt.text.corpus import ParallelCorpus
from nmt.text.tokens import split
from nmt.text.vocabulary import SourceVocabulary, Vocabulary

_TOKENS_PER_SENTENCE = 200  # default limit on a batch's tokens per sentence: four times a usual sentence


def token_limit(batch_size: int, max_batch_tokens: int | None, *limits: int | None) -> int:
    """Return the greatest number of tokens of one side of a batch, with padding.

    Args:
      batch_size: greatest number of sentences of a batch.
      max_batch_tokens: the limit, if given; None for 200 tokens per sentence, or more if `limits` allow more.
      limits: lengths in tokens that sentences are cut to; None or 0 for no cut.
    """
    longest = max(_TOKENS_PER_SENTENCE, *(limit or 0 for limit in limits)) + 1  # the end mark
    return max_batch_tokens or batch_size * longest


def cut_by_tokens(lengths: Sequence[int] | np.ndarray, batch_size: int, most_tokens: int) -> list[slice]:
    """Cut sentences of these lengths into consecutive batches, and return them as slices.

    A batch has at most `batch_size` sentences, and at most `most_tokens` tokens when all are padded to the longest. It
    has at least one sentence.
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
      source: source ids, int32 [src_time, batch], or [src_time, batch, characters].
      source_lengths: number of words of each source, int32 [batch].
      target_in: the decoder's input, int32 [tgt_time, batch]: the start mark and the words.
      target_out: the words to predict, int32 [tgt_time, batch]: the words and the end mark.
      target_lengths: number of words of each target + 1, int32 [batch]; 0 for a sentence without loss.
      sentences_per_rank: sentences of this step on all ranks, divided by the number of ranks.
      divisor: divisor of the summed loss: `sentences_per_rank`, or the step's target words per rank. It is equal on all
        ranks. The mean of their gradients is therefore the gradient of one process with all sentences, even if some
        ranks have more sentences than others.
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
    """Read and encode the sentences of a rank's slice, and return the batch.

    If a global batch has fewer sentences than there are ranks, some ranks get no sentence. Their batch is one sentence
    with target length 0: the rank takes part in the step and adds nothing.

    Args:
      sentence_ids: numbers of the sentence pairs, without pairs that have an empty side.
      corpus: the text.
      src_vocab: source vocabulary.
      tgt_vocab: target vocabulary.
      src_max_len: length in tokens that a source is cut to; None or 0 for no limit.
      tgt_max_len: length in tokens that a target is cut to, without the end mark; None or 0 for no limit.
      global_sentences: number of sentences of this step on all ranks.
      ranks: number of ranks.
      global_divisor: divisor of this step's loss, summed over all ranks; None for `global_sentences`.
    """
    sources = [src_vocab.encode(split(corpus.src.line(i))[: src_max_len or None]) for i in sentence_ids]
    targets = [tgt_vocab.encode(split(corpus.tgt.line(i))[: tgt_max_len or None]) for i in sentence_ids]
    target_lengths = np.array([len(words) + 1 for words in targets], dtype=np.int32)
    if not sources:
        sources, targets = [src_vocab.encode([tgt_vocab.eos])], [np.array([], dtype=np.int32)]
        target_lengths = np.zeros(1, dtype=np.int32)
    source, source_lengths = _padded(sources, src_vocab.padding_id)
    target_out, _ = _padded(targets, tgt_vocab.eos_id, extra=1)
    # `roll` moves the last row, which has end marks only, to the front. The start mark replaces it.
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
    """Yield all pairs with words on both sides once, in batches of similar length; the batches are equal in every call.

    Batches of long sentences have fewer sentences (`token_limit`). Of `size` ranks, `rank` gets every `size`-th batch.
    The batches' `divisor` is 1, because a perplexity needs the summed loss.
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
    """Return the ids of source sentences to translate, as in `Batch`, and their lengths, int32 [batch].

    Raises:
      ValueError: there is no sentence, or a sentence has no tokens, for which attention is undefined.
    """
    if not lines_tokens or not all(lines_tokens):
        raise ValueError("a batch to translate needs sentences, and each of them needs a token")
    return _padded([vocab.encode(tokens[: max_len or None]) for tokens in lines_tokens], vocab.padding_id)


def _padded(sentences: Sequence[np.ndarray], padding: int, extra: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the sentences as columns, int32 [longest + extra, batch, ...], and their lengths, int32 [batch]."""
    lengths = np.array([len(ids) for ids in sentences], dtype=np.int32)
    shape = (int(lengths.max()) + extra, len(sentences), *sentences[0].shape[1:])
    columns = np.full(shape, padding, dtype=np.int32)
    for column, ids in enumerate(sentences):
        columns[: len(ids), column] = ids
    return columns, lengths
