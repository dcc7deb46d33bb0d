"""Files of pretrained word vectors (GloVe, word2vec, fastText).

A line has a word and its numbers, separated by spaces, as in GloVe (Pennington, Socher, Manning 2014), in word2vec's
text format and in fastText. Files of word2vec and fastText begin with a line of two fields: the number of vectors and
their size.
"""

from __future__ import annotations

import os

import numpy as np

from nmt.core.errors import InputError
from nmt.text.lines import TextFile
from nmt.text.tokens import split
from nmt.text.vocabulary import Vocabulary

_NUM_TRAINED = 3  # `<unk>` and the sentence marks: a file's vectors for them come from another program
_SHOWN = 5  # words that a message names


def read_embeddings(path: str | os.PathLike[str], vocabulary: Vocabulary) -> np.ndarray:
    """Read the vectors of all words except the first three, which are trained with the model.

    Words that are not in the vocabulary are ignored. Every line must be complete: a truncated or damaged file is
    refused.

    Returns:
      float32 [vocabulary.size - 3, size], in the order of the vocabulary, with the file's size of a vector.

    Raises:
      InputError: the file cannot be read or is not UTF-8, or the lines differ in their number of fields. Or a word of
        the vocabulary has no vector, two vectors, or a vector with a number that is not finite.
    """
    file = TextFile(path)
    first = _check_shape(file)
    size = int(file.lengths[first]) - 1
    rows = {word: row for row, word in enumerate(vocabulary.words[_NUM_TRAINED:])}
    if not rows:
        raise InputError(f"{vocabulary.path} has no words but its first {_NUM_TRAINED}, which need no {file.path}")
    vectors = np.empty((len(rows), size), dtype=np.float32)
    lines: dict[str, int] = {}  # words that have been found -> line numbers
    for number in range(first, len(file)):
        text = file.line(number)
        word = text.lstrip(" ").split(" ", 1)[0]
        if word not in rows:
            continue
        if word in lines:
            raise InputError(
                f"{file.path}, lines {lines[word] + 1} and {number + 1}: both are vectors of {word!r}; remove one"
            )
        lines[word] = number
        vectors[rows[word]] = _numbers(file, number, split(text)[1:])
    missing = [word for word in rows if word not in lines]
    if missing:
        names = ", ".join(map(repr, missing[:_SHOWN])) + (", ..." if len(missing) > _SHOWN else "")
        raise InputError(
            f"{file.path} has no vector for {len(missing)} of the {len(rows)} words of {vocabulary.path}: {names}; add "
            "the vectors, or remove these words from the vocabulary"
        )
    return vectors


def _check_shape(file: TextFile) -> int:
    """Return the index of the first vector's line: 1 after a header, else 0. InputError if vectors differ in size."""
    first = int(file.lengths[0] == 2)
    if first:
        fields = split(file.line(0))
        if not all(field.isascii() and field.isdigit() for field in fields):
            raise InputError(
                f"{file.path}, line 1: is {' '.join(fields)!r}; a first line of two fields must be the number of "
                "vectors and their size, as whole numbers"
            )
        count, size = map(int, fields)
        if (len(file) - 1, size > 0) != (count, True):
            raise InputError(
                f"{file.path}, line 1: promises {count} vectors of {size} numbers and {len(file) - 1} lines follow; "
                "get the whole file, or correct its first line"
            )
    else:
        size = int(file.lengths[0]) - 1
    wrong = np.flatnonzero(file.lengths[first:] != size + 1)
    if size < 1 or len(wrong):
        number = first + int(wrong[0]) if len(wrong) else 0
        raise InputError(
            f"{file.path}, line {number + 1}: has {file.lengths[number]} fields and should be a word and "
            f"{size if size > 0 else 'its'} numbers, with spaces between them; mend or remove the line"
        )
    return first


def _numbers(file: TextFile, number: int, fields: list[str]) -> np.ndarray:
    """Return the vector in these fields of a line."""
    try:
        vector = np.array(fields, dtype=np.float32)
    except ValueError as error:
        raise InputError(f"{file.path}, line {number + 1}: {error}; mend or remove the line") from None
    if not np.isfinite(vector).all():
        raise InputError(f"{file.path}, line {number + 1}: has a number that is not finite; mend or remove the line")
    return vector
