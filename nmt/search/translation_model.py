"""The translation graph: translates lines with the weights of a checkpoint, without dropout.

A batch has lines of similar length; the output has the order of the input. A blank line gives blank lines.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from nmt.core.ranks import Ranks
from nmt.model.inference_model import TrainedModel
from nmt.model.interface import Translator
from nmt.model.session import memory_for
from nmt.options.config import Config
from nmt.search.beam_search import beam_search
from nmt.search.forced import forced_decoding
from nmt.search.greedy import greedy_search, sample_search, uniform_draws
from nmt.search.shortlist import Shortlist, ShortlistTranslator, read_shortlist
from nmt.text.batches import cut_by_tokens, source_batch, token_limit
from nmt.text.tokens import join, split

v1 = tf.compat.v1

Item = TypeVar("Item")
Result = TypeVar("Result")

SLACK = 10  # tokens in addition to twice the source's length: one source word may give many subwords


class Hypothesis(NamedTuple):
    """A translation that a search has found.

    Attributes:
        tokens: tokens, without the end mark.
        score: score by which beam search ranks it; None for other searches.
    """

    tokens: list[str]
    score: float | None = None


class ForcedTranslation(NamedTuple):
    """A given translation as the model sees it.

    Attributes:
        log_probabilities: log-probabilities of the tokens in nats, float32 [target].
        weights: attention weights, float32 [target, source], each row with the sum 1; None without attention.
    """

    log_probabilities: np.ndarray
    weights: np.ndarray | None


class Alignment(NamedTuple):
    """A translation and its attention weights.

    Attributes:
        source: tokens of the source.
        target: tokens of the translation, with the end mark unless the translation was cut at its greatest length.
        weights: attention weights, float32 [target, source]; each row has the sum 1.
    """

    source: list[str]
    target: list[str]
    weights: np.ndarray


def searched(
    translator: Any,
    source: tf.Tensor,
    lengths: tf.Tensor,
    limits: tf.Tensor,
    marks: tuple[int, int, int],
    config: Config,
    draws: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Return the translations of a batch by the search that the options ask for.

    Args:
        translator: a translator with dropout 0, or an object with its methods.
        source: int32 [source time, batch].
        lengths: int32 [batch], each at least 1.
        limits: int32 [batch], the most words of a translation, eos included.
        marks: ids of the unknown word, of the start and of the end of a sentence.
        config: options of the search.
        draws: random numbers for sampling, as of `sample_search`.

    Returns:
        ids, int32 [batch, translations, time]; and the scores [batch, translations], None without beam search.
    """
    unk, sos, eos = marks
    arguments = (translator, source, lengths, limits, sos, eos)
    allowed = config.min_length, unk if config.ban_unk_token else None
    if config.search_mode == "beam_search":
        weights = config.length_penalty_weight, config.coverage_penalty_weight
        ids, scores = beam_search(*arguments, config.beam_width, *weights, *allowed)
        return ids[:, : config.translations], scores[:, : config.translations]
    if config.search_mode == "sample":
        return sample_search(*arguments, config.sampling_temperature, draws, *allowed), None
    return greedy_search(*arguments, *allowed)[:, None], None


