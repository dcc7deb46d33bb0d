"""Preparation: what `nmt.prepare` does to a line of text, and its record, next to the vocabularies.

The record is the file `preparation.json`. Training, evaluation and translation read it: new text is prepared in the
same way, and translations are turned into text again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically
from nmt.options.data_options import SUBWORD_OPTIONS
from nmt.text.raw_words import CASINGS, NORMALIZATIONS, detokenizer, normalized, prepared, restored, tokenizer
from nmt.text.subwords import FILES, subwords

RECORD = "preparation.json"
PREPARATION = "preparation"  # directory in a run's out_dir with the record and the files that it names
VOCABULARY = "vocab"  # name of the vocabulary files, without the language
TOKENIZERS = ("none", "moses", "sentencepiece")
_FORMAT = 1
_AGAIN = "make it again with python -m nmt.prepare"


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How lines are prepared.

    Attributes:
      src: suffix of the source files, which is the code of the language.
      tgt: suffix of the target files.
      tokenizer: "none" for text whose tokens are separated by spaces already; "moses"; "sentencepiece" for raw text
        that is cut into pieces only.
      normalization: one of `nmt.text.raw_words.NORMALIZATIONS`.
      casing: one of `nmt.text.raw_words.CASINGS`.
      subwords: notation of the subwords: "", "bpe" or "spm".
      share_vocab: whether both languages have one vocabulary.
    """

    src: str
    tgt: str
    tokenizer: str = "none"
    normalization: str = "none"
    casing: str = "keep"
    subwords: str = ""
    share_vocab: bool = False

    @property
    def raw(self) -> bool:
        """Whether the recipe reads raw text."""
        return self.tokenizer != "none"

    @property
    def changes_words(self) -> bool:
        """Whether it changes text before subwords are cut."""
        return self.raw or self.normalization != "none" or self.casing != "keep"


class Preparation:
    """Prepares lines, and makes text of translations.

    Args:
      recipe: what is done.
      model: contents of the subword model's file; empty without subwords.
    """

    def __init__(self, recipe: Recipe, model: bytes = b"") -> None:
        self.recipe, self.model = recipe, model
        self._subwords = subwords(recipe.subwords, model)

    def words(self, line: str, language: str) -> str:
        """Return a line of text as words, separated by spaces, before subwords are cut."""
        return words(self.recipe, line, language)

    def cut(self, words: str) -> str:
        """Return a line of words as the model's tokens."""
        return self._subwords.segment(words)

    def tokens(self, line: str, language: str) -> str:
        """Return a line of text as the model's tokens, separated by spaces."""
        return self.cut(self.words(line, language))

    def cased(self, words: str) -> str:
        """Return a translation, of which subwords are joined already, with its capital letters."""
        return restored(words, self.recipe.casing)

    def text(self, words: str, language: str) -> str:
        """Return a translation, of which subwords are joined already, as text."""
        cased = self.cased(words)
        return detokenizer(language)(cased) if cased and self.recipe.tokenizer == "moses" else cased


def words(recipe: Recipe, line: str, language: str) -> str:
    """Return a line of text as words, separated by spaces, before subwords are cut."""
    line = normalized(line, recipe.normalization, language)
    if line and recipe.tokenizer == "moses":
        line = tokenizer(language)(line)
    return prepared(line, recipe.casing)


def write_record(directory: Path, recipe: Recipe, texts: Sequence[str] = ()) -> None:
    """Write the record; all other files of the preparation must be there.

    Args:
      directory: the directory of the preparation.
      recipe: what was done.
      texts: names of the prepared texts' files in the directory.

    Raises:
      InputError: the record cannot be written.
    """
    contents = {
        "format": _FORMAT,
        "recipe": dataclasses.asdict(recipe),
        "files": {name: _digest((directory / name).read_bytes()) for name in record_files(recipe)},
        "texts": list(texts),
    }
    with replace_atomically(directory / RECORD) as file:
        json.dump(contents, file, indent=2)
        file.write("\n")


