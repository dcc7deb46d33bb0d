"""Word translation probabilities from parallel text: IBM Model 1.

Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1. Every target word comes from one
word of the source sentence or from none, with equal prior probability. EM (equations 17 and 18 there) finds the
probability of each target word, given the source word that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

_CELLS = 1 << 21  # pairs of positions that are processed together


class WordTranslations(NamedTuple):
    """Pairs of words, sorted by source word and then by falling probability.

    Attributes:
        sources: ids of source words, int64 [pairs].
        targets: ids of target words, int64 [pairs].
        probabilities: probability of the target word given the source word, float64 [pairs]. For each source word the
            sum is 1 over all pairs, before `best` removes some.
    """

    sources: np.ndarray
    targets: np.ndarray
    probabilities: np.ndarray

    def best(self, count: int, least: float = 0.0) -> WordTranslations:
        """Return the `count` most probable pairs of each source word, without probabilities below `least`."""
        first = np.searchsorted(self.sources, self.sources)  # for each pair, the index of its source word's first pair
        kept = (np.arange(len(self.sources)) - first < count) & (self.probabilities >= least)
        return WordTranslations(*(column[kept] for column in self))


def word_translations(
    sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], iterations: int = 5
) -> WordTranslations:
    """Estimate Model 1 from sentence pairs.

    Args:
        sources: ids of each source sentence, ints [words], 0 or more.
        targets: ids of each target sentence, ints [words], 0 or more; as many sentences.
        iterations: number of EM iterations.

    Returns:
        all pairs of words that occur in one sentence pair. Target words that come from no word are not included.
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
    order = order[np.searchsorted(source[order], 1) :]  # without pairs of no source word
    return WordTranslations(source[order] - 1, keys[order] % width, probabilities[order])


def _distinct(pieces: Iterable[np.ndarray]) -> np.ndarray:
    """Return all different numbers, sorted. New numbers are merged when they are as many as the old: few copies."""
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
    """Pair each target word with each word of its source sentence, and with no word.

    Yields:
        cells (1 + source id) * width + target id, int64 [cells], and the number of consecutive cells of each target
        word, int64 [words]. The source id of no word is -1.
    """
    cells: list[np.ndarray] = []
    sizes: list[np.ndarray] = []
    held = 0
    for source, target in zip(sources, targets, strict=True):
        from_each = np.concatenate([[0], (1 + source.astype(np.int64)) * width])
        most = max(1, _CELLS // len(from_each))  # words of a long line processed at once
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
