"""Character ids: source words as the bytes of their UTF-8 text.

A word is an array of 50 ids, as in the TensorFlow NMT tutorial. It has a start mark, up to 48 bytes, an end mark and
padding. Longer words are cut. A byte b has the id b + 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

WORD_LENGTH = 50
SENTENCE_PADDING = 257  # id at all places of a word past a sentence's end
START, END, PADDING = 259, 260, 261
NUM_CHARACTERS = PADDING + 1


class CharacterVocabulary:
    """A `SourceVocabulary` that encodes any word by its bytes and needs no file.

    Attributes:
      path: description for messages.
      words: empty, because there is no list of words.
    """

    path = "the characters of the source"
    words: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """The number of different ids."""
        return NUM_CHARACTERS

    @property
    def padding_id(self) -> int:
        """The id past a sentence's end."""
        return SENTENCE_PADDING

    def encode(self, tokens: Sequence[str]) -> np.ndarray:
        """Return the ids of the tokens' bytes, int32 [tokens, WORD_LENGTH]."""
        numbers = np.full((len(tokens), WORD_LENGTH), PADDING, dtype=np.int32)
        numbers[:, 0] = START
        for row, token in zip(numbers, tokens, strict=True):
            characters = np.frombuffer(token.encode("utf-8")[: WORD_LENGTH - 2], dtype=np.uint8)
            row[1 : 1 + len(characters)] = characters
            row[1 : 1 + len(characters)] += 1
            row[1 + len(characters)] = END
        return numbers