def read_preparation(directory: str | os.PathLike[str]) -> Preparation | None:
    """Read the record of a directory, and check that the files next to it are complete.

    Returns:
      None if the directory has no record.

    Raises:
      InputError: the record is damaged or of a newer format, or a file next to it is missing or was changed.
    """
    path = Path(directory) / RECORD
    try:
        contents = json.loads(path.read_text("utf-8"))
        recipe, digests = _parsed(path, contents)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}): copy it again, or {_AGAIN}") from None
    return Preparation(recipe, _checked(path, recipe, digests).get(FILES.get(recipe.subwords, ""), b""))


def recorded_texts(directory: str | os.PathLike[str]) -> list[str]:
    """Return the names of the texts that a record lists; [] if there is no record, or an older or a damaged one."""
    try:
        return [str(name) for name in json.loads((Path(directory) / RECORD).read_text("utf-8"))["texts"]]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def recorded(vocab_prefix: str | os.PathLike[str] | None) -> Preparation | None:
    """Read the record of the vocabularies with a prefix, as `read_preparation`.

    Returns:
      None if there is no record, or if the vocabularies have another name than those of a preparation.
    """
    prefix = Path(vocab_prefix or "")
    return read_preparation(prefix.parent) if prefix.name == VOCABULARY else None


def copy_preparation(vocab_prefix: str | os.PathLike[str] | None, target: str | os.PathLike[str]) -> None:
    """Copy a record and the files that it names, so that a model's directory has all that a translation needs.

    Args:
      vocab_prefix: prefix of the vocabularies, see `recorded`; without a record nothing is copied.
      target: directory for the copy; made if missing.

    Raises:
      InputError: a file cannot be read or written, or the target has the record of another preparation.
    """
    preparation = recorded(vocab_prefix)
    if preparation is None:
        return
    source, there = Path(vocab_prefix or "").parent, read_preparation(target)
    if there is not None:
        if (there.recipe, there.model) != (preparation.recipe, preparation.model):
            raise InputError(
                f"{target} has the record of another preparation than {source}: the model was trained with other text. "
                "Restore the text, or choose another out_dir"
            )
        return
    directory = make_directory(target)
    for name in record_files(preparation.recipe):
        with replace_atomically(directory / name, "wb") as file:
            file.write((source / name).read_bytes())
    write_record(directory, preparation.recipe)


def _parsed(path: Path, contents: dict[str, Any]) -> tuple[Recipe, dict[str, str]]:
    if not isinstance(contents["format"], int) or contents["format"] > _FORMAT:
        raise InputError(
            f"{path} was written by a newer version of nmt (format {contents['format']}, this one reads {_FORMAT}): "
            f"install that version, or {_AGAIN}"
        )
    recipe = Recipe(**contents["recipe"])
    allowed = {
        "tokenizer": TOKENIZERS,
        "normalization": NORMALIZATIONS,
        "casing": CASINGS,
        "subwords": SUBWORD_OPTIONS,
        "share_vocab": (False, True),
    }
    for name, values in allowed.items():
        if getattr(recipe, name) not in values:
            raise ValueError(f"{name} is {getattr(recipe, name)!r}")
    if not all(one and isinstance(one, str) and "/" not in one for one in (recipe.src, recipe.tgt)):
        raise ValueError("a language has no name")
    return recipe, dict(contents["files"])


def _checked(path: Path, recipe: Recipe, digests: dict[str, str]) -> dict[str, bytes]:
    """Return the contents of the files next to a record."""
    found = {}
    for name in record_files(recipe):
        try:
            found[name] = path.with_name(name).read_bytes()
        except OSError as error:
            raise InputError(
                f"{path.with_name(name)} cannot be read ({error.strerror}), but {path} names it: copy the whole "
                f"directory, or {_AGAIN}"
            ) from None
        if _digest(found[name]) != digests.get(name):
            raise InputError(
                f"{path.with_name(name)} is not the file that {path} was written with: it was changed, or cut off in "
                f"copying. Copy the whole directory, or {_AGAIN}"
            )
    return found


def record_files(recipe: Recipe) -> list[str]:
    """Return the names of the files next to a record, which belong to it."""
    names = [f"{VOCABULARY}.{language}" for language in (recipe.src, recipe.tgt)]
    return [*names, FILES[recipe.subwords]] if recipe.subwords else names


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()
