"""Vocabulary: words and their numbers (ids).

A vocabulary is a UTF-8 file with one word per line; a word's id is its line number from 0. The first three lines are
`<unk>`, which replaces all words that are not in the file, and the marks of a sentence's start and end. A file without
these three can be completed. If it is used unchanged, its first word replaces all unknown words.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically
from nmt.text.lines import TextFile

UNK = "<unk>"
SOS = "<s>"
EOS = "</s>"

_REMEDY = "make vocabularies with python -m nmt.prepare"


class SourceVocabulary(Protocol):
    """Encoder of source words to ids: a `Vocabulary` of words, or a `CharacterVocabulary`."""

    @property
    def path(self) -> str:
        """Path of the file, or a description, for messages."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words in the order of their ids; empty if there is no list of words."""

    @property
    def size(self) -> int:
        """The number of different ids."""

    @property
    def padding_id(self) -> int:
        """The id past a sentence's end."""

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the ids of the tokens, int32 [tokens, ...]."""


@dataclass(frozen=True)
class Vocabulary:
    """A fixed list of words; `words[i]` has the id i.

    Attributes:
      path: path of the file, for messages.
      words: all words.
      sos: the word that starts a target sentence.
      eos: the word that ends a sentence and pads a batch.
      specials_first: True if the first three words are `<unk>`, `sos` and `eos`. If False, `sos` and `eos` may have any
        id, and the first word replaces unknown words.
    """

    path: str
    words: tuple[str, ...]
    sos: str = SOS
    eos: str = EOS
    specials_first: bool = True
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)  # of all words but the marks
    _marks: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise InputError if a special word is missing, or a word is no token or occurs twice."""
        specials = (UNK, self.sos, self.eos)
        if self.specials_first and self.words[:3] != specials:
            raise InputError(
                f"{self.path}: the first three lines must be {' '.join(map(repr, specials))} and are "
                f"{' '.join(map(repr, self.words[:3]))}; {_REMEDY}, or set --sos and --eos to the file's marks"
            )
        ids = _numbered(self.path, self.words)
        for mark, option in ((self.sos, "sos"), (self.eos, "eos")):
            if mark not in ids:
                raise InputError(
                    f"{self.path} has no line {mark!r}, which marks sentences; add it, or set --{option} to a word of "
                    "the file, or leave --check_special_token on"
                )
        object.__setattr__(self, "_marks", (ids[self.sos], ids[self.eos]))
        object.__setattr__(self, "_ids", {word: n for word, n in ids.items() if word not in (self.sos, self.eos)})

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
        return self._marks[0]

    @property
    def eos_id(self) -> int:
        """The id of the end of a sentence."""
        return self._marks[1]

    @property
    def padding_id(self) -> int:
        """The id past a sentence's end: `eos_id`."""
        return self.eos_id

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the ids of the tokens of a text, int32 [tokens].

        An unknown token gets `unk_id`. So does a token that reads as a mark: it must not end a sentence in its midst.
        """
        lookup = self._ids.get
        return np.fromiter((lookup(token, 0) for token in tokens), dtype=np.int32, count=len(tokens))

    def count_unknown(self, tokens: Sequence[str]) -> int:
        """Count the tokens that are not in the vocabulary; `<unk>` itself and the marks count as unknown."""
        return sum(token not in self._ids or token == UNK for token in tokens)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words of the ids; an id outside the vocabulary gives `<unk>`."""
        words = self.words
        return [words[i] if 0 <= i < len(words) else UNK for i in ids]


def read_vocabulary(
    path: str | os.PathLike[str], sos: str = SOS, eos: str = EOS, *, specials_first: bool = True
) -> Vocabulary:
    """Read and check a vocabulary file.

    Raises:
      InputError: the file cannot be read or is not UTF-8, or a word has a space, is empty or occurs twice. Or the
        special words are not the first three; without `specials_first`: `sos` or `eos` is missing.
    """
    file = TextFile(path)
    return Vocabulary(file.path, tuple(file), sos, eos, specials_first)


def complete_vocabulary(
    path: str | os.PathLike[str], out_dir: str | os.PathLike[str] | None, sos: str = SOS, eos: str = EOS
) -> Vocabulary:
    """Read a vocabulary file that starts with the special words, or add them if the file has none of them.

    A completed vocabulary is written to `<out_dir>/<the file's name>`, from which it can be read again.

    Args:
      path: the vocabulary file, which is not changed.
      out_dir: directory of the completed copy, created if missing; None writes nothing, for all processes but one.
      sos: the word that starts a target sentence.
      eos: the word that ends a sentence.

    Raises:
      InputError: as `read_vocabulary`; or some special words are in other lines, or the copy would replace the file or
        cannot be written.
    """
    file = TextFile(path)
    words, specials = tuple(file), (UNK, sos, eos)
    if words[:3] == specials:
        return Vocabulary(file.path, words, sos, eos)
    ids = _numbered(file.path, words)
    misplaced = [f"{word!r} in line {ids[word] + 1}" for word in specials if word in ids]
    if misplaced:
        raise InputError(
            f"{file.path} has {', '.join(misplaced)}: the first three lines must be "
            f"{' '.join(map(repr, specials))}, or none of these may be in the file. Move or remove them, or set --sos "
            "and --eos to the file's marks"
        )
    completed = Vocabulary(file.path, (*specials, *words), sos, eos)
    if out_dir is None:
        return completed
    copy = make_directory(out_dir) / Path(file.path).name
    if copy.exists() and copy.samefile(file.path):
        raise InputError(
            f"{file.path} lacks the lines {' '.join(map(repr, specials))}, and its completed copy would replace "
            "it; choose another out_dir, or add these lines to the file"
        )
    return write_vocabulary(copy, words, sos, eos)


def checked_vocabulary(
    path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str] | None,
    sos: str = SOS,
    eos: str = EOS,
    *,
    check_special_token: bool = True,
) -> Vocabulary:
    """Read a vocabulary and add the special words if needed (`complete_vocabulary`), or read it unchanged."""
    if check_special_token:
        return complete_vocabulary(path, out_dir, sos, eos)
    return read_vocabulary(path, sos, eos, specials_first=False)


def write_vocabulary(path: str | os.PathLike[str], words: Iterable[str], sos: str = SOS, eos: str = EOS) -> Vocabulary:
    """Write the special words and then `words`, which must not contain them, to `path`; return the vocabulary.

    Raises:
      InputError: a word is empty, has a space or occurs twice, or the file cannot be written.
    """
    vocabulary = Vocabulary(os.fspath(path), (UNK, sos, eos, *words), sos, eos)
    with replace_atomically(path) as file:
        file.writelines(word + "\n" for word in vocabulary.words)
    return vocabulary


def _numbered(path: str, words: Iterable[str]) -> dict[str, int]:
    """Return the ids of the words. InputError if a word has a space, is empty or occurs twice."""
    ids: dict[str, int] = {}
    for number, word in enumerate(words):
        if not word or " " in word:
            raise InputError(
                f"{path}, line {number + 1}: {word!r} is empty or has a space, so no token can equal it; {_REMEDY}"
            )
        if word in ids:
            raise InputError(
                f"{path}, lines {ids[word] + 1} and {number + 1}: both are {word!r}; remove one or {_REMEDY}"
            )
        ids[word] = number
    return ids
