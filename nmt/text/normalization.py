"""Normalisation of raw text: one form for each character, and no characters that nobody sees."""

from __future__ import annotations

import re
import unicodedata

from nmt.text.casing import ALL, FIRST
from nmt.text.moses import punctuation_normalizer
from nmt.text.tokens import SPM_SPACE

NORMALIZATIONS = ("none", "nfc", "nfkc", "moses")

_NOT_PLAIN = re.compile(r"[^ -~]| {2}|^ | $")
# Zero width joiners and non-joiners belong to words (Persian, Indian scripts, emoji). Other characters of Unicode's
# category Cf, such as marks of direction, soft hyphens and zero width spaces, do not.
_JOINERS = "\u200c\u200d"


def normalized(line: str, normalization: str, language: str) -> str:
    """Return a line in a normal form.

    Control characters and line breaks of Unicode become spaces, characters without a width are removed, and words are
    separated by single spaces. So are characters that have a meaning in prepared text: the marks of capital letters,
    and SentencePiece's space.

    Args:
      line: raw text.
      normalization: "none", which changes nothing; "nfc" or "nfkc", a normal form of Unicode; "moses", NFC with one
        form of quotes, dashes and spaces.
      language: code of the language, for "moses".
    """
    if normalization == "none" or (normalization != "moses" and not _NOT_PLAIN.search(line)):
        return line
    form = unicodedata.normalize("NFKC" if normalization == "nfkc" else "NFC", line)
    if normalization == "moses":
        form = punctuation_normalizer(language)(form)
    return " ".join("".join(map(_visible, form)).split())


def _visible(character: str) -> str:
    if " " < character <= "~":
        return character
    category = unicodedata.category(character)
    if category in ("Cc", "Zl", "Zp", "Zs") or character in (FIRST, ALL, SPM_SPACE):
        return " "
    return "" if category == "Cf" and character not in _JOINERS else character
