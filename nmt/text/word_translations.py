"""Word translation probabilities from parallel text: IBM Model 1.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1: every word of a target comes from
one word of its source, or from none, and all these are as probable beforehand. EM (equations 17 and 18 there) finds how
probable each word of the target is, given the one that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_CELLS = 1 << 21  # pairs of positions that are looked at together


class WordTranslations(NamedTuple):
    """Pairs of words, in order of the source's and then of their probability, the greatest first.

    Attributes:
        sources: ids, int64 [pairs].
        targets: ids, int64 [pairs].
        probabilities: of the target's word given the source's, float64 [pairs]; those of a source's word are 1 in sum,
            but for pairs that have been left out.
    """

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray

    def best(self, count: int, least: float = 0.0) -> WordTranslations:
        """The `count` most probable ones of each of the source's words, without those that are less probable."""
        first = np.searchsorted(self.sources, self.sources)  # of each pair, where its word's begin
        kept = (np.arange(len(self.sources)) - first < count) & (self.probabilities >= least)
        return WordTranslations(*(column[kept] for column in self))


def word_translations(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], iterations: int = 5
) -> WordTranslations:
    """Model 1 of sentence pairs.

    Args:
        sources: ids of each sentence, ints [words], 0 or more.
        targets: likewise, as many.
        iterations: of EM.

    Returns:
        all words that stand in one pair; those that come from no word are not among them.
    """
    width = 1 + max((int(ids.max()) for ids in targets if len(ids)), default=0)
    keys = _distinct(cells for cells, _ in _pieces(sources, targets, width))
    source = keys // width
    probabilities = np.ones(len(keys))
    for _ in range(iterations):
        counts = np.zeros(len(keys))
        for cells, sizes in _pieces(sources, targets, width):
            places = np.searchsorted(keys, cells)
            of_cell = probabilities[places]
            sums = np.add.reduceat(of_cell, np.cumsum(sizes) - sizes)
            counts += np.bincount(places, of_cell / np.repeat(sums, sizes), len(keys))
        probabilities = counts / np.bincount(source, counts)[source]
    order = np.lexsort((-probabilities, source))
    order = order[np.searchsorted(source[order], 1) :]  # without those of no word
    return WordTranslations(source[order] - 1, keys[order] % width, probabilities[order])


def _distinct(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """All numbers in order, each once; they are joined when new ones are as many as old ones: each is seldom moved."""
    known, more, held = np.zeros(0, np.int64), [], 0
    for piece in pieces:
        more.append(np.unique(piece))
        held += len(more[-1])
        if held >= len(known):
            known, more, held = np.unique(np.concatenate([known, *more])), [], 0
    return np.unique(np.concatenate([known, *more]))


def _pieces(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], width: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Each target word beside each of its source's, and beside none.

    Yields:
        (1 + source id) * width + target id, int64 [cells], where no word is id -1; and how many cells in succession are
        of one target word, int64 [words].
    """
    cells: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    held = 0
    for source, target in zip(sources, targets, strict=True):
        from_each = np.concatenate([[0], (1 + source.astype(np.int64)) * width])
        most = max(1, _CELLS // len(from_each))  # of a very long line's words at once
        for start in range(0, len(target), most):
            part = target[start : start + most].astype(np.int64)
            cells.append((part[:, None] + from_each).ravel())
            sizes.append(np.full(len(part), len(from_each)))
            held += cells[-1].size
            if held >= _CELLS:
                yield np.concatenate(cells), np.concatenate(sizes)
                cells, sizes, held = [], [], 0
    if cells:
        yield np.concatenate(cells), np.concatenate(sizes)
