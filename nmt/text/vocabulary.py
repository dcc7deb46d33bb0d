"""Words and their numbers.

A vocabulary is a UTF-8 file with one word a line; a word's id is its line number from 0. The first three lines are
`<unk>`, which stands for all words that are not in the file, and the marks of a sentence's start and end.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from nmt.errors import InputError
from nmt.files import replace_atomically
from nmt.text.lines import TextFile

UNK = "<unk>"
SOS = "<s>"
EOS = "</s>"

_REMEDY = "make vocabularies with python -m nmt.prepare"


@dataclass(frozen=True)
class Vocabulary:
    """A fixed list of words; `words[i]` has the id i.

    Attributes:
      path: the file it came from, for messages.
      words: all words, `<unk>`, `sos` and `eos` first.
      sos: the word that starts a target sentence.
      eos: the word that ends a sentence and pads a batch.
    """

    path: str
    words: tuple[str, ...]
    sos: str = SOS
    eos: str = EOS
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise InputError unless the special words come first and every word is one token that occurs once."""
        specials = (UNK, self.sos, self.eos)
        if self.words[:3] != specials:
            hint = " (it begins with a byte order mark)" if self.words[:1] == (f"\ufeff{UNK}",) else ""
            raise InputError(
                f"{self.path}: the first three lines must be {' '.join(map(repr, specials))} and are "
                f"{' '.join(map(repr, self.words[:3]))}{hint}; {_REMEDY}, or set --sos and --eos as the file has them"
            )
        ids: dict[str, int] = {}
        for number, word in enumerate(self.words):
            if not word or " " in word:
                raise InputError(
                    f"{self.path}, line {number + 1}: {word!r} is empty or has a space, so no token can "
                    f"equal it; {_REMEDY}"
                )
            if word in ids:
                raise InputError(
                    f"{self.path}, lines {ids[word] + 1} and {number + 1}: both are {word!r}; remove one or {_REMEDY}"
                )
            ids[word] = number
        object.__setattr__(self, "_ids", ids)

    @property
    def size(self) -> int:
        """The number of words, the special ones included."""
        return len(self.words)

    @property
    def unk_id(self) -> int:
        """The id of all words that are not in the vocabulary."""
        return 0

    @property
    def sos_id(self) -> int:
        """The id of the start of a sentence."""
        return 1

    @property
    def eos_id(self) -> int:
        """The id of the end of a sentence."""
        return 2

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """The ids of the tokens, int32 [tokens]; an unknown token gets `unk_id`."""
        lookup = self._ids.get
        return np.fromiter((lookup(token, 0) for token in tokens), dtype=np.int32, count=len(tokens))

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of the ids; an id outside the vocabulary gives `<unk>`."""
        words = self.words
        return [words[i] if 0 <= i < len(words) else UNK for i in ids]


def read_vocabulary(path: str | os.PathLike[str], sos: str = SOS, eos: str = EOS) -> Vocabulary:
    """Read and check a vocabulary file.

    Raises:
      InputError: the file cannot be read, is not UTF-8, does not start with `<unk>`, `sos`, `eos`, or has a word that
        no token can equal, or one word twice.
    """
    file = TextFile(path)
    return Vocabulary(file.path, tuple(file), sos, eos)


def write_vocabulary(path: str | os.PathLike[str], words: Iterable[str], sos: str = SOS, eos: str = EOS) -> Vocabulary:
    """Write the special words and then `words`, which hold none of them, to `path`; return the vocabulary.

    Raises:
      InputError: a word is empty, has a space or occurs twice, or the file cannot be written.
    """
    vocabulary = Vocabulary(os.fspath(path), (UNK, sos, eos, *words), sos, eos)
    with replace_atomically(path) as file:
        file.writelines(word + "\n" for word in vocabulary.words)
    return vocabulary
