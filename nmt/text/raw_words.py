"""Raw words: one form for each character, punctuation split off and attached again, and capital letters.

The tools of Moses (library sacremoses) split off punctuation. What is done with capital letters:

- "keep": nothing;
- "lower": all text is in lower case, and so are the translations;
- "marked": a word with a capital letter is written in lower case behind a token that says so. The words of a sentence's
  beginning and of a heading are then known words, and translations get their capitals back.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Callable, Iterator
from typing import Any

from nmt.core.errors import InputError
from nmt.text.tokens import SPM_SPACE

CASINGS = ("keep", "lower", "marked")
FIRST, ALL = "\u21e7", "\u21ea"  # the next word begins with a capital letter; all its letters are capital


def prepared(words: str, casing: str) -> str:
    """Return a line of words, separated by spaces, as the model reads it.

    >>> prepared("NASA is in Texas .", "marked")
    '⇪ nasa is in ⇧ texas .'
    """
    if casing == "lower":
        return words.lower()
    return " ".join(_marked(words.split(" "))) if casing == "marked" else words


def restored(words: str, casing: str) -> str:
    """Return a line of a model's words with capital letters; a mark without a word after it is left out.

    >>> restored("⇪ nasa is in ⇧ texas .", "marked")
    'NASA is in Texas .'
    """
    return " ".join(_unmarked(words.split(" "))) if casing == "marked" else words


def _marked(words: list[str]) -> Iterator[str]:
    for word in words:
        lower = word.lower()
        # A word of one letter begins with a capital letter; "İ" and other letters do not come back from lower case.
        if word != lower and _first(lower) == word:
            yield f"{FIRST} {lower}"
        elif word != lower and lower.upper() == word:
            yield f"{ALL} {lower}"
        else:
            yield word


def _unmarked(words: list[str]) -> Iterator[str]:
    mark = ""
    for word in words:
        if word in (FIRST, ALL):
            mark = word
            continue
        yield _first(word) if mark == FIRST else word.upper() if mark == ALL else word
        mark = ""


def _first(word: str) -> str:
    return word[:1].upper() + word[1:]


@functools.cache
def tokenizer(language: str, escape: bool = False) -> Callable[[str], str]:
    """Return a function that splits a line into words, separated by single spaces.

    Args:
      language: suffix of the language's files, such as "de"; its abbreviations keep their full stops.
      escape: whether characters such as `&` and `|` are written as `&amp;` and `&#124;`.

    Raises:
      InputError: sacremoses is not installed.
    """
    split = _library().MosesTokenizer(code(language))
    return lambda line: str(split.tokenize(line, return_str=True, escape=escape))


@functools.cache
def detokenizer(language: str) -> Callable[[str], str]:
    """Return a function that makes text of a line of words.

    Raises:
      InputError: sacremoses is not installed.
    """
    join = _library().MosesDetokenizer(code(language))
    return lambda line: str(join.detokenize(line.split(" "), return_str=True, unescape=False))


@functools.cache
def punctuation_normalizer(language: str) -> Callable[[str], str]:
    """Return a function that writes quotes, dashes and spaces in one way.

    Raises:
      InputError: sacremoses is not installed.
    """
    normalizer = _library().MosesPunctNormalizer(code(language))
    return lambda line: str(normalizer.normalize(line))


def code(suffix: str) -> str:
    """Return the code of the language of files with a suffix; for an unknown one the library has English rules.

    >>> code("tok.pt-BR")
    'pt'
    """
    return re.split("[-_]", suffix.rpartition(".")[2])[0].lower()


def _library() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise InputError("this text is split into words by sacremoses: pip install sacremoses") from None
    return sacremoses


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
