"""A parallel corpus: two text files whose lines are translations of each other."""

from __future__ import annotations

import os
from dataclasses import dataclass

from nmt.core.errors import InputError
from nmt.text.lines import TextFile

__all__ = ["ParallelCorpus", "TextFile", "open_parallel"]


@dataclass(frozen=True)
class ParallelCorpus:
    """Sentence pairs: line i of `src` and line i of `tgt`."""

    src: TextFile
    tgt: TextFile

    def __post_init__(self) -> None:
        """Raise InputError if the files have different numbers of lines."""
        if len(self.src) != len(self.tgt):
            raise InputError(
                f"{self.src.path} has {len(self.src)} lines and {self.tgt.path} has {len(self.tgt)}. "
                "Parallel files need the same number of lines"
            )

    def __len__(self) -> int:
        """The number of sentence pairs."""
        return len(self.src)


def open_parallel(src_path: str | os.PathLike[str], tgt_path: str | os.PathLike[str]) -> ParallelCorpus:
    """Open both files and return the corpus.

    Raises:
      InputError: a file cannot be used, or their line counts differ.
    """
    return ParallelCorpus(TextFile(src_path), TextFile(tgt_path))
