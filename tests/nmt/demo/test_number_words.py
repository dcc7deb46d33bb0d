"""nmt.demo.number_words: numbers written as words, with expected values by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nmt.demo.number_words import (
    english_number,
    english_ordinal,
    english_year,
    german_number,
    german_ordinal,
    german_year,
)


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (7, "seven", "sieben"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (17, "seventeen", "siebzehn"),
        (20, "twenty", "zwanzig"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (66, "sixty-six", "sechsundsechzig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (100, "one hundred", "einhundert"),
        (101, "one hundred and one", "einhunderteins"),
        (116, "one hundred and sixteen", "einhundertsechzehn"),
        (999, "nine hundred and ninety-nine", "neunhundertneunundneunzig"),
        (1000, "one thousand", "eintausend"),
        (1001, "one thousand and one", "eintausendeins"),
        (2100, "two thousand one hundred", "zweitausendeinhundert"),
        (2345, "two thousand three hundred and forty-five", "zweitausenddreihundertfünfundvierzig"),
        (9999, "nine thousand nine hundred and ninety-nine", "neuntausendneunhundertneunundneunzig"),
    ],
)
def test_numbers(n: int, english: str, german: str) -> None:
    assert english_number(n) == english
    assert german_number(n) == german


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (1, "first", "erst"),
        (2, "second", "zweit"),
        (3, "third", "dritt"),
        (4, "fourth", "viert"),
        (5, "fifth", "fünft"),
        (7, "seventh", "siebt"),
        (8, "eighth", "acht"),
        (9, "ninth", "neunt"),
        (12, "twelfth", "zwölft"),
        (13, "thirteenth", "dreizehnt"),
        (20, "twentieth", "zwanzigst"),
        (23, "twenty-third", "dreiundzwanzigst"),
        (31, "thirty-first", "einunddreißigst"),
    ],
)
def test_ranks(n: int, english: str, german: str) -> None:
    assert english_ordinal(n) == english
    assert german_ordinal(n) == german


def test_years() -> None:
    assert english_year(1942) == "nineteen forty-two"
    assert german_year(1942) == "neunzehnhundertzweiundvierzig"
    assert english_year(1110) == "eleven ten"
    assert german_year(1110) == "elfhundertzehn"


def test_all_numbers_have_names_of_their_own() -> None:
    assert len({english_number(n) for n in range(10_000)}) == 10_000
    assert len({german_number(n) for n in range(10_000)}) == 10_000


@pytest.mark.parametrize(
    ("function", "n"),
    [
        (english_number, -1),
        (german_number, 10_000),
        (english_ordinal, 0),
        (german_ordinal, 100),
        (english_year, 2000),
        (german_year, 1905),
    ],
)
def test_other_numbers_are_refused(function: Callable[[int], str], n: int) -> None:
    with pytest.raises(ValueError, match=str(n)):
        function(n)
