"""Documentation, docstrings, comments and messages are written in plain words: see ``plain_words``."""

from __future__ import annotations

import pytest

from tests import plain_words


def test_sentences_are_short_and_say_what_they_mean() -> None:
    found = [str(offence) for path in plain_words.files() for offence in plain_words.offences(path)]
    assert not found, "\n".join(found)


TWENTY = " ".join(["word"] * 20)
LONG = f"{TWENTY} and six words more than that"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"Short. {LONG}.", [26]),
        (f"- {' '.join(['word'] * 25)}\n- two", []),
        (f"| {LONG} | a cell |", [26]),
        ("It runs beside the rank.", [0]),
        ("`many words between backticks are one` " + " ".join(["word"] * 24), []),
        (f"```\n{LONG}\n```", []),
    ],
)
def test_markdown(text: str, words: list[int]) -> None:
    assert [offence.words for offence in plain_words.offences_in(text, "page.md")] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'"""{LONG}."""', [26]),
        (f"# {LONG}\nx = 1", [26]),
        (f"x = 1  # {' '.join(['word'] * 13)}\n# {' '.join(['word'] * 13)}", []),
        (f"raise ValueError(f'{LONG} {{x}}')", [27]),
        (f"def f(a):\n    '''Do.\n\n    Args:\n      a: {TWENTY}\n      b: {TWENTY}\n    '''", []),
    ],
)
def test_python(text: str, words: list[int]) -> None:
    assert [offence.words for offence in plain_words.offences_in(text, "module.py")] == words
