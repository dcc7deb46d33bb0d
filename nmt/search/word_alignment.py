"""Alignment of words: which source word a decoder attends to most while it writes a word."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nmt.text.raw_words import ALL, FIRST
from nmt.text.tokens import BPE_MARK, SPM_SPACE


def word_numbers(tokens: Sequence[str], subword_option: str) -> list[int]:
    """Return the number of the word that each token belongs to; a mark of capital letters belongs to its word.

    >>> word_numbers(["⇧", "ham@@", "burg", "is"], "bpe")
    [0, 0, 0, 1]
    """
    numbers, word, starts = [], -1, True
    for token in tokens:
        if starts or (subword_option == "spm" and token.startswith(SPM_SPACE)):
            word += 1
        numbers.append(max(word, 0))
        joins_next = token in (FIRST, ALL) or (subword_option == "bpe" and token.endswith(BPE_MARK))
        starts = subword_option != "spm" and not joins_next
    return numbers


def aligned_words(
    weights: np.ndarray, source: Sequence[str], target: Sequence[str], subword_option: str
) -> list[tuple[int, int]]:
    """Return pairs of numbers, (source word, target word), one for each target word.

    The weights of a word's subwords are added over the source, and averaged over the target.

    Args:
        weights: attention weights, float32 [target, source]; rows of a shorter source than `source` are allowed.
        source: tokens of the source.
        target: tokens of the translation.
        subword_option: notation of the subwords: "", "bpe" or "spm".
    """
    columns = word_numbers(source, subword_option)[: weights.shape[1]]
    rows = word_numbers(target, subword_option)[: weights.shape[0]]
    words = np.zeros([rows[-1] + 1, columns[-1] + 1]) if rows and columns else np.zeros([0, 0])
    np.add.at(words, (np.array(rows, int)[:, None], np.array(columns, int)[None, :]), weights)
    return [(int(best), number) for number, best in enumerate(words.argmax(1))] if words.size else []
