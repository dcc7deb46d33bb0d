"""Words of raw text: splits off punctuation as the tools of Moses do, and attaches it again (library sacremoses)."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from nmt.core.errors import InputError


@functools.cache
def tokenizer(language: str, escape: bool = False) -> Callable[[str], str]:
    """Return a function that splits a line into words, separated by single spaces.

    Args:
      language: suffix of the language's files, such as "de"; its abbreviations keep their full stops.
      escape: whether characters such as `&` and `|` are written as `&amp;` and `&#124;`.

    Raises:
      InputError: sacremoses is not installed.
    """
    split = _library().MosesTokenizer(code(language))
    return lambda line: str(split.tokenize(line, return_str=True, escape=escape))


@functools.cache
def detokenizer(language: str) -> Callable[[str], str]:
    """Return a function that makes text of a line of words.

    Raises:
      InputError: sacremoses is not installed.
    """
    join = _library().MosesDetokenizer(code(language))
    return lambda line: str(join.detokenize(line.split(" "), return_str=True, unescape=False))


@functools.cache
def punctuation_normalizer(language: str) -> Callable[[str], str]:
    """Return a function that writes quotes, dashes and spaces in one way.

    Raises:
      InputError: sacremoses is not installed.
    """
    normalizer = _library().MosesPunctNormalizer(code(language))
    return lambda line: str(normalizer.normalize(line))


def code(suffix: str) -> str:
    """Return the code of the language of files with a suffix; for an unknown one the library has English rules.

    >>> code("tok.pt-BR")
    'pt'
    """
    return re.split("[-_]", suffix.rpartition(".")[2])[0].lower()


def _library() -> Any:
    try:
        import sacremoses
    except ImportError:
        raise InputError("this text is split into words by sacremoses: pip install sacremoses") from None
    return sacremoses
