"""An English-German corpus made by rule: counts, prices, dates and clock times, spelled out, in simple sentences.

The text is tokenised, lower-cased, one sentence a line. It is small
enough to be learnt in minutes and cannot be solved by copying or by a word list: German writes a number as one word,
turns tens and ones round, and puts verbs elsewhere.

The held-out parts, dev and test, share no sentence and no number with the training part; days, years, hours and
minutes count as numbers. What a number is made of (digits up to twenty, tens, round hundreds) is always for training,
so that the numbers held out can be understood from their parts. For the same reason English numbers come without
hyphens: "forty-five" is the two tokens "forty five".
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically
from nmt.demo.number_words import (
    LARGEST,
    english_number,
    english_ordinal,
    english_year,
    german_number,
    german_ordinal,
    german_year,
)

HELD_OUT_PAIRS = 500  # in each of dev and test

# The share of held-out values among the numbers from 101 on.
_HELD_OUT_SHARE = 0.15
# Numbers of one to four digits are drawn in these proportions.
_RANGES = ((0, 20), (21, 99), (100, 999), (1000, LARGEST))
_RANGE_WEIGHTS = (15, 25, 35, 25)


class Pair(NamedTuple):
    """A sentence and its translation."""

    english: str
    german: str


class Phrase(NamedTuple):
    """What fills a slot of a sentence: the English text, and German forms that a template chooses from."""

    en: str
    de: str
    acc: str = ""  # accusative; for a rank or date, the form after "der" is `de` and that after "am" is `acc`
    past: str = ""  # of a clock time: minutes first


def _phrases(text: str) -> tuple[Phrase, ...]:
    return tuple(Phrase(*entry.strip().split("/")) for entry in text.split(";"))


_WORDS: dict[str, tuple[Phrase, ...]] = {
    "goods": _phrases(
        "apples/äpfel; books/bücher; eggs/eier; tickets/karten; letters/briefe; bottles/flaschen; chairs/stühle; "
        "roses/rosen; cups/tassen; stamps/briefmarken"
    ),
    "item": _phrases(
        "table/der tisch/den tisch; lamp/die lampe/die lampe; book/das buch/das buch; chair/der stuhl/den stuhl; "
        "clock/die uhr/die uhr; bicycle/das fahrrad/das fahrrad; coat/der mantel/den mantel; bag/die tasche/die tasche"
    ),
    "person": _phrases(
        "he/er; she/sie; my brother/mein bruder; our teacher/unsere lehrerin; "
        "the doctor/der arzt; his friend/sein freund"
    ),
    "place": _phrases(
        "in the garden/im garten; in the house/im haus; in the city/in der stadt; in the kitchen/in der küche; "
        "on the ship/auf dem schiff"
    ),
    "when": _phrases("yesterday/gestern; today/heute; last week/letzte woche; on monday/am montag"),
    "event": _phrases("the concert/das konzert; the party/das fest; the exam/die prüfung; the meeting/die sitzung"),
    "vehicle": _phrases("train/der zug; bus/der bus; ship/das schiff"),
    "building": _phrases("church/die kirche; bridge/die brücke; castle/das schloss; school/die schule"),
    "side": _phrases("left/links; right/rechts"),
    "month": _phrases(
        "january/januar; february/februar; march/märz; april/april; may/mai; june/juni; july/juli; august/august; "
        "september/september; october/oktober; november/november; december/dezember"
    ),
}

TEMPLATES = (
    ("there are {count.en} {goods.en} {place.en} .", "{place.de} gibt es {count.de} {goods.de} ."),
    ("{person.en} has {count.en} {goods.en} .", "{person.de} hat {count.de} {goods.de} ."),
    (
        "{when.en} {person.en} bought {count.en} {goods.en} .",
        "{when.de} hat {person.de} {count.de} {goods.de} gekauft .",
    ),
    (
        "{person.en} sold {count.en} {goods.en} {when.en} .",
        "{person.de} hat {when.de} {count.de} {goods.de} verkauft .",
    ),
    ("we need {count.en} {goods.en} {place.en} .", "wir brauchen {place.de} {count.de} {goods.de} ."),
    ("{person.en} must count {count.en} {goods.en} .", "{person.de} muss {count.de} {goods.de} zählen ."),
    ("the village is {count.en} kilometers from here .", "das dorf ist {count.de} kilometer von hier entfernt ."),
    ("the {item.en} costs {price.en} .", "{item.de} kostet {price.de} ."),
    ("does the {item.en} cost {price.en} ?", "kostet {item.de} {price.de} ?"),
    ("{person.en} paid {price.en} for the {item.en} .", "{person.de} hat {price.de} für {item.acc} bezahlt ."),
    ("i know that the {item.en} costs {price.en} .", "ich weiß , dass {item.de} {price.de} kostet ."),
    ("for {price.en} you can buy the {item.en} .", "für {price.de} kann man {item.acc} kaufen ."),
    ("today is {date.en} .", "heute ist der {date.de} ."),
    ("{event.en} is on {date.en} .", "{event.de} ist am {date.acc} ."),
    ("{person.en} comes back on {date.en} .", "{person.de} kommt am {date.acc} zurück ."),
    ("{event.en} begins on {date.en} at {time.en} .", "{event.de} beginnt am {date.acc} um {time.de} ."),
    ("{person.en} was born on {date.en} {year.en} .", "{person.de} wurde am {date.acc} {year.de} geboren ."),
    ("{person.en} was born in {year.en} .", "{person.de} wurde {year.de} geboren ."),
    ("the {building.en} was built in {year.en} .", "{building.de} wurde {year.de} gebaut ."),
    ("the {vehicle.en} leaves at {time.en} .", "{vehicle.de} fährt um {time.de} ab ."),
    ("{when.en} the {vehicle.en} arrived at {time.en} .", "{when.de} kam {vehicle.de} um {time.de} an ."),
    ("it is {time.past} .", "es ist {time.de} ."),
    ("{person.en} gets up at {time.past} .", "{person.de} steht um {time.de} auf ."),
    ("room {number.en} is on the {side.en} .", "zimmer {number.de} ist {side.de} ."),
    ("open the book on page {number.en} .", "schlag das buch auf seite {number.de} auf ."),
    ("{person.en} lives at number {number.en} .", "{person.de} wohnt in der nummer {number.de} ."),
    ("{person.en} won the {rank.en} prize .", "{person.de} hat den {rank.acc} preis gewonnen ."),
    ("the {rank.en} page is missing .", "die {rank.de} seite fehlt ."),
    ("{person.en} lives in the {rank.en} street .", "{person.de} wohnt in der {rank.acc} straße ."),
    ("{person.en} is {age.en} years old .", "{person.de} ist {age.de} jahre alt ."),
)


def held_out_numbers(seed: int) -> frozenset[int]:
    """The numbers that occur in dev and test only.

    From 21 to 99 they are two of each ten, such that hours and days are among them; from 101 on a random share. None
    is a round number, so every word that numbers are made of remains for training.
    """
    generator = random.Random(f"held out {seed}")
    numbers = {generator.randint(21, 23), generator.randint(24, 29)}
    for tens in range(30, 100, 10):
        numbers.update(generator.sample(range(tens + 1, tens + 10), 2))
    numbers.update(n for n in range(101, LARGEST + 1) if n % 100 and generator.random() < _HELD_OUT_SHARE)
    return frozenset(numbers)


@dataclass(frozen=True)
class _Writer:
    """Sentences whose numbers all are, or all are not, among the held-out ones."""

    generator: random.Random
    held_out: frozenset[int]
    use_held_out: bool

    def pairs(self) -> Iterator[Pair]:
        """Sentence pairs without end, some of them more than once."""
        while True:
            english, german = self.generator.choice(TEMPLATES)
            slots = _Slots(self)
            yield Pair(english.format_map(slots).replace("-", " "), german.format_map(slots))

    def number(self, low: int, high: int, fits: Callable[[int], bool] = lambda n: True) -> int:
        """A number from low to high that fits and belongs to this part, shorter ones preferred."""
        ranges = [(max(low, a), min(high, b), w) for (a, b), w in zip(_RANGES, _RANGE_WEIGHTS, strict=True)]
        ranges = [r for r in ranges if r[0] <= r[1] and not (self.use_held_out and r[1] <= 20)]
        while True:
            ((first, last, _),) = self.generator.choices(ranges, [r[2] for r in ranges])
            n = self.generator.randint(first, last)
            if (n in self.held_out) == self.use_held_out and fits(n):
                return n


class _Slots(dict[str, Phrase]):
    """The contents of one sentence's slots, each chosen when a template first names it."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, slot: str) -> Phrase:
        phrase = self._writer.generator.choice(_WORDS[slot]) if slot in _WORDS else _NUMERALS[slot](self._writer)
        self[slot] = phrase
        return phrase


