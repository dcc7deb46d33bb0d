"""Lines of one language into lines of another, with the weights of a checkpoint.

A graph and a session of its own, without dropout. Lines of similar length are translated together; the order
of the output is that of the input, and a blank line gives a blank line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from nmt.files import replace_atomically
from nmt.model.trained import TrainedModel
from nmt.model.translator import Translator
from nmt.text.batches import source_batch
from nmt.text.corpus import TextFile
from nmt.text.tokens import join, split
from nmt.translate.search import beam_search, greedy_search

v1 = tf.compat.v1

_SLACK = 10  # tokens above twice the source's length: one source word may be many subwords


@dataclass(frozen=True)
class SearchSettings:
    """How translations are searched for.

    Attributes:
        beam_width: hypotheses kept; 0 for greedy search.
        length_penalty_weight: exponent of the length penalty of beam search.
        batch_size: sentences translated together.
        src_max_len: tokens kept of a source; None or 0 for all.
        tgt_max_len: most tokens of a translation; None or 0 for twice its source's length, and ten.
        subword_option: how tokens are joined into words: "", "bpe" or "spm".
    """

    beam_width: int = 0
    length_penalty_weight: float = 0.0
    batch_size: int = 32
    src_max_len: int | None = None
    tgt_max_len: int | None = None
    subword_option: str = ""


class TranslationModel(TrainedModel[SearchSettings]):
    """Translates by the weights in its session."""

    def _build(self, translator: Translator) -> None:
        self._source = v1.placeholder(tf.int32, [None, None], "source")
        self._lengths = v1.placeholder(tf.int32, [None], "source_lengths")
        self._max_steps = v1.placeholder(tf.int32, [None], "max_steps")
        sos, eos, settings = self._tgt_vocab.sos_id, self._tgt_vocab.eos_id, self._settings
        arguments = (translator, self._source, self._lengths, self._max_steps, sos, eos)
        if settings.beam_width:
            hypotheses, _ = beam_search(*arguments, settings.beam_width, settings.length_penalty_weight)
            self._ids = hypotheses[:, 0]
        else:
            self._ids = greedy_search(*arguments)  # int32 [batch, time]

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The translations of the lines, in their order; each is what the line alone would get."""
        tokens = [split(line)[: self._settings.src_max_len or None] for line in lines]
        order = sorted((i for i, words in enumerate(tokens) if words), key=lambda i: len(tokens[i]))
        translations = [""] * len(lines)
        for start in range(0, len(order), self._settings.batch_size):
            chosen = order[start : start + self._settings.batch_size]
            for i, text in zip(chosen, self._translate_batch([tokens[i] for i in chosen]), strict=True):
                translations[i] = text
        return translations

    def _translate_batch(self, tokens: Sequence[Sequence[str]]) -> list[str]:
        source, lengths = source_batch(tokens, self._src_vocab, self._settings.src_max_len)
        # Not twice the longest source of the batch: a sentence's limit would depend on its neighbours.
        limit = self._settings.tgt_max_len
        limits = np.full_like(lengths, limit) if limit else 2 * lengths + _SLACK
        ids: np.ndarray = self.session.run(
            self._ids, {self._source: source, self._lengths: lengths, self._max_steps: limits}
        )
        decode, option, eos = self._tgt_vocab.decode, self._settings.subword_option, self._tgt_vocab.eos
        return [join(decode(row), option, eos) for row in ids.tolist()]


def translate_file(model: TranslationModel, input_path: str, output_path: str) -> int:
    """Translates a text file line by line into another, which appears when it is complete; returns the number
    of lines.

    Raises:
        InputError: the input cannot be read or is not UTF-8, or the output cannot be written.
    """
    text = TextFile(input_path)
    with replace_atomically(output_path) as output:
        lines = [text.line(i) for i in range(len(text))]
        output.writelines(line + "\n" for line in model.translate(lines))
    return len(lines)
