#!/usr/bin/env python3
"""Write the phrasebook: an English-German corpus by rules, sentences with counts, prices, dates and times as words.

    scripts/examples/demo/phrasebook.py --out_dir D

writes D/train.en, D/train.de and the same for dev and test: tokenised, lower-cased, one sentence per line. It needs
num2words, which the extra ``demo`` installs.

A model learns it in minutes, but not by copying or with a word list. German writes a number as one word, puts the ones
before the tens, and has another order of verbs.

The held-out parts, dev and test, share no sentence and no number with the training part; days, years, hours and minutes
count as numbers. The elements of numbers (numbers up to twenty, tens, round hundreds) are always in the training part.
So a model can compose the held-out numbers from elements that it has seen. For the same reason English numbers have no
hyphens: "forty-five" becomes the two tokens "forty five".
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from num2words import num2words

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically

LARGEST = 9999
HELD_OUT_PAIRS = 500  # sentence pairs of dev, and of test

# Share of held-out values among the numbers from 101 on.
_HELD_OUT_SHARE = 0.15
# Numbers are drawn from these ranges, with the probabilities below in percent.
_RANGES = ((0, 20), (21, 99), (100, 999), (1000, LARGEST))
_RANGE_WEIGHTS = (15, 25, 35, 25)


class Pair(NamedTuple):
    """An English sentence and its German translation."""

    english: str
    german: str


class Phrase(NamedTuple):
    """The content of a slot of a sentence: the English text, and German forms from which a template chooses."""

    en: str
    de: str
    acc: str = ""  # accusative; an ordinal number or date has the form `de` after "der" and `acc` after "am"
    past: str = ""  # a clock time in English with the minutes first


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
    """Return the numbers that occur in dev and test only.

    From 21 to 99 they are two of each decade, chosen so that hours and days are among them; from 101 on a random share.
    Multiples of ten below 100 and of 100 are never held out, so all words of numbers occur in the training part.
    """
    generator = random.Random(f"held out {seed}")
    numbers = {generator.randint(21, 23), generator.randint(24, 29)}
    for tens in range(30, 100, 10):
        numbers.update(generator.sample(range(tens + 1, tens + 10), 2))
    numbers.update(n for n in range(101, LARGEST + 1) if n % 100 and generator.random() < _HELD_OUT_SHARE)
    return frozenset(numbers)


@dataclass(frozen=True)
class _Writer:
    """Generator of sentences with only held-out numbers, or without held-out numbers."""

    generator: random.Random
    held_out: frozenset[int]
    use_held_out: bool

    def pairs(self) -> Iterator[Pair]:
        """Yield sentence pairs without end; pairs may repeat."""
        while True:
            english, german = self.generator.choice(TEMPLATES)
            slots = _Slots(self)
            yield Pair(english.format_map(slots), german.format_map(slots))

    def number(self, low: int, high: int, fits: Callable[[int], bool] = lambda n: True) -> int:
        """Draw a number from low to high that fits and belongs to this part, with the weights of `_RANGES`."""
        ranges = [(max(low, a), min(high, b), w) for (a, b), w in zip(_RANGES, _RANGE_WEIGHTS, strict=True)]
        ranges = [r for r in ranges if r[0] <= r[1] and not (self.use_held_out and r[1] <= 20)]
        while True:
            ((first, last, _),) = self.generator.choices(ranges, [r[2] for r in ranges])
            n = self.generator.randint(first, last)
            if (n in self.held_out) == self.use_held_out and fits(n):
                return n


class _Slots(dict[str, Phrase]):
    """The contents of a sentence's slots; each is chosen when a template first uses it."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self._writer = writer

    def __missing__(self, slot: str) -> Phrase:
        phrase = self._writer.generator.choice(_WORDS[slot]) if slot in _WORDS else _NUMERALS[slot](self._writer)
        self[slot] = phrase
        return phrase


