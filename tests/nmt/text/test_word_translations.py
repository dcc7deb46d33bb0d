"""IBM Model 1 against its equations in plain Python."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from nmt.text import word_translations as module
from nmt.text.word_translations import WordTranslations, word_translations


def plain(sources: list[list[int]], targets: list[list[int]], iterations: int) -> dict[tuple[int, int], float]:
    """Return the probability of each (source, target) pair, computed word by word; -1 is the empty word."""
    table: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        counts: dict[tuple[int, int], float] = defaultdict(float)
        totals: dict[int, float] = defaultdict(float)
        for source, target in zip(sources, targets, strict=True):
            for word in target:
                whole = sum(table[one, word] for one in [-1, *source])
                for one in [-1, *source]:
                    counts[one, word] += table[one, word] / whole
                    totals[one] += table[one, word] / whole
        table = defaultdict(float, {key: count / totals[key[0]] for key, count in counts.items()})
    return {key: value for key, value in table.items() if key[0] >= 0}


@pytest.mark.parametrize("cells", [1, 50, 1 << 21])
def test_probabilities_are_those_of_the_equations(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """Sentences are random and in pieces of any size; they may be empty, and words may occur twice."""
    monkeypatch.setattr(module, "_CELLS", cells)
    random = np.random.default_rng(4)
    sources, targets = ([random.integers(0, 6, random.integers(0, 5)) for _ in range(30)] for _ in range(2))
    found = word_translations(sources, targets, iterations=4)
    wanted = plain([ids.tolist() for ids in sources], [ids.tolist() for ids in targets], 4)
    rows = list(zip(found.sources.tolist(), found.targets.tolist(), strict=True))
    assert rows == sorted(wanted, key=lambda key: (key[0], -found.probabilities[rows.index(key)]))
    np.testing.assert_allclose(found.probabilities, [wanted[key] for key in rows], rtol=1e-10)
    for word in range(6):
        assert found.probabilities[found.sources == word].sum() == pytest.approx(1)


def test_words_are_found() -> None:
    """Word n becomes word 10 + n, in any order, and one more word is in every target sentence."""
    random = np.random.default_rng(1)
    sources = [random.choice(8, 3, replace=False) for _ in range(60)]
    targets = [random.permutation([*(10 + ids), 30]) for ids in sources]
    best = word_translations(sources, targets).best(1)
    assert best.sources.tolist() == list(range(8))
    assert best.targets.tolist() == list(range(10, 18))
    assert (best.probabilities > 0.5).all()


def test_the_best_of_each_word() -> None:
    pairs = WordTranslations(np.array([1, 1, 1, 4]), np.array([7, 5, 6, 5]), np.array([0.5, 0.3, 0.2, 1.0]))
    assert pairs.best(3, 0.3).targets.tolist() == [7, 5, 5]
    best = pairs.best(2)
    assert [column.tolist() for column in best] == [[1, 1, 4], [7, 5, 5], [0.5, 0.3, 1.0]]


def test_no_pairs() -> None:
    nothing = np.zeros(0, np.int64)
    for sides in ([], []), ([nothing], [nothing]), ([nothing], [np.array([3])]):
        assert not len(word_translations(*sides).sources)