class TranslationModel(TrainedModel):
    """Translates with the weights in its session."""

    def _build(self, translator: Translator) -> None:
        self._source = v1.placeholder(tf.int32, translator.architecture.source_shape, "source")
        self._lengths = v1.placeholder(tf.int32, [None], "source_lengths")
        self._max_steps = v1.placeholder(tf.int32, [None], "max_steps")
        self._draws = v1.placeholder(tf.float64, [None, None, None], "draws")
        config, vocabulary, self._longest = self._config, self._tgt_vocab, translator.architecture.longest
        unk, sos, eos = vocabulary.unk_id, vocabulary.sos_id, vocabulary.eos_id
        writer: Any = translator
        self._shortlist: Shortlist | None = None
        if config.shortlist:
            self._shortlist = read_shortlist(config.shortlist, self._src_vocab, vocabulary)
            self._words = v1.placeholder(tf.int32, [None], "words")
            self._closed = v1.placeholder(tf.bool, [None, None], "closed")
            writer = ShortlistTranslator(translator, self._words, self._closed)
            unk, sos, eos = self._shortlist.places
        self._ids, scores = searched(
            writer, self._source, self._lengths, self._max_steps, (unk, sos, eos), config, self._draws
        )
        self._scores = tf.zeros([0]) if scores is None else scores
        if self._shortlist:
            self._ids = tf.gather(self._words, self._ids)
        # self._ids: int32 [batch, translations, time]
        self._target = v1.placeholder(tf.int32, [None, None], "target")
        self._forced = forced_decoding(translator, self._source, self._lengths, vocabulary.sos_id, self._target)
        self._attends = self._forced.weights is not None

    def translate(self, lines: Sequence[str]) -> list[list[str]]:
        """Return the translations of each line, best first; they do not depend on the other lines."""
        return [[self.joined(one) for one in found] for found in self.search(lines)]

    def joined(self, hypothesis: Hypothesis) -> str:
        """Return a hypothesis as words that are separated by spaces."""
        return join(hypothesis.tokens, self._config.subword_option, self._tgt_vocab.eos)

    def search(self, lines: Sequence[str]) -> list[list[Hypothesis]]:
        """Search for translations of lines, in the order of `translate`. A blank line has empty ones."""
        tokens = [self._tokens(line) for line in lines]
        translations = [[Hypothesis([])] * self._config.translations for _ in lines]
        order = sorted((i for i, words in enumerate(tokens) if words), key=lambda i: len(tokens[i]))
        decode, eos = self._tgt_vocab.decode, self._tgt_vocab.eos
        for part in self._batches([len(tokens[i]) for i in order]):
            chosen = order[part]
            ids, scores = self._search([tokens[i] for i in chosen])
            ranked = scores.tolist() if scores.size else [[None] * ids.shape[1]] * len(chosen)
            for i, rows, each in zip(chosen, ids.tolist(), ranked, strict=True):
                words = (list(takewhile(lambda word: word != eos, decode(row))) for row in rows)
                translations[i] = list(map(Hypothesis, words, each))
        return translations

    def _batches(self, lengths: Sequence[int]) -> list[slice]:
        most_tokens = token_limit(self._config.infer_batch_size, None, self._config.src_max_len_infer)
        return cut_by_tokens(lengths, self._config.infer_batch_size, most_tokens)

    def forced(self, lines: Sequence[str], targets: Sequence[Sequence[str]]) -> list[ForcedTranslation | None]:
        """Return the probabilities and attention weights while given translations are written.

        Args:
            lines: source text.
            targets: tokens of one translation for each line, with or without its end mark.

        Returns:
            None for a blank line, and for a translation without tokens.
        """
        found: list[ForcedTranslation | None] = [None] * len(lines)
        tokens = [self._tokens(line) for line in lines]
        order = sorted((i for i, one in enumerate(targets) if one and tokens[i]), key=lambda i: len(tokens[i]))
        for part in self._batches([max(len(tokens[i]), len(targets[i])) for i in order]):
            chosen = order[part]
            source, lengths = source_batch([tokens[i] for i in chosen], self._src_vocab, None)
            ids = np.full([len(chosen), max(len(targets[i]) for i in chosen)], self._tgt_vocab.eos_id, np.int32)
            for row, i in enumerate(chosen):
                words = targets[i][:-1] if targets[i][-1] == self._tgt_vocab.eos else targets[i]
                ids[row, : len(words)] = self._tgt_vocab.encode(words)
            feed = {self._source: source, self._lengths: lengths, self._target: ids}
            wanted = self._forced if self._attends else self._forced[:1]
            with memory_for("probabilities of words", source, ids.T, "--infer_batch_size"):
                logarithms, *weights = self.session.run(list(wanted), feed)
            for row, i in enumerate(chosen):
                own = weights[0][row, : len(targets[i]), : len(tokens[i])] if weights else None
                found[i] = ForcedTranslation(logarithms[row, : len(targets[i])], own)
        return found

    def log_probabilities(self, lines: Sequence[str], targets: Sequence[str]) -> list[np.ndarray | None]:
        """Return the log-probabilities of each target's tokens and its end mark, in nats; None for a blank source."""
        ended = [[*split(target), self._tgt_vocab.eos] for target in targets]
        return [None if one is None else one.log_probabilities for one in self.forced(lines, ended)]

    def align(self, line: str) -> Alignment | None:
        """Return the line's best translation with its attention weights.

        Returns:
            None for a blank line, and for a model without attention.
        """
        tokens = self._tokens(line)
        if not tokens or not self._attends:
            return None
        ids = self._search([tokens])[0][:, 0]
        length = int(np.argmax(ids[0] == self._tgt_vocab.eos_id)) + 1 if self._tgt_vocab.eos_id in ids[0] else ids.size
        target = self._tgt_vocab.decode(ids[0, :length].tolist())
        (forced,) = self.forced([line], [target])
        return Alignment(tokens, target, forced.weights) if forced and forced.weights is not None else None

    def _tokens(self, line: str) -> list[str]:
        return split(line)[: self._config.src_max_len_infer or None]

    def _limits(self, lengths: np.ndarray) -> np.ndarray:
        """Return the most words (eos included) of a translation, by the lengths of the sources, int32 [batch]."""
        # Each sentence has its own limit; a common one would depend on the other sentences of the batch.
        limit = self._config.tgt_max_len_infer
        limits = np.full_like(lengths, limit) if limit else 2 * lengths + SLACK
        limits = np.maximum(limits, self._config.min_length + 1)  # and the end mark
        return limits if self._longest is None else np.minimum(limits, self._longest)

    def _search(self, tokens: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of the translations, int32 [batch, translations, time], and their scores.

        Each sentence has at least a token. Scores are [batch, translations], or empty if the search has none.
        """
        source, lengths = source_batch(tokens, self._src_vocab, None)
        limits = self._limits(lengths)
        feed: dict[tf.Tensor, Any] = {self._source: source, self._lengths: lengths, self._max_steps: limits}
        if self._shortlist:
            feed[self._words], feed[self._closed] = self._shortlist.of(source, self._config.beam_width + 1)
        if self._config.search_mode == "sample":
            steps = int(limits.max())
            feed[self._draws] = [
                [uniform_draws(self._config.random_seed or 0, key, k, steps) for k in range(self._config.translations)]
                for key in (_key(source[:length, place]) for place, length in enumerate(lengths))
            ]
        with memory_for("a translation", source, None, "--infer_batch_size, --src_max_len_infer, --tgt_max_len_infer"):
            ids, scores = self.session.run([self._ids, self._scores], feed)
        return ids, scores


def _key(ids: np.ndarray) -> int:
    """Return the number of a source's random stream: equal sources have equal draws, wherever they stand."""
    return int.from_bytes(hashlib.sha256(ids.tobytes()).digest(), "big")


def tell_cut(speaker: str, path: str, number: int, line: str, most: int | None, whose: str = "--") -> None:
    """Warn on standard error if a source, line `number` of a file, has more tokens than the model is given."""
    if most and len(tokens := split(line)) > most:
        told = f"{path}, line {number} has {len(tokens)} tokens and is cut to {most} ({whose}src_max_len_infer)"
        print(f"{speaker}: {told}", file=sys.stderr, flush=True)


def translate_shared(model: TranslationModel, lines: Sequence[str], ranks: Ranks) -> list[list[str]]:
    """Translate lines with all ranks, a share each; return the result of `model.translate` on every rank.

    A line's translations do not depend on other lines, and so not on the number of ranks.

    Collective: every rank calls with the same lines, and with equal weights in its model.
    """
    return shared(model.translate, lines, lines, ranks)


def shared(
    work: Callable[[list[Item]], list[Result]], items: Sequence[Item], lines: Sequence[str], ranks: Ranks
) -> list[Result]:
    """Compute the results of items with all ranks, a share each; return all results, in order, on every rank.

    The items, sorted by the lengths of their lines, go to the ranks in turn, so the ranks have nearly equal work.

    Collective: every rank calls with the same items.

    Args:
        work: function that returns a result for each of some items, at least one.
        items: items of work.
        lines: source text of each item.
        ranks: the ranks that share the work.
    """
    order = np.argsort([len(split(line)) for line in lines], kind="stable").tolist()
    with ranks.alone("translation"):  # ranks with faster shares wait for the others
        mine = [items[i] for i in order[ranks.rank :: ranks.size]]
        share = work(mine) if mine else []
    results: dict[int, Result] = {}
    for rank, gathered in enumerate(ranks.gather(share)):
        results.update(zip(order[rank :: ranks.size], gathered, strict=True))
    return [results[i] for i in range(len(items))]
