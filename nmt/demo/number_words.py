"""Integers from 0 to 9999 as English and German words.

English follows British usage, "two thousand three hundred and forty-five". German writes one word with the ones before
the tens, "zweitausenddreihundertfünfundvierzig".
"""

from __future__ import annotations

LARGEST = 9999


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_ENGLISH = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_ENGLISH_TENS = _words("twenty thirty forty fifty sixty seventy eighty ninety")
_ENGLISH_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}

_GERMAN = _words(
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn "
    "achtzehn neunzehn"
)
_GERMAN_TENS = _words("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig")
_GERMAN_ORDINALS = {1: "erst", 3: "dritt", 7: "siebt", 8: "acht"}


def english_number(n: int) -> str:
    """Return `n` as English words: 101 is "one hundred and one".

    Raises:
      ValueError: `n` is not in 0..9999.
    """
    _check(n, 0, LARGEST)
    if n < 20:
        return _ENGLISH[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return _ENGLISH_TENS[tens - 2] + (f"-{_ENGLISH[ones]}" if ones else "")
    unit, name = (100, "hundred") if n < 1000 else (1000, "thousand")
    head, rest = divmod(n, unit)
    text = f"{_ENGLISH[head]} {name}"
    if not rest:
        return text
    return f"{text}{' and' if rest < 100 else ''} {english_number(rest)}"


def german_number(n: int) -> str:
    """Return `n` as one German word: 21 is "einundzwanzig", 101 is "einhunderteins".

    Raises:
      ValueError: `n` is not in 0..9999.
    """
    _check(n, 0, LARGEST)
    if n < 20:
        return _GERMAN[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return (f"{_german_head(ones)}und" if ones else "") + _GERMAN_TENS[tens - 2]
    unit, name = (100, "hundert") if n < 1000 else (1000, "tausend")
    head, rest = divmod(n, unit)
    return f"{_german_head(head)}{name}" + (german_number(rest) if rest else "")


def english_ordinal(n: int) -> str:
    """Return the ordinal number `n` in English: 21 is "twenty-first".

    Raises:
      ValueError: `n` is not in 1..99.
    """
    _check(n, 1, 99)
    head, hyphen, last = english_number(n).rpartition("-")
    if last not in _ENGLISH_ORDINALS:
        last = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return head + hyphen + _ENGLISH_ORDINALS.get(last, last)


def german_ordinal(n: int) -> str:
    """Return the ordinal number `n` in German without its ending "e" or "en": 21 is "einundzwanzigst".

    Raises:
      ValueError: `n` is not in 1..99.
    """
    _check(n, 1, 99)
    return _GERMAN_ORDINALS.get(n) or german_number(n) + ("t" if n < 20 else "st")


def english_year(n: int) -> str:
    """Return a year as it is spoken in English: 1942 is "nineteen forty-two".

    Raises:
      ValueError: `n` is not in 1110..1999, or is one of the first ten years of a century, which have another form.
    """
    century, year = _check_year(n)
    return f"{english_number(century)} {english_number(year)}"


def german_year(n: int) -> str:
    """Return a year as it is spoken in German: 1942 is "neunzehnhundertzweiundvierzig".

    Raises:
      ValueError: as for `english_year`.
    """
    century, year = _check_year(n)
    return f"{german_number(century)}hundert{german_number(year)}"


def _german_head(n: int) -> str:
    return "ein" if n == 1 else german_number(n)


def _check(n: int, low: int, high: int) -> None:
    if not low <= n <= high:
        raise ValueError(f"{n} is not in {low}..{high}")


def _check_year(n: int) -> tuple[int, int]:
    _check(n, 1110, 1999)
    if n % 100 < 10:
        raise ValueError(f"{n} is one of the first ten years of a century")
    return divmod(n, 100)
