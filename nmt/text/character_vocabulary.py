"""Character ids: source words as the bytes of their UTF-8 text.

A word is an array of 50 numbers, as in the TensorFlow NMT tutorial: the mark of a word's start, up to 48 bytes, the
mark of its end, and padding. Longer words are cut. A byte b is numbered b + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WORD_LENGTH = 50
SENTENCE_PADDING = 257  # at all places of a word past a sentence's end
START, END, PADDING = 259, 260, 261
NUM_CHARACTERS = PADDING + 1


class CharacterVocabulary:
    """Numbers any word by its characters; a `SourceVocabulary` that needs no file.

    Attributes:
      path: what it is, for messages.
      words: none is in a list.
    """

    path = "the characters of the source"
    words: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of different numbers."""
        return NUM_CHARACTERS

    @property
    def padding_id(self) -> int:
        """What is past a sentence's end."""
        return SENTENCE_PADDING

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """The characters of the tokens, int32 [tokens, WORD_LENGTH]."""
        numbers = np.full((len(tokens), WORD_LENGTH), PADDING, dtype=np.int32)
        numbers[:, 0] = START
        for row, token in zip(numbers, tokens, strict=True):
            characters = np.frombuffer(token.encode("utf-8")[: WORD_LENGTH - 2], dtype=np.uint8)
            row[1 : 1 + len(characters)] = characters
            row[1 : 1 + len(characters)] += 1
            row[1 + len(characters)] = END
        return numbers