def _cardinal(n: int) -> Phrase:
    return Phrase(english_number(n), german_number(n))


def _count(writer: _Writer, high: int = LARGEST) -> Phrase:
    # German inflects a count that ends in one; speakers differ about how.
    return _cardinal(writer.number(2, high, lambda n: n % 100 != 1))


def _price(writer: _Writer) -> Phrase:
    euros = _count(writer)
    text = Phrase(f"{euros.en} euros", f"{euros.de} euro")
    if writer.generator.random() < 0.7:
        return text
    cents = _count(writer, 99)
    return Phrase(f"{text.en} and {cents.en} cents", f"{text.de} und {cents.de} cent")


def _rank(writer: _Writer, high: int = 99) -> Phrase:
    n = writer.number(1, high)
    return Phrase(english_ordinal(n), german_ordinal(n) + "e", german_ordinal(n) + "en")


def _date(writer: _Writer) -> Phrase:
    day, month = _rank(writer, 29), writer.generator.choice(_WORDS["month"])  # every month has these days
    return Phrase(f"the {day.en} of {month.en}", f"{day.de} {month.de}", f"{day.acc} {month.de}")


def _year(writer: _Writer) -> Phrase:
    n = writer.number(1500, 1999, lambda n: n % 100 >= 10)
    return Phrase(english_year(n), german_year(n))


