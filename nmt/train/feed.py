"""The data feed: of each step's batch the part that is this rank's, the plans of all epochs laid end to end.

The position in it is the number of steps done, so that a run which continues needs nothing but that number, unless
its text, ranks or batches have changed: then it goes on with the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmt.core.errors import InputError
from nmt.text.batches import Batch, make_batch, token_limit
from nmt.text.bpe_dropout import DrawnText, Joints
from nmt.text.corpus import ParallelCorpus
from nmt.text.epoch_plan import CUT_VERSION, Cut, epoch_plan, rank_slice, steps_per_epoch, widest_batch
from nmt.text.lines import TextFile
from nmt.text.vocabulary import SourceVocabulary, Vocabulary

NORMALIZATIONS = ("sentences", "words")


@dataclass(frozen=True)
class Origin:
    """Where the present plan took over: in the middle of a run, if text, ranks or batches have changed since.

    Attributes:
        step: steps done before it.
        epoch: epochs done before it, one that was broken off included.
    """

    step: int = 0
    epoch: int = 0


@dataclass(frozen=True)
class FeedSettings:
    """How batches are cut.

    Attributes:
        batch_size: sentences of one rank in a step, or in each part of it.
        num_buckets: length classes.
        src_max_len: tokens kept of a source as it is read; 0 or None for all.
        tgt_max_len: the same for the target.
        seed: of the order.
        max_batch_tokens: most tokens of a rank's batch, padding counted, on its longer side; None for `token_limit`.
        accumulate_steps: parts of a step that a rank does one after the other, each as another rank would; None for 1.
        loss_normalization: what a step's summed loss is divided by: its "sentences", or its target "words"; None: the
            words if batches are cut by tokens.
        pool_batches: so many batches' sentences of a length class are put in order of length before they are cut.
        batch_tokens: in place of `batch_size` and `num_buckets`, the tokens of a batch of all ranks, on its longer
            side, padding counted, by their number: a rank has at most one sentence more than its share. None: these
            count.
        src_bpe_dropout: probability that a joint of a source word is left out (`nmt.text.bpe_dropout`). Batches are
            planned by the text as it stands.
        tgt_bpe_dropout: the same of a target word.
    """

    batch_size: int
    num_buckets: int
    src_max_len: int | None
    tgt_max_len: int | None
    seed: int
    max_batch_tokens: int | None = None
    accumulate_steps: int | None = None
    loss_normalization: str | None = None
    pool_batches: int = 1
    batch_tokens: int | None = None
    src_bpe_dropout: float = 0.0
    tgt_bpe_dropout: float = 0.0

    @property
    def by_words(self) -> bool:
        """Whether a loss is divided by words."""
        if self.loss_normalization is None:
            return bool(self.batch_tokens)
        return self.loss_normalization == "words"


class Feed:
    """The batches that rank `rank` of `size` trains on.

    Args:
        corpus: the training text, of which only this rank's sentences are read.
        src_vocab: the words of the source.
        tgt_vocab: the words of the target.
        settings: how batches are cut; the same on all ranks.
        rank: this rank.
        size: number of ranks.
        joints: of subwords; wanted with a BPE-dropout.

    Attributes:
        parts: of a step, that a rank does one after the other.

    Raises:
        InputError: there are fewer usable sentence pairs than ranks.
    """

    def __init__(
        self,
        corpus: ParallelCorpus,
        src_vocab: SourceVocabulary,
        tgt_vocab: Vocabulary,
        settings: FeedSettings,
        rank: int = 0,
        size: int = 1,
        joints: Joints | None = None,
    ) -> None:
        self._joints, self._read = joints, corpus
        self._corpus, self._src_vocab, self._tgt_vocab = corpus, src_vocab, tgt_vocab
        self._settings, self._rank, self._size = settings, rank, size
        self.parts = settings.accumulate_steps or 1
        self._origin = Origin()
        self._epoch = -1
        self._plan: list[np.ndarray] = []
        self.pairs = int(np.count_nonzero((corpus.src.lengths > 0) & (corpus.tgt.lengths > 0)))
        if not self.pairs:
            corpus.src.check_words()
            corpus.tgt.check_words()
            raise InputError(
                f"no line of {corpus.src.path} and {corpus.tgt.path} has words on both sides: give text of which line "
                "i of one translates line i of the other"
            )
        if self.pairs < size:
            raise InputError(
                f"{corpus.src.path} and {corpus.tgt.path} have {self.pairs} sentence pairs with words on "
                f"both sides, too few for {size} ranks: start at most {self.pairs}, or give more text"
            )
        shares = size * self.parts
        self._cut = Cut(
            settings.batch_size * shares,
            settings.num_buckets,
            settings.src_max_len,
            settings.tgt_max_len,
            settings.pool_batches,
            settings.batch_tokens * shares if settings.batch_tokens else None,
        )
        if settings.batch_tokens:
            self._check_batch_tokens(settings.batch_tokens)
        self.steps_per_epoch = steps_per_epoch(corpus.src.lengths, corpus.tgt.lengths, self._cut)

    def _check_batch_tokens(self, most: int) -> None:
        corpus = self._corpus
        _, longest, pair = widest_batch(
            corpus.src.lengths, corpus.tgt.lengths, replace(self._cut, global_batch_size=1, global_batch_tokens=None)
        )
        if longest > most:
            raise InputError(
                f"--batch_tokens={most} is less than the {longest} tokens, end mark counted, of line {pair + 1} of "
                f"{corpus.src.path} and {corpus.tgt.path}: set it to {longest} or more, or cut long lines by "
                "--src_max_len and --tgt_max_len"
            )

    def sizes(self) -> tuple[str, str]:
        """A rank's batch, and that of all ranks in a step, in words."""
        if self._settings.batch_tokens:
            return f"{self._settings.batch_tokens} tokens", f"{self._cut.global_batch_tokens} tokens"
        return str(self._settings.batch_size), f"{self._cut.global_batch_size} sentences"

    def left_out(self) -> list[str]:
        """What of the text is not trained on, in lines."""
        corpus, told = self._corpus, []
        empty = len(corpus) - self.pairs
        if empty:
            told.append(f"{empty} of {len(corpus)} sentence pairs have no word on one side or both, and are left out")
        for name, most, text in (
            ("src_max_len", self._settings.src_max_len, corpus.src),
            ("tgt_max_len", self._settings.tgt_max_len, corpus.tgt),
        ):
            longer = int(np.count_nonzero(text.lengths > most)) if most else 0
            if longer:
                told.append(f"{longer} of {len(text)} lines of {text.path} are cut to --{name}={most} tokens")
        return told

    def continue_after(self, step: int, record: Mapping[str, Any]) -> str:
        """Go on where a run has stopped: exactly, or with the next epoch if its plan was another one.

        Args:
            step: steps done.
            record: what `record` said in that run; empty if it was another program's or there was none.

        Returns:
            What has changed, in words; empty if nothing has.
        """
        try:
            before = Origin(int(record["first_step"]), int(record["first_epoch"]))
            plan, length = dict(record["plan"]), int(record["steps_per_epoch"])
            ranks = int(record.get("ranks", self._size))
        except (KeyError, TypeError, ValueError):
            return ""
        now = f"{ranks} rank(s) until step {step}, {self._size} from here on: " if ranks != self._size else ""
        if plan == self._plan_record() and step >= before.step:
            self._origin = before
            return now and f"{now}the same sentences in each step, but other random numbers (of dropout, say)"
        done = max(0, step - before.step)
        self._origin = Origin(step, before.epoch + -(-done // max(1, length)))
        known = {"source text": self._corpus.src.path, "target text": self._corpus.tgt.path}
        changed = ", ".join(
            known.get(name, name) for name, value in self._plan_record().items() if plan.get(name) != value
        )
        # Nothing has, if the checkpoints since the plan took over were deleted.
        reason = f"{changed} changed since" if changed else "batches were cut otherwise until"
        return f"{now}{reason} step {step}: training goes on with epoch {self._origin.epoch + 1}"

    def record(self) -> dict[str, Any]:
        """What a run that continues must know of this one's plan, for JSON."""
        return {
            "plan": self._plan_record(),
            "steps_per_epoch": self.steps_per_epoch,
            "ranks": self._size,
            "first_step": self._origin.step,
            "first_epoch": self._origin.epoch,
        }

    def _plan_record(self) -> dict[str, Any]:
        """All that the plan of an epoch is a function of, and what the sentences in it say."""
        settings, cut = self._settings, self._cut
        by_sentences = cut.global_batch_tokens is None
        sizes = {"global batch size": cut.global_batch_size, "num_buckets": cut.num_buckets}
        more = {
            "way of cutting": (CUT_VERSION if cut.pool_batches > 1 or not by_sentences else 1, 1),
            "pool_batches": (cut.pool_batches, 1),
            "src_bpe_dropout": (settings.src_bpe_dropout, 0.0),
            "tgt_bpe_dropout": (settings.tgt_bpe_dropout, 0.0),
            "bpe_codes": (self._joints.checksum if self._joints else 0, 0),
        }
        return {
            **(sizes if by_sentences else {"tokens of a global batch": cut.global_batch_tokens}),
            "source text": self._corpus.src.checksum,
            "target text": self._corpus.tgt.checksum,
            "src_max_len": settings.src_max_len,
            "tgt_max_len": settings.tgt_max_len,
            "random_seed": settings.seed,
            **{name: value for name, (value, default) in more.items() if value != default},
        }

    def check_tokens(self, step: int) -> None:
        """Checks that no batch, in whatever epoch, is too wide: one long line makes all its batch as long.

        Args:
            step: steps done.

        Raises:
            InputError: with the first such step after these, and the line.
        """
        settings, corpus = self._settings, self._corpus
        if settings.batch_tokens:
            return  # whoever gave it has said how many; a rank has one sentence more at most
        most = token_limit(settings.batch_size, settings.max_batch_tokens, settings.src_max_len, settings.tgt_max_len)
        sentences, longest, pair = widest_batch(corpus.src.lengths, corpus.tgt.lengths, self._cut)
        sentences = -(-sentences // (self._size * self.parts))
        if sentences * longest <= most:
            return
        raise InputError(
            f"step {self._step_of(pair, step)} would train on {sentences} sentences a rank, padded to the longest of "
            f"them, {longest} tokens (line {pair + 1} of {corpus.src.path} and {corpus.tgt.path}): "
            f"{sentences * longest} tokens with padding, more than {most}. Set --src_max_len and --tgt_max_len to cut "
            "long lines, lower --batch_size, or set --max_batch_tokens to allow as many"
        )

    def _step_of(self, pair: int, done: int) -> int:
        """The first step after those done, from 1, that trains on a pair."""
        epoch = (done - self._origin.step) // self.steps_per_epoch
        while True:
            plan = self._plan_of(self._origin.epoch + epoch)
            before = self._origin.step + epoch * self.steps_per_epoch
            step = before + next(n for n, batch in enumerate(plan, 1) if pair in batch)
            if step > done:
                return step
            epoch += 1

    def epoch_ended(self, step: int) -> int:
        """The number of the epoch, from 1, that ends with this step; 0 if none does."""
        done, rest = divmod(step - self._origin.step, self.steps_per_epoch)
        return 0 if rest or not done else self._origin.epoch + done

    def batch(self, step: int, part: int = 0) -> Batch:
        """Of the global batch that follows `step` steps, this rank's sentences, or a part of these."""
        epoch, position = divmod(step - self._origin.step, self.steps_per_epoch)
        epoch += self._origin.epoch
        if epoch != self._epoch:
            self._plan, self._epoch = self._plan_of(epoch), epoch
            self._read = ParallelCorpus(
                self._drawn(self._corpus.src, self._settings.src_bpe_dropout, 0),
                self._drawn(self._corpus.tgt, self._settings.tgt_bpe_dropout, 1),
            )
        sentences = self._plan[position]
        return make_batch(
            rank_slice(sentences, self._rank + part * self._size, self._size * self.parts),
            self._read,
            self._src_vocab,
            self._tgt_vocab,
            self._settings.src_max_len,
            self._settings.tgt_max_len,
            len(sentences),
            self._size * self.parts,
            self._words(sentences) if self._settings.by_words else None,
        )

    def _words(self, pairs: np.ndarray) -> int:
        """Target words of a step's sentence pairs, end marks counted, as far as they are trained on.

        As the text stands: to cut the sentences of all ranks anew, only to count, would cost more with each rank.
        """
        lengths = self._corpus.tgt.lengths[pairs]
        return int((np.minimum(lengths, self._settings.tgt_max_len or lengths.max()) + 1).sum())

    def _drawn(self, text: TextFile, rate: float, side: int) -> TextFile:
        """A text as it is read in the present epoch."""
        key = self._settings.seed, self._epoch, side
        return DrawnText(text, self._joints, rate, key) if self._joints and rate else text

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        lengths = self._corpus.src.lengths, self._corpus.tgt.lengths
        return epoch_plan(*lengths, self._cut, seed=self._settings.seed, epoch=epoch)
