"""Counts of many words: the same as a counter in memory, and files only beyond the limit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nmt.text.word_counts import WordCounts


@pytest.mark.parametrize("most", [1, 7, 50, 1000])
def test_they_are_those_of_a_counter(tmp_path: Path, most: int) -> None:
    random = np.random.default_rng(1)
    words = [f"w{n}\u2028é 𝄞".replace(" ", "") for n in random.geometric(0.02, 3000)] + ["", "\x0b", "1", "a b"]
    wanted, counts = Counter(words), WordCounts(tmp_path, most)
    for start in range(0, len(words), 100):
        counts.add(Counter(words[start : start + 100]))
    for _ in range(2):
        found = list(counts)
        assert dict(found) == wanted and found == sorted(found)
    assert bool(list(tmp_path.iterdir())) == (most < len(wanted))