def _time(writer: _Writer) -> Phrase:
    hour, minute = (
        _cardinal(writer.number(2, 23)),
        _cardinal(writer.number(10, 59)),
    )  # "five oh five" is yet another way
    return Phrase(
        en=f"{hour.en} {minute.en}",
        de=f"{hour.de} uhr {minute.de}",
        past=f"{minute.en} minutes past {hour.en}",
    )


_NUMERALS: dict[str, Callable[[_Writer], Phrase]] = {
    "count": _count,
    "number": lambda writer: _cardinal(writer.number(0, LARGEST)),
    "age": lambda writer: _count(writer, 99),
    "price": _price,
    "rank": _rank,
    "date": _date,
    "year": _year,
    "time": _time,
}


def phrasebook(pairs: int = 6000, seed: int = 1, held_out_pairs: int = HELD_OUT_PAIRS) -> dict[str, list[Pair]]:
    """The corpus: parts "train" (`pairs` pairs), "dev" and "test" (`held_out_pairs` each), all pairs distinct.

    The same arguments give the same corpus.

    Raises:
      ValueError: more pairs are wanted than can be made, or fewer than one.
    """
    if not (1 <= pairs <= 100_000 and 1 <= held_out_pairs <= 5_000):
        raise ValueError(f"{pairs} and {held_out_pairs} pairs; up to 100000 for training and 5000 held out can be made")
    held_out = held_out_numbers(seed)
    training = _Writer(random.Random(f"train {seed}"), held_out, use_held_out=False)
    holding_out = _Writer(random.Random(f"test {seed}"), held_out, use_held_out=True)
    seen = _distinct(holding_out, 2 * held_out_pairs)
    return {
        "train": _distinct(training, pairs),
        "dev": seen[:held_out_pairs],
        "test": seen[held_out_pairs:],
    }


def _distinct(writer: _Writer, count: int) -> list[Pair]:
    found: dict[Pair, None] = {}  # a set that keeps its order
    for pair in writer.pairs():
        found[pair] = None
        if len(found) == count:
            break
    return list(found)


def write_phrasebook(out_dir: str | os.PathLike[str], pairs: int = 6000, seed: int = 1) -> None:
    """Write {train,dev,test}.{en,de} to `out_dir`, which is made if missing.

    Raises:
      InputError: a file cannot be written, or the number of pairs is out of range.
    """
    try:
        corpus = phrasebook(pairs, seed)
    except ValueError as error:
        raise InputError(f"--pairs={pairs}: {error}") from error
    directory = make_directory(out_dir)
    for part, sentences in corpus.items():
        for suffix, lines in zip(("en", "de"), zip(*sentences, strict=True), strict=True):
            with replace_atomically(directory / f"{part}.{suffix}") as file:
                file.writelines(line + "\n" for line in lines)
