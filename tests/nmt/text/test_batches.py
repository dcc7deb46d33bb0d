"""nmt.text.batches: padded arrays. The vocabulary and sentences are those of the tutorial's own iterator test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nmt.text.batches import Batch, cut_by_tokens, eval_batches, make_batch, source_batch, token_limit
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.epoch_plan import Cut, epoch_plan, rank_slice
from nmt.text.vocabulary import Vocabulary

VOCAB = Vocabulary("vocab", ("<unk>", "<s>", "</s>", "a", "b", "c"))  # unk 0, sos 1, eos 2, a 3, b 4, c 5


@pytest.fixture
def corpus(tmp_path: Path) -> ParallelCorpus:
    (tmp_path / "t.en").write_text("f e a g\nc c a\nd\nc a\n")
    (tmp_path / "t.de").write_text("c c\na b\n\nb c b a\n")
    return open_parallel(tmp_path / "t.en", tmp_path / "t.de")


def batch_of(corpus: ParallelCorpus, ids: list[int], limits: tuple[int | None, int | None] = (3, None)) -> Batch:
    return make_batch(ids, corpus, VOCAB, VOCAB, *limits, global_sentences=3, ranks=2)


def test_a_batch(corpus: ParallelCorpus) -> None:
    batch = batch_of(corpus, [3, 0])
    assert batch.source.T.tolist() == [[5, 3, 2], [0, 0, 3]]
    assert batch.source_lengths.tolist() == [2, 3]
    assert batch.target_in.T.tolist() == [[1, 4, 5, 4, 3], [1, 5, 5, 2, 2]]
    assert batch.target_out.T.tolist() == [[4, 5, 4, 3, 2], [5, 5, 2, 2, 2]]
    assert batch.target_lengths.tolist() == [5, 3]
    assert batch.sentences_per_rank == 1.5
    arrays = (batch.source, batch.source_lengths, batch.target_in, batch.target_out, batch.target_lengths)
    assert {array.dtype for array in arrays} == {np.dtype(np.int32)}


def test_the_first_case_of_the_tutorials_iterator(tmp_path: Path) -> None:
    """The tutorial's numbers, except for unknown words: -1 there, the number of the first word here."""
    (tmp_path / "t.en").write_text("f e a g\nc c a\nd\nc a\n")
    (tmp_path / "t.de").write_text("c c\na b\n\nb c\n")
    corpus = open_parallel(tmp_path / "t.en", tmp_path / "t.de")
    words = Vocabulary("vocab", ("a", "b", "c", "eos", "sos"), "sos", "eos", specials_first=False)
    batch = make_batch([3, 0], corpus, words, words, 3, None, global_sentences=2, ranks=1)
    assert batch.source.T.tolist() == [[2, 0, 3], [0, 0, 0]]
    assert batch.source_lengths.tolist() == [2, 3]
    assert batch.target_in.T.tolist() == [[4, 1, 2], [4, 2, 2]]
    assert batch.target_out.T.tolist() == [[1, 2, 3], [2, 2, 3]]
    assert batch.target_lengths.tolist() == [3, 3]
    (other,) = (make_batch([1], corpus, words, words, 3, None, global_sentences=1, ranks=1).source.T.tolist(),)
    assert other == [[2, 2, 0]]


def test_limits(corpus: ParallelCorpus) -> None:
    batch = batch_of(corpus, [3], limits=(1, 2))
    assert batch.source.tolist() == [[5]]
    assert batch.target_in[:, 0].tolist() == [1, 4, 5]
    assert batch.target_out[:, 0].tolist() == [4, 5, 2]
    assert batch_of(corpus, [0], limits=(0, None)).source_lengths.tolist() == [4]


