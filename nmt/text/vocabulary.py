"""Vocabulary: words and their numbers (ids).

A vocabulary is a UTF-8 file with one word a line; a word's id is its line number from 0. The first three lines are
`<unk>`, which stands for all words that are not in the file, and the marks of a sentence's start and end. A file that
has none of the three can be completed; in one that is taken as it is, the first word stands for all unknown ones.
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
    """What numbers the words of a source: a `Vocabulary`, or something that looks into the words."""

    @property
    def path(self) -> str:
        """Where it came from, for messages."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words in the order of their ids, if it has a list of them."""

    @property
    def size(self) -> int:
        """How many different ids there are."""

    @property
    def padding_id(self) -> int:
        """What stands past a sentence's end."""

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """The ids of the tokens, int32 [tokens, ...]."""


@dataclass(frozen=True)
class Vocabulary:
    """A fixed list of words; `words[i]` has the id i.

    Attributes:
      path: the file it came from, for messages.
      words: all words.
      sos: the word that starts a target sentence.
      eos: the word that ends a sentence and pads a batch.
      specials_first: whether the first three words are `<unk>`, `sos` and `eos`. If not, `sos` and `eos` are anywhere,
        and the first word is the unknown one.
    """

    path: str
    words: tuple[str, ...]
    sos: str = SOS
    eos: str = EOS
    specials_first: bool = True
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise InputError unless the special words are there and every word is one token that occurs once."""
        specials = (UNK, self.sos, self.eos)
        if self.specials_first and self.words[:3] != specials:
            raise InputError(
                f"{self.path}: the first three lines must be {' '.join(map(repr, specials))} and are "
                f"{' '.join(map(repr, self.words[:3]))}; {_REMEDY}, or set --sos and --eos as the file has them"
            )
        ids = _numbered(self.path, self.words)
        for mark, option in ((self.sos, "sos"), (self.eos, "eos")):
            if mark not in ids:
                raise InputError(
                    f"{self.path} has no line {mark!r}, which marks sentences; add it, set --{option} to a word that "
                    "the file has, or leave --check_special_token on"
                )
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
        return self._ids[self.sos]

    @property
    def eos_id(self) -> int:
        """The id of the end of a sentence."""
        return self._ids[self.eos]

    @property
    def padding_id(self) -> int:
        """What stands past a sentence's end: `eos_id`."""
        return self.eos_id

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """The ids of the tokens, int32 [tokens]; an unknown token gets `unk_id`."""
        lookup = self._ids.get
        return np.fromiter((lookup(token, 0) for token in tokens), dtype=np.int32, count=len(tokens))

    def count_unknown(self, tokens: Sequence[str]) -> int:
        """How many of the tokens it lacks; `<unk>` itself counts among them."""
        return sum(token not in self._ids or token == UNK for token in tokens)

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of the ids; an id outside the vocabulary gives `<unk>`."""
        words = self.words
        return [words[i] if 0 <= i < len(words) else UNK for i in ids]


def read_vocabulary(
    path: str | os.PathLike[str], sos: str = SOS, eos: str = EOS, *, specials_first: bool = True
) -> Vocabulary:
    """Read and check a vocabulary file.

    Raises:
      InputError: the file cannot be read, is not UTF-8, does not start with `<unk>`, `sos`, `eos` (or, without
        `specials_first`, lacks one of the latter two), or has a word that no token can equal, or one word twice.
    """
    file = TextFile(path)
    return Vocabulary(file.path, tuple(file), sos, eos, specials_first)


def complete_vocabulary(
    path: str | os.PathLike[str], out_dir: str | os.PathLike[str] | None, sos: str = SOS, eos: str = EOS
) -> Vocabulary:
    """Read a vocabulary file that starts with the special words or has none of them; then they are put first.

    What becomes of the latter is written to `<out_dir>/<the file's name>`, from which the vocabulary can be read again.

    Args:
      path: the file, which is left as it is.
      out_dir: made if missing; None writes nothing, which all processes but one do.
      sos: the word that starts a target sentence.
      eos: the word that ends a sentence.

    Raises:
      InputError: as `read_vocabulary`; or some of the special words are in other lines, or the copy would replace the
        file, or cannot be written.
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
            f"{' '.join(map(repr, specials))}, or none of these may be in the file; move or remove them, or set --sos "
            "and --eos as the file has them"
        )
    completed = Vocabulary(file.path, (*specials, *words), sos, eos)
    if out_dir is None:
        return completed
    copy = make_directory(out_dir) / Path(file.path).name
    if copy.exists() and copy.samefile(file.path):
        raise InputError(
            f"{file.path} lacks the lines {' '.join(map(repr, specials))}, and its copy that has them would replace "
            "it; choose another out_dir, or put them there yourself"
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
    """A vocabulary that begins with the special words or gets them (`complete_vocabulary`), or one taken as it is."""
    if check_special_token:
        return complete_vocabulary(path, out_dir, sos, eos)
    return read_vocabulary(path, sos, eos, specials_first=False)


def write_vocabulary(path: str | os.PathLike[str], words: Iterable[str], sos: str = SOS, eos: str = EOS) -> Vocabulary:
    """Write the special words and then `words`, which hold none of them, to `path`; return the vocabulary.

    Raises:
      InputError: a word is empty, has a space or occurs twice, or the file cannot be written.
    """
    vocabulary = Vocabulary(os.fspath(path), (UNK, sos, eos, *words), sos, eos)
    with replace_atomically(path) as file:
        file.writelines(word + "\n" for word in vocabulary.words)
    return vocabulary


def _numbered(path: str, words: Iterable[str]) -> dict[str, int]:
    """The ids of the words; InputError unless every word is one token that occurs once."""
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
