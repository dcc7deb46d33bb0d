"""Shortlists: the target words that a translation may have, chosen by its source words, instead of the vocabulary.

The output layer is the most expensive matrix product of a search step. With a shortlist it has only some hundred
columns: the words of all sentences of the batch. Each sentence may use only its own words, so its translation does not
depend on the rest of the batch. See Jean et al. 2015, arXiv:1412.2007, section 3.3; Mi et al. 2016, arXiv:1605.03209.

A file of shortlists is made by `python -m nmt.shortlist`. Each line has a source word and its possible target words,
separated by spaces. Every sentence may use the target words of the end mark, and the special words.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from nmt.core.errors import InputError
from nmt.model.interface import StepDecoder
from nmt.text.lines import TextFile
from nmt.text.tokens import split
from nmt.text.vocabulary import SourceVocabulary, Vocabulary

_REMEDY = "make the file again with python -m nmt.shortlist, the model's vocabularies and its --sos and --eos"


class Shortlist:
    """The possible target words of each source word.

    Args:
        specials: ids of the target's unknown word, start mark and end mark.
        to_all: ids of the other target words that every sentence may have.
        candidates: ids of possible target words, by the id of the source word.

    Attributes:
        places: indices of the special words in a batch's list, in the order of `specials`.
    """

    def __init__(
        self, specials: tuple[int, int, int], to_all: np.ndarray, candidates: Mapping[int, np.ndarray]
    ) -> None:
        first = list(dict.fromkeys(specials))  # two special words may be the same word
        unk, sos, eos = (first.index(one) for one in specials)
        self.places = unk, sos, eos
        self._specials, self._to_all, self._candidates = np.array(first), to_all, candidates

    def of(self, source: np.ndarray, at_least: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the target words of a batch.

        Args:
            source: int32 [time, batch]; padding is an end mark.
            at_least: least length of the list; it is filled up with words that are closed to all sentences.

        Returns:
            ids of the words, int32 [words], special words first, then the others in ascending order. And whether a word
            is closed to a sentence, which then may not use it, bool [batch, words].
        """
        nothing = np.zeros(0, np.int32)
        own = []
        for ids in source.T:
            found = [self._candidates.get(one, nothing) for one in set(ids.tolist())]
            own.append(np.setdiff1d(np.concatenate([self._to_all, *found]), self._specials))
        others = np.unique(np.concatenate(own))
        size = len(self._specials) + len(others)
        words = np.concatenate([self._specials, others, np.zeros(max(0, at_least - size), int)]).astype(np.int32)
        closed = np.ones((len(own), len(words)), bool)
        closed[:, : len(self._specials)] = False
        for row, ids in zip(closed, own, strict=True):
            row[len(self._specials) + np.searchsorted(others, ids)] = False
        return words, closed


def read_shortlist(path: str | os.PathLike[str], src_vocab: SourceVocabulary, tgt_vocab: Vocabulary) -> Shortlist:
    """Read a shortlist from a file.

    Raises:
        InputError: the file cannot be read, or does not fit the vocabularies.
    """
    file, candidates, end = TextFile(path), {}, src_vocab.padding_id
    vocabularies: tuple[SourceVocabulary, Vocabulary] = src_vocab, tgt_vocab
    known = [frozenset(vocabulary.words) for vocabulary in vocabularies]
    for number, line in enumerate(file, 1):
        words = split(line)
        for place, word in enumerate(words):
            if word not in known[place > 0]:
                raise InputError(
                    f"{file.path}, line {number}: {word!r} is not in {vocabularies[place > 0].path}, so this is "
                    f"the shortlist of another vocabulary; {_REMEDY}"
                )
        key = int(src_vocab.encode(words[:1])[0]) if words else -1
        key = end if words[:1] == [src_vocab.words[end]] else key
        if key < 0 or key in candidates:
            what = f"{words[0]!r} has a line before it" if words else "the line is empty"
            raise InputError(f"{file.path}, line {number}: {what}; {_REMEDY}")
        candidates[key] = tgt_vocab.encode(words[1:])
    if end not in candidates:
        raise InputError(
            f"{file.path} has no line for {src_vocab.words[end]!r}, with the words that are open to every sentence; "
            f"{_REMEDY}"
        )
    specials = tgt_vocab.unk_id, tgt_vocab.sos_id, tgt_vocab.eos_id
    return Shortlist(specials, candidates[end], candidates)


class ShortlistTranslator:
    """A translator over the indices of a shortlist; it has those methods of `Translator` that search calls.

    Args:
        translator: a `Translator` or `Ensemble` over the whole vocabulary.
        words: int32 [words], ids of the shortlist (see `Shortlist.of`).
        closed: bool [batch, words], whether a word is closed to a sentence.

    Attributes:
        architecture: architecture of `translator`.
        encode: method `encode` of `translator`.
    """

    def __init__(self, translator: Any, words: tf.Tensor, closed: tf.Tensor) -> None:
        self.architecture = translator.architecture
        self.encode = translator.encode
        self._translator, self._words = translator, (words, closed)

    def decoder(self, memory: Any) -> StepDecoder:
        """Return a decoder over this memory."""
        found: StepDecoder = self._translator.decoder(memory, *self._words)
        return found
