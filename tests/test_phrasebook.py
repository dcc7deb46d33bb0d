"""The demo's phrasebook: held-out sentences are new, and their parts are in training."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from scripts.examples.demo import phrasebook as book
from scripts.examples.demo.phrasebook import Pair, held_out_numbers, number_words, phrasebook
from tests.launch import run

# Every number of a German sentence is one word.
GERMAN_NUMBERS = {number_words(n).de: n for n in range(10_000)}
GERMAN_NUMBERS |= {number_words(n, "ordinal").de + ending: n for n in range(1, 100) for ending in ("", "n")}
GERMAN_NUMBERS |= {number_words(n, "year").de: n for n in range(1500, 2000) if n % 100 >= 10}


@pytest.fixture(scope="module", params=[1, 2, 3])
def corpus(request: pytest.FixtureRequest) -> dict[str, list[Pair]]:
    return phrasebook(seed=request.param)


def numbers(pairs: list[Pair]) -> set[int]:
    return {GERMAN_NUMBERS[word] for pair in pairs for word in pair.german.split() if word in GERMAN_NUMBERS}


def test_sizes_and_distinctness(corpus: dict[str, list[Pair]]) -> None:
    assert {part: len(pairs) for part, pairs in corpus.items()} == {"train": 6000, "dev": 500, "test": 500}
    every = [pair for pairs in corpus.values() for pair in pairs]
    assert len({pair.english for pair in every}) == len({pair.german for pair in every}) == len(every)


def test_no_number_of_the_held_out_parts_is_in_training(corpus: dict[str, list[Pair]]) -> None:
    assert not numbers(corpus["train"]) & numbers(corpus["dev"] + corpus["test"])


def test_every_sentence_has_a_number(corpus: dict[str, list[Pair]]) -> None:
    for pairs in corpus.values():
        assert all(numbers([pair]) for pair in pairs), pairs[0]


def test_every_english_word_of_the_held_out_parts_is_in_training(
    corpus: dict[str, list[Pair]],
) -> None:
    def words(pairs: list[Pair]) -> set[str]:
        return {word for pair in pairs for word in pair.english.split()}

    assert words(corpus["test"] + corpus["dev"]) <= words(corpus["train"])


def test_the_held_out_parts_have_sentences_of_every_kind(corpus: dict[str, list[Pair]]) -> None:
    text = "\n".join(pair.german for pair in corpus["test"])
    for sign in (" uhr ", " euro ", " cent ", " geboren ", "seite ", "heute ist der ", " jahre alt ", "straße"):
        assert sign in text, sign


def test_text_is_lower_case_and_tokenised(corpus: dict[str, list[Pair]]) -> None:
    for pair in corpus["train"]:
        for line in pair:
            assert line == line.lower() == " ".join(line.split()), (pair, line)
            assert re.fullmatch(r"[a-zäöüß]+( ,| [a-zäöüß]+)* [.?]", line), (pair, line)


def test_a_sentence_by_hand() -> None:
    slots = {"time": book.Phrase("five ten", "fünf uhr zehn"), "vehicle": book.Phrase("train", "der zug")}
    (template,) = [t for t in book.TEMPLATES if "leaves" in t[0]]
    assert template[0].format_map(slots) == "the train leaves at five ten ."
    assert template[1].format_map(slots) == "der zug fährt um fünf uhr zehn ab ."


def test_round_and_small_numbers_are_never_held_out() -> None:
    held_out = held_out_numbers(seed=5)
    assert not held_out & {*range(21), *range(30, 100, 10), *range(100, 10_000, 100)}
    assert held_out & {21, 22, 23}, "an hour"
    assert len(held_out & set(range(21, 30))) == 2, "days"
    assert 0.13 < len(held_out) / 10_000 < 0.17


def test_same_seed_same_corpus() -> None:
    assert phrasebook(50, 1, 20) == phrasebook(50, 1, 20)
    assert phrasebook(50, 1, 20) != phrasebook(50, 2, 20)
    assert phrasebook(50, 1, 20)["train"] == phrasebook(100, 1, 20)["train"][:50]


def test_numbers_by_hand() -> None:
    assert number_words(2345)[:2] == (
        "two thousand three hundred and forty five",
        "zweitausenddreihundertfünfundvierzig",
    )
    assert number_words(21, "ordinal")[:2] == ("twenty first", "einundzwanzigste")
    assert number_words(1942, "year")[:2] == ("nineteen forty two", "neunzehnhundertzweiundvierzig")


def test_command(tmp_path: Path) -> None:
    out_dir = tmp_path / "new" / "corpus"
    done = run(
        [sys.executable, "scripts/examples/demo/phrasebook.py", f"--out_dir={out_dir}", "--pairs=20", "--seed=3"], 60
    )
    assert done.code == 0 and "20 pairs for training, 500 each" in done.output
    lines = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in out_dir.iterdir()}
    assert lines == {
        f"{part}.{side}": n for part, n in (("train", 20), ("dev", 500), ("test", 500)) for side in ("en", "de")
    }
    done = run([sys.executable, "scripts/examples/demo/phrasebook.py", f"--out_dir={tmp_path}/x", "--pairs=0"], 60)
    assert done.code == 2 and "0 and 500 pairs: give 1 to 100000" in done.errors and not (tmp_path / "x").exists()