def test_an_empty_slice_counts_for_nothing(corpus: ParallelCorpus) -> None:
    batch = batch_of(corpus, [])
    assert batch.source.tolist() == [[0]]
    assert batch.source_lengths.tolist() == [1]
    assert batch.target_in.shape == batch.target_out.shape == (1, 1)
    assert batch.target_lengths.tolist() == [0]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_ranks_of_a_step_hold_the_global_batch(corpus: ParallelCorpus, ranks: int) -> None:
    (ids,) = epoch_plan(
        corpus.src.lengths,
        corpus.tgt.lengths,
        Cut(global_batch_size=4, num_buckets=1, src_max_len=3, tgt_max_len=3),
        seed=0,
        epoch=0,
    )
    batches = [
        make_batch(rank_slice(ids, rank, ranks), corpus, VOCAB, VOCAB, 3, 3, len(ids), ranks) for rank in range(ranks)
    ]
    assert sum(int(batch.target_lengths.sum()) for batch in batches) == 3 + 3 + 4
    # The mean over ranks of sum / sentences_per_rank equals the sum of all ranks / the step's sentences.
    assert {batch.sentences_per_rank * ranks for batch in batches} == {3.0}


def test_evaluation_takes_every_usable_pair_once_in_order_of_length(corpus: ParallelCorpus) -> None:
    batches = list(eval_batches(corpus, VOCAB, VOCAB, None, None, batch_size=2))
    assert [batch.target_lengths.tolist() for batch in batches] == [[3, 3], [5]]
    assert [batch.source_lengths.tolist() for batch in batches] == [[3, 4], [2]]
    assert {batch.sentences_per_rank for batch in batches} == {1.0}
    for rank, own in enumerate((batches[:1], batches[1:], [])):
        found = list(eval_batches(corpus, VOCAB, VOCAB, None, None, 2, rank, 3))
        assert [batch.source.tolist() for batch in found] == [batch.source.tolist() for batch in own], rank


def test_batches_of_long_sentences_have_fewer() -> None:
    lengths = [1, 1, 2, 2, 5, 6, 12, 30]
    cut = cut_by_tokens(lengths, 3, 12)
    assert [lengths[part] for part in cut] == [[1, 1, 2], [2, 5], [6], [12], [30]]
    assert cut_by_tokens([], 3, 12) == []
    assert [part.stop for part in cut_by_tokens([1] * 7, 3, 12)] == [3, 6, 7]
    assert [part.stop for part in cut_by_tokens([9, 1, 1, 1], 3, 18)] == [2, 4]  # not in order of length


def test_what_is_asked_for_is_within_the_limit() -> None:
    assert token_limit(8, None, None, 0) == 8 * 201
    assert token_limit(8, None, 50, 300) == 8 * 301
    assert token_limit(8, 77, 50, 300) == 77


def test_evaluation_of_long_sentences(tmp_path: Path) -> None:
    for side, tokens in (("en", [3000, 1, 1, 1]), ("de", [1, 1, 1, 2])):
        (tmp_path / f"x.{side}").write_text("".join(" ".join(["a"] * count) + "\n" for count in tokens))
    corpus = open_parallel(tmp_path / "x.en", tmp_path / "x.de")
    shapes = [batch.source.shape for batch in eval_batches(corpus, VOCAB, VOCAB, None, None, 4)]
    assert shapes == [(1, 2), (3000, 1), (1, 1)]  # in order of the targets' lengths
    shapes = [batch.source.shape for batch in eval_batches(corpus, VOCAB, VOCAB, 50, None, 4)]
    assert shapes == [(50, 4)]


def test_sources_to_translate_keep_their_order() -> None:
    lines = [line.split() for line in ("c c a", "c a", "d", "f e a g")]
    source, lengths = source_batch(lines, VOCAB, 3)
    assert source.T.tolist() == [[5, 5, 3], [5, 3, 2], [0, 2, 2], [0, 0, 3]]
    assert lengths.tolist() == [3, 2, 1, 3]
    assert source.dtype == lengths.dtype == np.int32


@pytest.mark.parametrize("lines", [[], [["a"], []]])
def test_blank_lines_are_the_callers_business(lines: list[list[str]]) -> None:
    with pytest.raises(ValueError, match="each of them needs a token"):
        source_batch(lines, VOCAB, None)
