"""Capital letters: what is done with them before training, and with the translations after it.

- "keep": nothing;
- "lower": all text is in lower case, and so are the translations;
- "marked": a word with a capital letter is written in lower case behind a token that says so. The words of a sentence's
  beginning and of a heading are then known words, and translations get their capitals back.
"""

from __future__ import annotations

from collections.abc import Iterator

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
