"""Unknown words: how much of a text its vocabulary lacks, which is how a vocabulary of another text shows."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.text.lines import TextFile
from nmt.text.tokens import split
from nmt.text.vocabulary import Vocabulary

MOST_LINES = 100_000  # counted of a text, evenly spread: a second's work, and as good as all for a share


@dataclass(frozen=True)
class UnknownWords:
    """What a count has found.

    Attributes:
      text: the file.
      vocabulary: the other file.
      tokens: how many were looked at.
      unknown: those of them that the vocabulary lacks.
      lines: how many were looked at, if not all.
    """

    text: str
    vocabulary: str
    tokens: int
    unknown: int
    lines: int | None = None

    @property
    def share(self) -> float:
        """0 to 1; 0 if there are no tokens."""
        return self.unknown / max(1, self.tokens)

    def __str__(self) -> str:
        """In words."""
        of_lines = f" (of {self.lines} lines)" if self.lines else ""
        return f"{self.text}: {100 * self.share:.2f} % of its tokens{of_lines} are not in {self.vocabulary}"


def count_unknown(text: TextFile, vocabulary: Vocabulary) -> UnknownWords:
    """How many tokens of the text are not in the vocabulary; `<unk>` itself counts among them."""
    numbers = range(0, len(text), -(-len(text) // MOST_LINES))
    tokens = unknown = 0
    for number in numbers:
        words = split(text.line(number))
        tokens += len(words)
        unknown += vocabulary.count_unknown(words)
    partly = None if len(numbers) == len(text) else len(numbers)
    return UnknownWords(text.path, vocabulary.path, tokens, unknown, partly)
