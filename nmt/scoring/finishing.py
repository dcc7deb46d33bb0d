"""What becomes of a model's translations: their words, their text, and the raw references they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.core.errors import InputError
from nmt.core.files import raw_path
from nmt.scoring.score import Texts
from nmt.text.lines import TextFile
from nmt.text.preparation import Preparation, Recipe, read_preparation
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
        self.language, self._subword_option = language, subword_option
        self.preparation = preparation or Preparation(Recipe(language, language))
        self._raw = raw or {}

    def text(self, translation: str) -> str:
        """Return a translation as text."""
        return self.preparation.text(translation, self.language)

    def words(self, translation: str) -> str:
        """Return a translation as words that are separated by spaces, with their capital letters."""
        return self.preparation.cased(translation)

    def reference(self, line: str) -> str:
        """Return a line of a prepared reference in the form of `words`."""
        return self.words(reference_text(line, self._subword_option))

    def references(self, path: str, is_prepared: bool) -> list[str]:
        """Return the lines of a reference in the form of `text`, or of a source as text.

        If the model reads raw text, the text of a prepared file is the raw file that it was made of. If that is not
        there, it is the file's own lines with their preparation undone.

        Args:
          path: path of the file.
          is_prepared: whether the file is prepared; if not, it is only if its directory has a record.

        Raises:
          InputError: a file cannot be read, or the raw file has another number of lines.
        """
        lines, raw = TextFile(path), raw_path(path)
        if not self.preparation.recipe.raw:
            return list(map(self.reference, lines))
        if raw.exists():
            text = TextFile(raw)
            if len(text) != len(lines):
                raise InputError(
                    f"{raw} has {len(text)} lines and {path} has {len(lines)}: make both again with python -m "
                    "nmt.prepare"
                )
            return [line.strip() for line in text]
        preparation = read_preparation(Path(path).parent) or (self.preparation if is_prepared else None)
        if preparation is None:
            return [line.strip() for line in lines]
        joined = (reference_text(line, preparation.recipe.subwords) for line in lines)
        return [preparation.text(line, self.language) for line in joined]

    def compared(self, name: str, translations: Sequence[str]) -> Texts | None:
        """Return translations of a text with its raw references; None if there are none."""
        return Texts(translations, self._raw[name]) if name in self._raw else None
