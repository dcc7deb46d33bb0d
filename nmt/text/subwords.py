"""Subword units: learnt from text and applied to tokens.

Both languages use one set of units, so that names and numbers are cut in the same way on both sides. nmt.text.tokens
describes the notations and joins subwords again.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import itertools
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from nmt.core.errors import InputError
from nmt.text.bpe_dropout import Merges, characters

_MOST_CACHED = 200_000  # words whose units a process remembers
_MOST_WORDS = 200_000  # different words that merges are learnt from; the library needs 2 KB for each
_MOST_LINES = 1_000_000  # lines that pieces are learnt from


class Learnt(NamedTuple):
    """A learnt set of units.

    Attributes:
      model: contents of the model file in the library's own format, for use with the library's tools.
      notice: message for the user; may be empty.
    """

    model: bytes
    notice: str = ""


class Subwords(Protocol):
    """A set of subword units."""

    def segment(self, line: str) -> str:
        """Return the line's units, separated by spaces."""


class WholeWords:
    """Words that are not cut."""

    def segment(self, line: str) -> str:
        """Return the line."""
        return line


class BytePairs:
    """Byte pair encoding by library subword-nmt (Sennrich, Haddow, Birch 2016, arXiv:1508.07909).

    Args:
      model: contents of a file of codes.
    """

    def __init__(self, model: bytes) -> None:
        from subword_nmt import apply_bpe  # the library is only needed with --bpe

        self._bpe = apply_bpe.BPE(io.StringIO(model.decode()))

    def segment(self, line: str) -> str:
        """Return the line's units, separated by spaces; all but the last unit of a word end in "@@"."""
        if len(self._bpe.cache) > _MOST_CACHED:
            self._bpe.cache.clear()
        return " ".join(self._bpe.segment_tokens([token for token in line.split(" ") if token]))


def learn_byte_pairs(word_counts: Iterable[tuple[str, int]], merges: int) -> Learnt:
    """Learn `merges` merges of frequent neighbours, or fewer if fewer pairs occur twice.

    Rare words are left out if there are very many, because the library's memory grows with their number.

    Raises:
      InputError: no word has two characters, or the library cannot use the words.
    """
    from subword_nmt import learn_bpe

    # The library breaks ties by the order of its input.
    words = heapq.nsmallest(_MOST_WORDS, word_counts, key=lambda item: (-item[1], item[0]))
    if all(len(word) < 2 for word, _ in words):
        raise InputError(f"--bpe={merges}: the training text has no word of two characters; leave --bpe out")
    codes = io.StringIO()
    said = io.StringIO()  # the library prints a progress bar, and an error's reason before it calls sys.exit
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            learn_bpe.learn_bpe((f"{word} {count}" for word, count in words), codes, merges, is_dict=True)
    except SystemExit:
        reason = " ".join(said.getvalue().split())
        raise InputError(
            f"--bpe={merges}: subword-nmt cannot use this text ({reason}). Remove the named text, or take --spm"
        ) from None
    found = len(codes.getvalue().splitlines()) - 1  # the first line is the library's version
    notice = (
        f"bpe.codes: {found} merges, not the {merges} of --bpe: no other pair of neighbours occurs twice, and few "
        "words are split. A few thousand are usual"
    )
    return Learnt(codes.getvalue().encode(), notice if found < merges else "")


def dropout_units(model: bytes, words: Iterable[str]) -> set[str]:
    """Return all subwords that words can be split into with BPE-dropout.

    Args:
      model: contents of a file of codes.
      words: all words of the text.
    """
    return Merges(model.decode().rstrip("\n").split("\n"), "bpe.codes").units | characters(words)


class SentencePieces:
    """The unigram language model of library sentencepiece (Kudo 2018, arXiv:1804.10959; Kudo, Richardson 2018).

    Args:
      model: contents of a model file.
    """

    def __init__(self, model: bytes) -> None:
        import sentencepiece  # the library is only needed with --spm

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)

    def segment(self, line: str) -> str:
        """Return the line's units, separated by spaces; a unit at the start of a word begins with "\\u2581"."""
        return " ".join(self._processor.encode(line, out_type=str))


def learn_pieces(lines: Iterable[str], pieces: int) -> Learnt:
    """Learn `pieces` units from lines of text; of a very long text, from its first lines.

    Raises:
      InputError: the text is too small, or has too many characters, for that number.
    """
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.islice(lines, _MOST_LINES),
            model_writer=model,
            vocab_size=pieces,
            character_coverage=1.0,
            # Without normalization, joined pieces give the text back. So a score does not depend on the units.
            normalization_rule_name="identity",
            # Sums depend on the number of threads, but results must not depend on the machine.
            num_threads=1,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(
            f"--spm={pieces}: sentencepiece cannot learn as many from this text ({reason}). Choose another number"
        ) from error
    return Learnt(model.getvalue())


FILES = {"bpe": "bpe.codes", "spm": "spm.model"}  # usual names of the model files
_KINDS: dict[str, Callable[[bytes], Subwords]] = {"bpe": BytePairs, "spm": SentencePieces}


def subwords(option: str, model: bytes) -> Subwords:
    """Return the units of a model file.

    Args:
      option: notation of the units: "", "bpe" or "spm".
      model: contents of the file; empty without units.
    """
    return _KINDS[option](model) if option else WholeWords()
