"""What a rank says with an exchange, as one number."""

from __future__ import annotations

import itertools

from tfdist.engine.word import Word


def test_what_is_packed_is_unpacked() -> None:
    for flags in itertools.product((False, True), repeat=6):
        for times_set, note in ((0, 0), (7, 1), (5, 2**54 - 1)):
            word = Word(*flags)._replace(times_set=times_set, note=note)
            assert Word.unpacked(word.packed()) == word and 0 <= word.packed() < 2**63
    assert Word.unpacked(Word(times_set=9).packed()).times_set == 1
