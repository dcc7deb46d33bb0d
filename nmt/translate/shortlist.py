"""Shortlists: the words that a translation may have, told from its source, in place of the whole vocabulary.

The dearest product of a step of search is the one with the output layer. With a shortlist it is over some hundred
words: those of all sentences of the batch. To each sentence only its own are open, so that what it gets does not depend
on those it shares a batch with (Jean et al. 2015, arXiv:1412.2007, section 3.3; Mi et al. 2016, arXiv:1605.03209).

A file of shortlists, which `python -m nmt.shortlist` makes, has on each line a word of the source and the words of the
target that it may become, with spaces between. Those of the end mark are open to every sentence, and so are the
special words.
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

_REMEDY = "make it anew, with python -m nmt.shortlist, the vocabularies of the model and its --sos and --eos"


class Shortlist:
    """What the words of a source may become.

    Args:
        specials: the ids of the target's unknown word and of its marks of start and end.
        to_all: ids of what any sentence may have beside them.
        candidates: ids of what a sentence may have, by the id of a word that it has.

    Attributes:
        places: where the lists have the special words, in their order.
    """

    def __init__(
        self, specials: tuple[int, int, int], to_all: np.ndarray, candidates: Mapping[int, np.ndarray]
    ) -> None:
        first = list(dict.fromkeys(specials))  # two of them may be one word
        unk, sos, eos = (first.index(one) for one in specials)
        self.places = unk, sos, eos
        self._specials, self._to_all, self._candidates = np.array(first), to_all, candidates

    def of(self, source: np.ndarray, at_least: int) -> tuple[np.ndarray, np.ndarray]:
        """The words of a batch.

        Args:
            source: int32 [time, batch]; padding is an end mark.
            at_least: how many are wanted, though some be closed to all.

        Returns:
            their ids, int32 [words], the special ones first and the others in order; and to which sentences they are
            closed, bool [batch, words].
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
    """The shortlist of a file.

    Raises:
        InputError: the file cannot be read, or does not fit the vocabularies.
    """
    file, candidates = TextFile(path), {}
    vocabularies: tuple[SourceVocabulary, Vocabulary] = src_vocab, tgt_vocab
    known = [frozenset(vocabulary.words) for vocabulary in vocabularies]
    for number, line in enumerate(file, 1):
        words = split(line)
        for place, word in enumerate(words):
            if word not in known[place > 0]:
                raise InputError(
                    f"{file.path}, line {number}: {word!r} is not in {vocabularies[place > 0].path}, so that this is "
                    f"the shortlist of another vocabulary; {_REMEDY}"
                )
        key = int(src_vocab.encode(words[:1])[0]) if words else -1
        if key < 0 or key in candidates:
            what = f"{words[0]!r} has a line before it" if words else "the line is empty"
            raise InputError(f"{file.path}, line {number}: {what}; {_REMEDY}")
        candidates[key] = tgt_vocab.encode(words[1:])
    end = src_vocab.padding_id
    if end not in candidates:
        raise InputError(
            f"{file.path} has no line of {src_vocab.words[end]!r}, whose words are open to every sentence; {_REMEDY}"
        )
    specials = tgt_vocab.unk_id, tgt_vocab.sos_id, tgt_vocab.eos_id
    return Shortlist(specials, candidates[end], candidates)


class Shortlisted:
    """What search asks of a `Translator`, of one that writes and reads places of a shortlist in place of ids.

    Args:
        translator: of all words, or what is asked as one is.
        words: int32 [words], as `Shortlist.of` has them.
        closed: bool [batch, words], likewise.

    Attributes:
        architecture: the translator's.
        encode: the translator's.
    """

    def __init__(self, translator: Any, words: tf.Tensor, closed: tf.Tensor) -> None:
        self.architecture = translator.architecture
        self.encode = translator.encode
        self._translator, self._words = translator, (words, closed)

    def decoder(self, memory: Any) -> StepDecoder:
        """A decoder over this memory."""
        found: StepDecoder = self._translator.decoder(memory, *self._words)
        return found
