"""Word counts of a text with any number of different words: some in memory, the others in sorted files."""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path


class WordCounts:
    """Counts of words. A large text has millions of different words, and each takes 150 bytes of memory.

    Args:
        folder: folder for the files.
        most: number of different words in memory.
    """

    def __init__(self, folder: Path, most: int = 500_000) -> None:
        self._folder, self._most = folder, most
        self._counts: Counter[str] = Counter()
        self._files: list[Path] = []

    def add(self, counts: Mapping[str, int]) -> None:
        """Add the counts of a part of the text."""
        self._counts.update(counts)
        if len(self._counts) > self._most:
            path = self._folder / f"counts.{len(self._files)}"
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{count} {word}\n" for word, count in sorted(self._counts.items()))
            self._files.append(path)
            self._counts.clear()

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Yield each word once, in code point order, with its count."""
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(path.open(encoding="utf-8", newline="\n")) for path in self._files]
            merged = heapq.merge(sorted(self._counts.items()), *(map(_parsed, file) for file in files))
            for word, same in itertools.groupby(merged, key=itemgetter(0)):
                yield word, sum(count for _, count in same)


def _parsed(line: str) -> tuple[str, int]:
    count, _, word = line.rstrip("\n").partition(" ")
    return word, int(count)
