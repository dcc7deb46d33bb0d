"""Tokens: lines to tokens and back, subwords joined.

Nothing is tokenised here: text comes with its tokens separated by spaces, and subword text with its pieces so. Only
the space separates; tabs and the other blanks of Unicode are parts of tokens, as they are in the files' word counts.

Subword notations:
- "bpe" (Sennrich, Haddow, Birch 2016, arXiv:1508.07909): a piece ending in "@@" is glued to the next one;
- "spm" (SentencePiece; Kudo, Richardson 2018, arXiv:1808.06226): "\u2581" stands for a space, spaces for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

SUBWORD_OPTIONS = ("", "bpe", "spm")

_BPE_MARK = "@@"
_SPM_SPACE = "\u2581"


def split(line: str) -> list[str]:
    """The tokens of a line: what stands between runs of spaces."""
    return [token for token in line.split(" ") if token]


def join(tokens: Iterable[str], subword_option: str, eos: str) -> str:
    """The text of a decoder's output tokens, up to the first `eos`.

    A last BPE piece that still waits for its continuation is kept without its mark: a search cut short by its length
    limit loses no text.

    Raises:
      ValueError: an unknown subword option.
    """
    kept = takewhile(lambda token: token != eos, tokens)
    _check(subword_option)
    if subword_option == "bpe":
        return "".join(_unmark(token) for token in kept).rstrip(" ")
    if subword_option == "spm":
        return "".join(kept).replace(" ", "").replace(_SPM_SPACE, " ").strip()
    return " ".join(kept)


def reference_text(line: str, subword_option: str) -> str:
    """A line of a reference file as the text that translations are compared with.

    Raises:
      ValueError: an unknown subword option.
    """
    _check(subword_option)
    line = line.strip()
    if subword_option == "bpe":
        return line.replace(_BPE_MARK + " ", "")
    if subword_option == "spm":
        return "".join(line.split()).replace(_SPM_SPACE, " ").lstrip()
    return line


def _unmark(piece: str) -> str:
    return piece[: -len(_BPE_MARK)] if piece.endswith(_BPE_MARK) else piece + " "


def looks_like(words: Iterable[str]) -> str:
    """The subword option that a vocabulary's words call for: that whose marks some have, if none has the other's."""
    bpe = spm = False
    for word in words:
        bpe, spm = bpe or word.endswith(_BPE_MARK), spm or word.startswith(_SPM_SPACE)
    return {(True, False): "bpe", (False, True): "spm"}.get((bpe, spm), "")


def begins_words(pieces: Iterable[str]) -> bool:
    """Whether some pieces of SentencePiece have the mark before a word, without which all are joined into one."""
    return any(piece.startswith(_SPM_SPACE) for piece in pieces)


def _check(subword_option: str, allowed: Sequence[str] = SUBWORD_OPTIONS) -> None:
    if subword_option not in allowed:
        raise ValueError(f"subword option {subword_option!r} is none of {', '.join(map(repr, allowed))}")
