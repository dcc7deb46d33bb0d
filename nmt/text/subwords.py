"""Subword units: learnt from text and applied to tokens.

Both languages use one set of units, so that names and numbers are cut in the same way on both sides. nmt.text.tokens
describes the notations and joins subwords again.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Mapping
from typing import Protocol

from nmt.core.errors import InputError
from nmt.text.bpe_dropout import Merges, characters


class Subwords(Protocol):
    """A learnt set of subword units.

    Attributes:
      model: contents of the model file in the library's own format, for use with the library's tools.
      file_name: usual name of the model file.
    """

    model: bytes
    file_name: str

    def segment(self, line: str) -> str:
        """Return the line's units, separated by spaces."""


class BytePairs:
    """Byte pair encoding by library subword-nmt (Sennrich, Haddow, Birch 2016, arXiv:1508.07909).

    Attributes:
      fewer: message that fewer merges were found than requested; empty if all were found.
    """

    file_name = "bpe.codes"

    def __init__(self, word_counts: Mapping[str, int], merges: int) -> None:
        """Learn `merges` merges of frequent neighbours, or fewer if fewer pairs occur twice.

        Raises:
          InputError: no word has two characters, or the library cannot use the words.
        """
        from subword_nmt import apply_bpe, learn_bpe  # the library is only needed with --bpe

        if all(len(word) < 2 for word in word_counts):
            raise InputError(f"--bpe={merges}: the training text has no word of two characters; leave --bpe out")
        # The library breaks ties by the order of its input.
        words = sorted(word_counts.items(), key=lambda item: (-item[1], item[0]))
        codes = io.StringIO()
        said = io.StringIO()  # the library prints a progress bar, and an error's reason before it calls sys.exit
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                learn_bpe.learn_bpe((f"{word} {count}" for word, count in words), codes, merges, is_dict=True)
                codes.seek(0)
                self._bpe = apply_bpe.BPE(codes)
        except SystemExit:
            reason = " ".join(said.getvalue().split())
            raise InputError(
                f"--bpe={merges}: subword-nmt cannot use this text ({reason}). Remove the named text, or take --spm"
            ) from None
        self.model = codes.getvalue().encode()
        found = len(codes.getvalue().splitlines()) - 1  # the first line is the library's version
        self.fewer = ""
        if found < merges:
            self.fewer = (
                f"{self.file_name}: {found} merges, not the {merges} of --bpe: no other pair of neighbours occurs "
                "twice, and few words are split. A few thousand are usual"
            )
        self._words = tuple(word_counts)

    @property
    def units(self) -> set[str]:
        """All subwords that a word of the text can be split into with BPE-dropout."""
        return Merges(self.model.decode().rstrip("\n").split("\n"), self.file_name).units | characters(self._words)

    def segment(self, line: str) -> str:
        """Return the line's units, separated by spaces; all but the last unit of a word end in "@@"."""
        return " ".join(self._bpe.segment_tokens([token for token in line.split(" ") if token]))


class SentencePieces:
    """The unigram language model of library sentencepiece (Kudo 2018, arXiv:1804.10959; Kudo, Richardson 2018)."""

    file_name = "spm.model"

    def __init__(self, lines: Iterable[str], pieces: int) -> None:
        """Learn `pieces` units from lines of text.

        Raises:
          InputError: the text is too small, or has too many characters, for that number.
        """
        import sentencepiece  # the library is only needed with --spm

        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
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
        self.model = model.getvalue()
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def segment(self, line: str) -> str:
        """Return the line's units, separated by spaces; a unit at the start of a word begins with "\u2581"."""
        return " ".join(self._processor.encode(line, out_type=str))
