"""The data feed: this rank's part of each step's batch. The epochs follow each other without a gap.

The number of steps done is the position in the feed; a run that continues needs only this number. If its text, ranks or
batches have changed, it continues with the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from nmt.core.errors import InputError
from nmt.options.config import Config
from nmt.text.batches import Batch, make_batch, token_limit
from nmt.text.bpe_dropout import BPEDropoutText, Merges
from nmt.text.corpus import ParallelCorpus
from nmt.text.epoch_plan import CUT_VERSION, Cut, epoch_plan, rank_slice, steps_per_epoch, widest_batch
from nmt.text.lines import TextFile
from nmt.text.vocabulary import SourceVocabulary, Vocabulary


@dataclass(frozen=True)
class Origin:
    """The point of the run where the current batch plan begins; not 0 if text, ranks or batches have changed.

    Attributes:
        step: number of steps done before.
        epoch: number of epochs before, an interrupted epoch included.
    """

    step: int = 0
    epoch: int = 0


class Feed:
    """The batches that rank `rank` of `size` trains on.

    Args:
        corpus: the training text; only this rank's sentences are read.
        src_vocab: the source vocabulary.
        tgt_vocab: the target vocabulary.
        config: options of the batches; the same on all ranks.
        rank: this rank.
        size: number of ranks.
        joints: the BPE merges; required for BPE-dropout.

    Attributes:
        parts: number of batches that a rank processes in a step.

    Raises:
        InputError: there are fewer usable sentence pairs than ranks.
    """

    def __init__(
        self,
        corpus: ParallelCorpus,
        src_vocab: SourceVocabulary,
        tgt_vocab: Vocabulary,
        config: Config,
        rank: int = 0,
        size: int = 1,
        joints: Merges | None = None,
    ) -> None:
        self._joints, self._read = joints, corpus
        self._corpus, self._src_vocab, self._tgt_vocab = corpus, src_vocab, tgt_vocab
        self._config, self._rank, self._size = config, rank, size
        self.parts, self._seed = config.accumulate_steps or 1, int(config.random_seed or 0)
        self._origin = Origin()
        self._epoch = -1
        self._plan: list[np.ndarray] = []
        self.pairs = int(np.count_nonzero((corpus.src.lengths > 0) & (corpus.tgt.lengths > 0)))
        if not self.pairs:
            corpus.src.check_words()
            corpus.tgt.check_words()
            raise InputError(
                f"no line of {corpus.src.path} and {corpus.tgt.path} has words on both sides: give two texts where "
                "line i of one translates line i of the other"
            )
        if self.pairs < size:
            raise InputError(
                f"{corpus.src.path} and {corpus.tgt.path} have {self.pairs} sentence pairs with words on "
                f"both sides, too few for {size} ranks: start at most {self.pairs}, or give more text"
            )
        shares = size * self.parts
        self._cut = Cut(
            config.batch_size * shares,
            config.num_buckets,
            config.src_max_len,
            config.tgt_max_len,
            config.pool_batches,
            config.batch_tokens * shares if config.batch_tokens else None,
        )
        if config.batch_tokens:
            self._check_batch_tokens(config.batch_tokens)
        self.steps_per_epoch = steps_per_epoch(corpus.src.lengths, corpus.tgt.lengths, self._cut)

    def _check_batch_tokens(self, most: int) -> None:
        corpus = self._corpus
        _, longest, pair = widest_batch(
            corpus.src.lengths, corpus.tgt.lengths, replace(self._cut, global_batch_size=1, global_batch_tokens=None)
        )
        if longest > most:
            raise InputError(
                f"--batch_tokens={most} is less than the {longest} tokens, end mark counted, of line {pair + 1} of "
                f"{corpus.src.path} and {corpus.tgt.path}. Set it to {longest} or more, or cut long lines by "
                "--src_max_len and --tgt_max_len"
            )

    def sizes(self) -> tuple[str, str]:
        """Return the sizes of a rank's batch and of a step's global batch as text."""
        if self._config.batch_tokens:
            return f"{self._config.batch_tokens} tokens", f"{self._cut.global_batch_tokens} tokens"
        return str(self._config.batch_size), f"{self._cut.global_batch_size} sentences"

    def left_out(self) -> list[str]:
        """Return log lines about the sentence pairs and tokens that training does not use."""
        corpus, told = self._corpus, []
        empty = len(corpus) - self.pairs
        if empty:
            told.append(f"{empty} of {len(corpus)} sentence pairs have no word on one side or both, and are left out")
        for name, most, text in (
            ("src_max_len", self._config.src_max_len, corpus.src),
            ("tgt_max_len", self._config.tgt_max_len, corpus.tgt),
        ):
            longer = int(np.count_nonzero(text.lengths > most)) if most else 0
            if longer:
                told.append(f"{longer} of {len(text)} lines of {text.path} are cut to --{name}={most} tokens")
        return told

    def continue_after(self, step: int, record: Mapping[str, Any]) -> str:
        """Continue a run at its next step, or at the next epoch if its batch plan has changed.

        Args:
            step: number of steps done.
            record: result of `record` in that run; empty if there is none.

        Returns:
            A log line about the changes; empty if nothing has changed.
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
        # `changed` is empty if the checkpoints since the beginning of this plan were deleted.
        reason = f"{changed} changed since" if changed else "batches were cut differently until"
        return f"{now}{reason} step {step}: training continues with epoch {self._origin.epoch + 1}"

    def record(self) -> dict[str, Any]:
        """Return the description of the batch plan that `continue_after` needs, for JSON."""
        return {
            "plan": self._plan_record(),
            "steps_per_epoch": self.steps_per_epoch,
            "ranks": self._size,
            "first_step": self._origin.step,
            "first_epoch": self._origin.epoch,
        }

    def _plan_record(self) -> dict[str, Any]:
        """Return the inputs that determine an epoch's batches: sizes, settings, and checksums of the texts."""
        config, cut = self._config, self._cut
        by_sentences = cut.global_batch_tokens is None
        sizes = {"global batch size": cut.global_batch_size, "num_buckets": cut.num_buckets}
        more = {
            "way of cutting": (CUT_VERSION if cut.pool_batches > 1 or not by_sentences else 1, 1),
            "pool_batches": (cut.pool_batches, 1),
            "src_bpe_dropout": (config.src_bpe_dropout, 0.0),
            "tgt_bpe_dropout": (config.tgt_bpe_dropout, 0.0),
            "bpe_codes": (self._joints.checksum if self._joints else 0, 0),
        }
        return {
            **(sizes if by_sentences else {"tokens of a global batch": cut.global_batch_tokens}),
            "source text": self._corpus.src.checksum,
            "target text": self._corpus.tgt.checksum,
            "src_max_len": config.src_max_len,
            "tgt_max_len": config.tgt_max_len,
            "random_seed": self._seed,
            **{name: value for name, (value, default) in more.items() if value != default},
        }

    def check_tokens(self, step: int) -> None:
        """Check that no batch of any epoch is too large: all its sentences are padded to the longest one.

        Args:
            step: number of steps done.

        Raises:
            InputError: a batch is too large; the message names the next step that has it, and the longest line.
        """
        config, corpus = self._config, self._corpus
        if config.batch_tokens:
            return  # the user gave the number of tokens; a rank has at most one sentence more
        most = token_limit(config.batch_size, config.max_batch_tokens, config.src_max_len, config.tgt_max_len)
        sentences, longest, pair = widest_batch(corpus.src.lengths, corpus.tgt.lengths, self._cut)
        sentences = -(-sentences // (self._size * self.parts))
        if sentences * longest <= most:
            return
        raise InputError(
            f"step {self._step_of(pair, step)} would train on {sentences} sentences a rank, padded to the longest of "
            f"them, {longest} tokens (line {pair + 1} of {corpus.src.path} and {corpus.tgt.path}). This makes "
            f"{sentences * longest} tokens with padding, more than {most}. Set --src_max_len and --tgt_max_len to cut "
            "long lines, lower --batch_size, or set --max_batch_tokens to allow as many"
        )

    def _step_of(self, pair: int, done: int) -> int:
        """Return the number, from 1, of the first step after `done` steps that trains on a sentence pair."""
        epoch = (done - self._origin.step) // self.steps_per_epoch
        while True:
            plan = self._plan_of(self._origin.epoch + epoch)
            before = self._origin.step + epoch * self.steps_per_epoch
            step = before + next(n for n, batch in enumerate(plan, 1) if pair in batch)
            if step > done:
                return step
            epoch += 1

    def epoch_ended(self, step: int) -> int:
        """Return the number, from 1, of the epoch that ends with this step; 0 if none does."""
        done, rest = divmod(step - self._origin.step, self.steps_per_epoch)
        return 0 if rest or not done else self._origin.epoch + done

    def batch(self, step: int, part: int = 0) -> Batch:
        """Return this rank's batch number `part` of the global batch that follows `step` steps."""
        epoch, position = divmod(step - self._origin.step, self.steps_per_epoch)
        epoch += self._origin.epoch
        if epoch != self._epoch:
            self._plan, self._epoch = self._plan_of(epoch), epoch
            self._read = ParallelCorpus(
                self._drawn(self._corpus.src, self._config.src_bpe_dropout, 0),
                self._drawn(self._corpus.tgt, self._config.tgt_bpe_dropout, 1),
            )
        sentences = self._plan[position]
        return make_batch(
            rank_slice(sentences, self._rank + part * self._size, self._size * self.parts),
            self._read,
            self._src_vocab,
            self._tgt_vocab,
            self._config.src_max_len,
            self._config.tgt_max_len,
            len(sentences),
            self._size * self.parts,
            self._words(sentences) if self._config.divides_by_words else None,
        )

    def _words(self, pairs: np.ndarray) -> int:
        """Return the number of target words of a step's sentence pairs, cut to `tgt_max_len`, end marks counted.

        BPE-dropout is ignored: to segment the sentences of all ranks again for the count would cost more with each
        rank.
        """
        lengths = self._corpus.tgt.lengths[pairs]
        return int((np.minimum(lengths, self._config.tgt_max_len or lengths.max()) + 1).sum())

    def _drawn(self, text: TextFile, rate: float, side: int) -> TextFile:
        """Return a text as the current epoch reads it: with BPE-dropout, if `rate` is more than 0."""
        key = self._seed, self._epoch, side
        return BPEDropoutText(text, self._joints, rate, key) if self._joints and rate else text

    def _plan_of(self, epoch: int) -> list[np.ndarray]:
        lengths = self._corpus.src.lengths, self._corpus.tgt.lengths
        return epoch_plan(*lengths, self._cut, seed=self._seed, epoch=epoch)
