"""Batches by step and rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.core.errors import InputError
from nmt.options.config import Config
from nmt.text.batches import Batch
from nmt.text.corpus import open_parallel
from nmt.train.feed import Feed


def feed(toy: Any, rank: int = 0, size: int = 1, batch_size: int = 8, seed: int = 1) -> Feed:
    settings = Config(batch_size=batch_size, random_seed=seed)
    return Feed(toy.train, toy.src_vocab, toy.tgt_vocab, settings, rank, size)


def sentences(batch: Batch) -> list[tuple[int, ...]]:
    """Return the real source sentences of a batch."""
    columns = zip(batch.source.T, batch.source_lengths, batch.target_lengths, strict=True)
    return [tuple(column[:length]) for column, length, counts in columns if counts]


@pytest.mark.parametrize(("size", "batch_size"), [(2, 4), (4, 2)])
def test_ranks_share_the_batches_of_one_process(toy: Any, size: int, batch_size: int) -> None:
    alone = feed(toy)
    ranks = [feed(toy, rank, size, batch_size) for rank in range(size)]
    assert {one.steps_per_epoch for one in ranks} == {alone.steps_per_epoch}
    for step in range(2 * alone.steps_per_epoch):
        parts = [one.batch(step) for one in ranks]
        assert sorted(sum(map(sentences, parts), [])) == sorted(sentences(alone.batch(step))), step
        assert {part.sentences_per_rank for part in parts} == {alone.batch(step).sentences_per_rank / size}, step


def test_parts_of_a_step_are_those_of_other_ranks(toy: Any) -> None:
    settings = Config(batch_size=2, random_seed=1, accumulate_steps=2)
    two = [Feed(toy.train, toy.src_vocab, toy.tgt_vocab, settings, rank, 2) for rank in range(2)]
    four = [feed(toy, rank, 4, 2) for rank in range(4)]
    assert {one.steps_per_epoch for one in two} == {one.steps_per_epoch for one in four}
    for step in range(four[0].steps_per_epoch):
        for number, other in enumerate(four):
            part, wanted = two[number % 2].batch(step, number // 2), other.batch(step)
            assert sentences(part) == sentences(wanted)
            assert part.sentences_per_rank == wanted.sentences_per_rank


def test_losses_are_divided_by_words(toy: Any) -> None:
    """The divisor counts the words of all ranks and parts, with end marks and after cuts."""
    settings = Config(batch_size=2, tgt_max_len=3, random_seed=1, accumulate_steps=2, loss_normalization="words")
    ranks = [Feed(toy.train, toy.src_vocab, toy.tgt_vocab, settings, rank, 2) for rank in range(2)]
    for step in range(ranks[0].steps_per_epoch):
        batches = [one.batch(step, part) for one in ranks for part in range(2)]
        words = sum(int(batch.target_lengths.sum()) for batch in batches)
        assert {batch.divisor for batch in batches} == {words / 4}
        assert {batch.sentences_per_rank for batch in batches} != {words / 4}


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_share_batches_of_tokens(toy: Any, size: int) -> None:
    """Equal to one process with ``size`` times as many tokens; losses are divided by words."""
    alone = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, Config(batch_size=8, random_seed=1, batch_tokens=12 * size))
    settings = Config(batch_size=8, random_seed=1, batch_tokens=12)
    ranks = [Feed(toy.train, toy.src_vocab, toy.tgt_vocab, settings, rank, size) for rank in range(size)]
    assert {one.steps_per_epoch for one in ranks} == {alone.steps_per_epoch}
    for step in range(alone.steps_per_epoch):
        parts, whole = [one.batch(step) for one in ranks], alone.batch(step)
        assert sorted(sum(map(sentences, parts), [])) == sorted(sentences(whole)), step
        assert {part.divisor for part in parts} == {whole.target_lengths.sum() / size}, step


def test_batches_of_tokens_go_on_with_other_ranks(toy: Any) -> None:
    """Batches of tokens do not depend on the number of sentences in a batch."""
    two = Config(batch_size=8, random_seed=1, batch_tokens=24)
    four = Config(batch_size=3, num_buckets=2, random_seed=1, batch_tokens=12)
    record = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, two, 0, 2).record()
    again = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, four, 0, 4)
    assert "the same sentences in each step" in again.continue_after(2, record)


def test_fewer_tokens_than_a_sentence_has(toy: Any) -> None:
    settings = Config(batch_size=8, random_seed=1, batch_tokens=2)
    with pytest.raises(InputError, match=r"--batch_tokens=2 is less than the \d+ tokens, .* line \d+ of .*train.en"):
        Feed(toy.train, toy.src_vocab, toy.tgt_vocab, settings)


def test_a_run_that_is_continued_with_other_pools_says_so(toy: Any) -> None:
    record = feed(toy).record()
    pooled = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, Config(batch_size=8, random_seed=1, pool_batches=3))
    assert "pool_batches" not in record["plan"] and "pool_batches changed since step 4" in pooled.continue_after(
        4, record
    )


def test_an_epoch_has_each_sentence_once(toy: Any) -> None:
    one = feed(toy)
    seen = [sentence for step in range(one.steps_per_epoch) for sentence in sentences(one.batch(step))]
    encoded = [tuple(toy.src_vocab.encode(toy.train.src.line(i).split())) for i in range(len(toy.train))]
    assert sorted(seen) == sorted(encoded)


def test_any_step_can_be_asked_for_first(toy: Any) -> None:
    one = feed(toy)
    step = one.steps_per_epoch + 2
    expected = [sentences(one.batch(i)) for i in range(step + 1)][step]
    assert sentences(feed(toy).batch(step)) == expected
    assert sentences(feed(toy, seed=2).batch(step)) != expected


def test_what_is_left_out_is_told(toy: Any) -> None:
    settings = Config(batch_size=8, num_buckets=1, src_max_len=3, tgt_max_len=0, random_seed=1)
    longer = sum(len(line.split()) > 3 for line in toy.train.src)
    feed = Feed(toy.train, toy.src_vocab, toy.tgt_vocab, settings)
    assert feed.left_out() == [f"{longer} of 37 lines of {toy.train.src.path} are cut to --src_max_len=3 tokens"]
    target = Path(toy.train.tgt.path)
    target.write_text("\n" * 2 + "".join(target.read_text().splitlines(keepends=True)[2:]))
    feed = Feed(open_parallel(toy.train.src.path, target), toy.src_vocab, toy.tgt_vocab, settings)
    assert feed.left_out()[0] == "2 of 37 sentence pairs have no word on one side or both, and are left out"
    target.write_text("\n" * 37)
    with pytest.raises(InputError, match=r"train\.de has no word in any of its 37 lines"):
        Feed(open_parallel(toy.train.src.path, target), toy.src_vocab, toy.tgt_vocab, settings)


def test_more_ranks_than_sentences(toy: Any) -> None:
    feed(toy, 36, 37)
    with pytest.raises(InputError, match=r"train.en .* 37 sentence pairs .* 38 ranks"):
        feed(toy, 0, 38)


def test_the_same_plan_goes_on_where_it_was(toy: Any) -> None:
    one, again = feed(toy), feed(toy)
    assert again.continue_after(7, one.record()) == ""
    assert sentences(again.batch(7)) == sentences(one.batch(7))


def test_another_global_batch_goes_on_with_the_next_epoch(toy: Any) -> None:
    one, other = feed(toy), feed(toy, batch_size=4)
    step = one.steps_per_epoch + 2  # in the second epoch
    assert "global batch size changed since step" in other.continue_after(step, one.record())
    assert other.epoch_ended(step + other.steps_per_epoch) == 3
    third = [s for i in range(other.steps_per_epoch) for s in sentences(other.batch(step + i))]
    expected = [s for i in range(other.steps_per_epoch) for s in sentences(feed(toy, batch_size=4).batch(i))]
    assert sorted(third) == sorted(expected)  # each sentence once
    again = feed(toy, batch_size=4)  # another continuation keeps the position
    assert again.continue_after(step + 3, other.record()) == ""
    assert sentences(again.batch(step + 3)) == sentences(other.batch(step + 3))


def test_another_text_is_noticed_by_its_contents(toy: Any) -> None:
    """The new text has as many lines, with as many words in each."""
    record = feed(toy).record()
    path = toy.directory / "train.de"
    path.write_text(path.read_text().replace("A", "B"))
    changed = open_parallel(toy.directory / "train.en", path)
    assert np.array_equal(changed.tgt.lengths, toy.train.tgt.lengths)
    again = Feed(changed, toy.src_vocab, toy.tgt_vocab, Config(batch_size=8, random_seed=1))
    assert again.continue_after(3, record).startswith(f"{path} changed since step 3: training continues with epoch 2")


def test_a_checkpoint_from_before_the_change_of_plan(toy: Any) -> None:
    """The newer checkpoints were damaged and have been deleted."""
    other = feed(toy, batch_size=4)
    other.continue_after(12, feed(toy).record())
    again = feed(toy, batch_size=4)
    told = again.continue_after(9, other.record())
    epoch = again.record()["first_epoch"] + 1
    assert told == f"batches were cut differently until step 9: training continues with epoch {epoch}"
    assert not again.epoch_ended(9)  # the epoch was interrupted
    assert sentences(again.batch(9)) == sentences(other.batch(12))


@pytest.mark.parametrize("damaged", [{}, {"plan": 3}, {"first_step": None}, {"steps_per_epoch": "many"}])
def test_a_damaged_record_counts_as_none(toy: Any, damaged: dict[str, Any]) -> None:
    one = feed(toy)
    record = one.record() | damaged if damaged else {}
    assert feed(toy, batch_size=4).continue_after(3, record) == ""


@pytest.mark.parametrize("size", [1, 2])
def test_a_long_line_is_told_before_it_takes_all_memory(toy: Any, size: int) -> None:
    """The message has the step that reads the line, and the options that help."""
    for side in ("en", "de"):
        lines = (toy.directory / f"train.{side}").read_text().splitlines()
        lines[20] = " ".join(["a"] * (3000 if side == "en" else 10))
        (toy.directory / f"train.{side}").write_text("\n".join(lines) + "\n")
    corpus = open_parallel(toy.directory / "train.en", toy.directory / "train.de")

    def of(**limits: Any) -> Feed:
        settings = Config(
            **{"batch_size": 8, "num_buckets": 1, "src_max_len": 0, "tgt_max_len": 0, "random_seed": 1} | limits
        )
        return Feed(corpus, toy.src_vocab, toy.tgt_vocab, settings, 0, size)

    lifted = of()
    for done in (0, 3, lifted.steps_per_epoch):
        with pytest.raises(InputError) as error:
            lifted.check_tokens(done)
        told = str(error.value)
        step = int(told.split()[1])
        assert done < step <= done + 2 * lifted.steps_per_epoch
        parts = [Feed(corpus, toy.src_vocab, toy.tgt_vocab, lifted._config, r, size) for r in range(size)]
        assert 3000 in [len(part.batch(step - 1).source) for part in parts]
        assert "8 sentences a rank" in told and f"3000 tokens (line 21 of {toy.directory}/train.en" in told
        assert "24000 tokens with padding, more than 1608" in told and "--max_batch_tokens" in told
    of(src_max_len=50, tgt_max_len=50).check_tokens(0)
    of(src_max_len=300, tgt_max_len=50).check_tokens(0)  # the limits are explicit
    of(max_batch_tokens=24000).check_tokens(0)
    with pytest.raises(InputError, match="more than 23999"):
        of(max_batch_tokens=23999).check_tokens(0)
