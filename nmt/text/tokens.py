"""Tokens: splits lines into tokens, and joins tokens and subwords to lines.

Text is not tokenised here: tokens and subwords are already separated by spaces. Only the space is a separator. Tabs and
other white space of Unicode are parts of tokens, as in the files' word counts.

Subword notations:
- "bpe" (Sennrich, Haddow, Birch 2016, arXiv:1508.07909): a piece ending in "@@" is joined to the next piece;
- "spm" (SentencePiece; Kudo, Richardson 2018, arXiv:1808.06226): "\u2581" is a space, and spaces are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from nmt.options.data_options import SUBWORD_OPTIONS

BPE_MARK = "@@"
SPM_SPACE = "\u2581"


def split(line: str) -> list[str]:
    """Return the tokens of a line, which are separated by one or more spaces."""
    return [token for token in line.split(" ") if token]


def join(tokens: Iterable[str], subword_option: str, eos: str) -> str:
    """Return the text of a decoder's output tokens, up to the first `eos`.

    If the last BPE piece ends in "@@" because the search has reached its length limit, it is kept without the mark.

    Raises:
      ValueError: an unknown subword option.
    """
    kept = takewhile(lambda token: token != eos, tokens)
    _check(subword_option)
    if subword_option == "bpe":
        return "".join(_unmark(token) for token in kept).rstrip(" ")
    if subword_option == "spm":
        return "".join(kept).replace(" ", "").replace(SPM_SPACE, " ").strip()
    return " ".join(kept)


def reference_text(line: str, subword_option: str) -> str:
    """Return a line of a reference file as text that translations are compared with.

    Raises:
      ValueError: an unknown subword option.
    """
    _check(subword_option)
    line = line.strip()
    if subword_option == "bpe":
        return line.replace(BPE_MARK + " ", "")
    if subword_option == "spm":
        return "".join(line.split()).replace(SPM_SPACE, " ").lstrip()
    return line


def _unmark(piece: str) -> str:
    return piece[: -len(BPE_MARK)] if piece.endswith(BPE_MARK) else piece + " "


def looks_like(words: Iterable[str]) -> str:
    """Return the subword option that fits a vocabulary: the notation in use, or "" if none or both are in use."""
    bpe = spm = False
    for word in words:
        bpe, spm = bpe or word.endswith(BPE_MARK), spm or word.startswith(SPM_SPACE)
    return {(True, False): "bpe", (False, True): "spm"}.get((bpe, spm), "")


def begins_words(pieces: Iterable[str]) -> bool:
    """Return True if a SentencePiece piece has the mark of a word's start; without marks all join to one word."""
    return any(piece.startswith(SPM_SPACE) for piece in pieces)


def _check(subword_option: str, allowed: Sequence[str] = SUBWORD_OPTIONS) -> None:
    if subword_option not in allowed:
        raise ValueError(f"subword option {subword_option!r} is none of {', '.join(map(repr, allowed))}")
