"""What becomes of a model's translations: their words, their text, and the raw references they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.core.errors import InputError
from nmt.scoring.score import Texts
from nmt.text.lines import TextFile
from nmt.text.preparation import RAW, Preparation, Recipe
from nmt.text.tokens import reference_text


class Finishing:
    """Makes words and text of translations whose subwords are joined already.

    Args:
      language: suffix of the target files, which is the code of the language.
      subword_option: notation of the subwords of prepared text: "", "bpe" or "spm".
      preparation: what was done to the training text; None if there is no record.
      raw: raw references, by the name of the text.
    """

    def __init__(
        self,
        language: str,
        subword_option: str,
        preparation: Preparation | None = None,
        raw: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._language, self._subword_option = language, subword_option
        self.preparation = preparation or Preparation(Recipe(language, language))
        self._raw = raw or {}

    def text(self, translation: str) -> str:
        """Return a translation as text."""
        return self.preparation.text(translation, self._language)

    def words(self, translation: str) -> str:
        """Return a translation as words that are separated by spaces, with their capital letters."""
        return self.preparation.cased(translation)

    def reference(self, line: str) -> str:
        """Return a line of a prepared reference in the form of `words`."""
        return self.words(reference_text(line, self._subword_option))

    def compared(self, name: str, translations: Sequence[str]) -> Texts | None:
        """Return translations of a text with its raw references; None if there are none."""
        return Texts(translations, self._raw[name], self._language) if name in self._raw else None


def raw_references(prefix: str, language: str, lines: int) -> list[str] | None:
    """Return the raw lines of a text that `nmt.prepare` has prepared; None if there are none.

    Args:
      prefix: prefix of the prepared text.
      language: suffix of the file.
      lines: number of lines of the prepared text.

    Raises:
      InputError: the raw text has another number of lines.
    """
    path = raw_path(f"{prefix}.{language}")
    if not path.exists():
        return None
    found = [line.strip() for line in TextFile(path)]
    if len(found) != lines:
        raise InputError(
            f"{path} has {len(found)} lines and {prefix}.{language} has {lines}: make both again with python -m "
            "nmt.prepare"
        )
    return found


def raw_path(prepared: str) -> Path:
    """Return the path of the raw text of a prepared file."""
    return Path(prepared).parent / RAW / Path(prepared).name
