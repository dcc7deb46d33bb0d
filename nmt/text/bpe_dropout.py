"""BPE-dropout: words cut anew in each epoch, with some joints left out (Provilkov et al. 2020, algorithm 1).

The text stands as byte pair encoding has cut it. A line's words are put together, and joined again from their
characters, where each joint that could be the next one is left out with some probability, each time it comes up. What
is drawn is a function of seed, epoch, side and line: all ranks agree on it, and a run that goes on draws what the whole
one does.
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

_END = "</w>"  # of a word, as subword-nmt writes it, behind its last character
_CHECKED_LINES = 200
_REMEDY = "give the bpe.codes that nmt.prepare wrote beside this text"


class Joints:
    """The joints of byte pair encoding in the order in which they were learnt; cuts as library subword-nmt does.

    Args:
      lines: of its file of codes, of version 0.2: two symbols each.
      path: for messages.

    Attributes:
      path: as given.
      checksum: tells them from others.

    Raises:
      InputError: the lines are no such file's.
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
        """The tokens that stand for the symbols of all joints, before and after them."""
        return {_token(symbol) for left, right in self._ranks for symbol in (left, right, left + right)}

    def cut(self, word: str, dropped: Callable[[], bool] | None = None) -> list[str]:
        """The tokens of a word, all but the last ending in "@@"; `dropped` tells whether a joint is left out."""
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
    """The tokens of words that no joint is left of."""
    return {_token(symbol) for word in words for symbol in (*word[:-1], word[-1] + _END)}


def _token(symbol: str) -> str:
    return symbol.removesuffix(_END) if symbol.endswith(_END) else symbol + "@@"


def read_joints(path: str | os.PathLike[str]) -> Joints:
    """The joints in a file.

    Raises:
      InputError: it cannot be read, or is of another kind.
    """
    try:
        return Joints(Path(path).read_text("utf-8").rstrip("\n").split("\n"), os.fspath(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--bpe_codes={path} cannot be read ({error}): {_REMEDY}") from None


def check_fit(joints: Joints, text: TextFile, vocabulary: Vocabulary | None) -> None:
    """Checks that a text was cut by these joints, and that a vocabulary, if any, has what is left without some.

    Raises:
      InputError: more than a hundredth of some lines would be cut otherwise, or units are missing.
    """
    numbers = range(0, len(text), -(-len(text) // _CHECKED_LINES))
    cut = DrawnText(text, joints, 0.0, ())
    others = [number for number in numbers if split(cut.line(number)) != split(text.line(number))]
    if 100 * len(others) > len(numbers):
        raise InputError(
            f"{joints.path} does not cut {text.path} as it is cut (line {others[0] + 1}: {text.line(others[0])!r} "
            f"would be {cut.line(others[0])!r}): {_REMEDY}; the subwords that a model writes are often others: have it "
            "translate into words, and nmt.prepare cut these (--apply)"
        )
    missing = sorted(joints.units - set(vocabulary.words)) if vocabulary else []
    if vocabulary and missing:
        raise InputError(
            f"{vocabulary.path} lacks {len(missing)} of the subwords that {joints.path} can make, such as "
            f"{missing[0]!r}, and BPE-dropout would make them unknown words: make it with python -m nmt.prepare "
            "--bpe=N --all_subwords"
        )


class DrawnText(TextFile):
    """A text whose lines are cut by chance; its lengths are those of the text as it stands.

    Args:
      text: cut by the same joints, which shares its pages with this one.
      joints: of its words.
      rate: the probability that a joint is left out, each time.
      key: what the draws are a function of, with the line's number: seed, epoch, side.
    """

    def __init__(self, text: TextFile, joints: Joints, rate: float, key: Sequence[int]) -> None:
        vars(self).update(vars(text))
        self._joints, self._rate, self._key = joints, rate, tuple(key)

    def line(self, number: int) -> str:
        """Line `number`, from 0, its words cut anew."""
        # The same with all versions of Python, by contract.
        draw = random.Random(" ".join(map(str, (*self._key, number)))).random
        rate, cut = self._rate, self._joints.cut
        dropped = (lambda: draw() < rate) if rate else None
        words = join(split(super().line(number)), "bpe", "").split(" ")
        return " ".join(token for word in words if word for token in ([word] if word == UNK else cut(word, dropped)))
