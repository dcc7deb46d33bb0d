"""BPE-dropout: words are split anew in each epoch, with some merges skipped (Provilkov et al. 2020, algorithm 1).

The text is split by byte pair encoding already. A line's subwords are joined to words, and these are split again,
starting from characters. In each merge step, each possible merge is skipped with some probability. The random numbers
are a function of seed, epoch, side and line. All ranks therefore agree, and a continued run draws the same numbers as
an uninterrupted run.
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nmt.core.errors import InputError
from nmt.text.lines import TextFile
from nmt.text.tokens import join, split
from nmt.text.vocabulary import UNK, Vocabulary

_END = "</w>"  # subword-nmt's mark after the last character of a word
_CHECKED_LINES = 200
_REMEDY = "give the bpe.codes that nmt.prepare wrote together with this text"


class Merges:
    """The merges of byte pair encoding in the order in which they were learnt; splits words as library subword-nmt.

    Args:
      lines: lines of the file of codes, version 0.2, with two symbols each.
      path: path of the file, for messages.

    Attributes:
      path: path of the file, for messages.
      checksum: CRC-32 of the merges.

    Raises:
      InputError: the lines are not those of such a file.
    """

    def __init__(self, lines: Iterable[str], path: str) -> None:
        first, *pairs = (line.strip("\r\n ") for line in lines)
        if first != "#version: 0.2" or not all(len(pair.split(" ")) == 2 for pair in pairs):
            raise InputError(f"{path} is no file of byte pair codes of version 0.2: {_REMEDY}")
        self.path = path
        self.checksum = zlib.crc32("\n".join(pairs).encode())
        self._ranks: dict[tuple[str, str], int] = {}
        for rank, pair in enumerate(pairs):
            left, right = pair.split(" ")
            self._ranks.setdefault((left, right), rank)

    @property
    def units(self) -> set[str]:
        """The tokens of all symbols, before and after each merge."""
        return {_token(symbol) for left, right in self._ranks for symbol in (left, right, left + right)}

    def cut(self, word: str, dropped: Callable[[], bool] | None = None) -> list[str]:
        """Return the tokens of a word, all but the last ending in "@@"; `dropped` returns True to skip a merge."""
        symbols = [*word[:-1], word[-1] + _END]
        while len(symbols) > 1:
            found = [
                (self._ranks[pair], place)
                for place, pair in enumerate(zip(symbols, symbols[1:], strict=False))
                if pair in self._ranks and not (dropped and dropped())
            ]
            if not found:
                break
            best = min(found)[0]
            joined, start = [], 0
            for rank, place in found:
                if rank == best and place >= start:
                    joined += [*symbols[start:place], symbols[place] + symbols[place + 1]]
                    start = place + 2
            symbols = joined + symbols[start:]
        return [_token(symbol) for symbol in symbols]


def characters(words: Iterable[str]) -> set[str]:
    """Return the tokens of words that are split into characters."""
    return {_token(symbol) for word in words for symbol in (*word[:-1], word[-1] + _END)}


def _token(symbol: str) -> str:
    return symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + "@@"


def read_merges(path: str | os.PathLike[str]) -> Merges:
    """Read the merges from a file of codes.

    Raises:
      InputError: the file cannot be read, or is no file of codes.
    """
    try:
        return Merges(Path(path).read_text("utf-8").rstrip("\n").split("\n"), os.fspath(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--bpe_codes={path} cannot be read ({error}): {_REMEDY}") from None


def check_fit(merges: Merges, text: TextFile, vocabulary: Vocabulary | None) -> None:
    """Check that a text was split with these merges, and that a vocabulary, if given, has all subwords they can make.

    Raises:
      InputError: more than a hundredth of the checked lines would be split differently, or subwords are missing.
    """
    numbers = range(0, len(text), -(-len(text) // _CHECKED_LINES))
    cut = BPEDropoutText(text, merges, 0.0, ())
    others = [number for number in numbers if split(cut.line(number)) != split(text.line(number))]
    if 100 * len(others) > len(numbers):
        raise InputError(
            f"{merges.path} does not cut {text.path} as it is cut (line {others[0] + 1}: {text.line(others[0])!r} "
            f"would be {cut.line(others[0])!r}): {_REMEDY}. If a model wrote the text, its subwords often differ. "
            "Then let it write words, and split these with nmt.prepare --apply"
        )
    missing = sorted(merges.units - set(vocabulary.words)) if vocabulary else []
    if vocabulary and missing:
        raise InputError(
            f"{vocabulary.path} lacks {len(missing)} of the subwords that {merges.path} can make, such as "
            f"{missing[0]!r}. With BPE-dropout they would be unknown words. Make the vocabulary with python -m "
            "nmt.prepare --bpe=N --all_subwords"
        )


class BPEDropoutText(TextFile):
    """A text whose lines are split at random; `lengths` are those of the original text.

    Args:
      text: text that was split with the same merges; both objects share its memory.
      joints: the merges of its words.
      rate: probability that a merge is skipped, each time.
      key: seed, epoch and side; together with the line's number they determine the random numbers.
    """

    def __init__(self, text: TextFile, merges: Merges, rate: float, key: Sequence[int]) -> None:
        vars(self).update(vars(text))
        self._joints, self._rate, self._key = merges, rate, tuple(key)

    def line(self, number: int) -> str:
        """Return line `number`, from 0, with its words split anew."""
        # Python guarantees that `random` gives the same numbers in all versions.
        draw = random.Random(" ".join(map(str, (*self._key, number)))).random
        rate, cut = self._rate, self._joints.cut
        dropped = (lambda: draw() < rate) if rate else None
        words = join(split(super().line(number)), "bpe", "").split(" ")
        return " ".join(token for word in words if word for token in ([word] if word == UNK else cut(word, dropped)))
