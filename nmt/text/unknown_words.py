"""Unknown words: share of a text's tokens that are not in its vocabulary. A large share shows a wrong vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.text.lines import TextFile
from nmt.text.tokens import split
from nmt.text.vocabulary import Vocabulary

MOST_LINES = 100_000  # lines of a text that are counted, evenly spread: it takes a second and is exact enough


@dataclass(frozen=True)
class UnknownWords:
    """Result of counting a text's unknown words.

    Attributes:
      text: path of the text.
      vocabulary: path of the vocabulary.
      tokens: number of tokens counted.
      unknown: number of these tokens that are not in the vocabulary.
      lines: number of lines counted; None for all lines.
      marks: the tokens among the unknown ones that the model uses to mark sentences.
    """

    text: str
    vocabulary: str
    tokens: int
    unknown: int
    lines: int | None = None
    marks: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Share of unknown tokens, from 0 to 1; 0 if there are no tokens."""
        return self.unknown / max(1, self.tokens)

    def __str__(self) -> str:
        """Return the result as text for the log."""
        of_lines = f" (of {self.lines} lines)" if self.lines else ""
        marks = f". The marks of sentences in it, {' and '.join(self.marks)}, are read as <unk>" * bool(self.marks)
        return f"{self.text}: {100 * self.share:.2f} % of its tokens{of_lines} are not in {self.vocabulary}{marks}"


def count_unknown(text: TextFile, vocabulary: Vocabulary) -> UnknownWords:
    """Count the tokens of the text that are not in the vocabulary; `<unk>` itself counts as unknown."""
    numbers = range(0, len(text), -(-len(text) // MOST_LINES))
    tokens, unknown, seen = 0, 0, set()
    for number in numbers:
        words = split(text.line(number))
        tokens += len(words)
        unknown += vocabulary.count_unknown(words)
        seen |= {vocabulary.sos, vocabulary.eos}.intersection(words)
    partly = None if len(numbers) == len(text) else len(numbers)
    return UnknownWords(text.path, vocabulary.path, tokens, unknown, partly, tuple(sorted(seen)))