def number_words(n: int, form: str = "cardinal") -> Phrase:
    """Return a number in words, of the form `cardinal`, `ordinal` or `year`; English without commas and hyphens."""
    english = num2words(n, to=form).replace(",", "").replace("-", " ")
    return Phrase(english, num2words(n, to=form, lang="de"))


def _count(writer: _Writer, high: int = LARGEST) -> Phrase:
    # German inflects a count that ends in one, and usage differs, so such counts are left out.
    return number_words(writer.number(2, high, lambda n: n % 100 != 1))


def _price(writer: _Writer) -> Phrase:
    euros = _count(writer)
    text = Phrase(f"{euros.en} euros", f"{euros.de} euro")
    if writer.generator.random() < 0.7:
        return text
    cents = _count(writer, 99)
    return Phrase(f"{text.en} and {cents.en} cents", f"{text.de} und {cents.de} cent")


def _rank(writer: _Writer, high: int = 99) -> Phrase:
    rank = number_words(writer.number(1, high), "ordinal")
    return rank._replace(acc=rank.de + "n")


def _date(writer: _Writer) -> Phrase:
    day, month = _rank(writer, 29), writer.generator.choice(_WORDS["month"])  # every month has these days
    return Phrase(f"the {day.en} of {month.en}", f"{day.de} {month.de}", f"{day.acc} {month.de}")


def _year(writer: _Writer) -> Phrase:
    # The first ten years of a century have another form.
    return number_words(writer.number(1500, 1999, lambda n: n % 100 >= 10), "year")


def _time(writer: _Writer) -> Phrase:
    hour, minute = (
        number_words(writer.number(2, 23)),
        number_words(writer.number(10, 59)),
    )  # minutes below 10 would need another form, "five oh five"
    return Phrase(
        en=f"{hour.en} {minute.en}",
        de=f"{hour.de} uhr {minute.de}",
        past=f"{minute.en} minutes past {hour.en}",
    )


_NUMERALS: dict[str, Callable[[_Writer], Phrase]] = {
    "count": _count,
    "number": lambda writer: number_words(writer.number(0, LARGEST)),
    "age": lambda writer: _count(writer, 99),
    "price": _price,
    "rank": _rank,
    "date": _date,
    "year": _year,
    "time": _time,
}


def phrasebook(pairs: int = 6000, seed: int = 1, held_out_pairs: int = HELD_OUT_PAIRS) -> dict[str, list[Pair]]:
    """Return the corpus: "train" with `pairs` pairs, "dev" and "test" with `held_out_pairs` each, all pairs distinct.

    The same arguments give the same corpus.

    Raises:
      ValueError: a number of pairs is more than the limit, or less than one.
    """
    if not (1 <= pairs <= 100_000 and 1 <= held_out_pairs <= 5_000):
        raise ValueError(f"{pairs} and {held_out_pairs} pairs: give 1 to 100000 for training and 1 to 5000 held out")
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
    found: dict[Pair, None] = {}  # serves as an ordered set
    for pair in writer.pairs():
        found[pair] = None
        if len(found) == count:
            break
    return list(found)


def main() -> None:
    """Parse the options, and write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out_dir", type=Path, required=True, help="folder for the six files, made if missing")
    parser.add_argument("--pairs", type=int, default=6000, help="sentence pairs for training")
    parser.add_argument("--seed", type=int, default=1, help="random seed; different seeds give different corpora")
    options = parser.parse_args()
    try:
        corpus, directory = phrasebook(options.pairs, options.seed), make_directory(options.out_dir)
        for part, pairs in corpus.items():
            for suffix, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
                with replace_atomically(directory / f"{part}.{suffix}") as file:
                    file.writelines(line + "\n" for line in lines)
    except (InputError, ValueError) as error:
        parser.error(str(error))
    print(f"{options.out_dir}: {options.pairs} pairs for training, {HELD_OUT_PAIRS} each in dev and test")


if __name__ == "__main__":
    main()
