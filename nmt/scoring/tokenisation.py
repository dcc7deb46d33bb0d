"""The tokenisation of sacreBLEU for a language, and the languages whose words are not separated by spaces.

The tutorial's metrics split lines at spaces, so in these languages a line would be one word. sacreBLEU's tokenisation
of the language makes the words instead, in training and in `nmt.score`. The language is that of the files' suffix.
Korean has spaces, but published figures are of its morphemes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from nmt.text.raw_words import code

_OF_LANGUAGES = {  # codes of ISO 639, or what stands for them in names of files -> tokenisations, the best first
    "zh zho chi cmn yue wuu nan hak lzh cn": ("zh",),
    "ja jpn jp": ("ja-mecab", "char"),
    "ko kor": ("ko-mecab", "char"),
    "th tha lo lao km khm my mya bur shn bo bod tib dz dzo": ("char",),
}
_OF_CODE = {one: kinds for codes, kinds in _OF_LANGUAGES.items() for one in codes.split()}


def is_without_spaces(language: str) -> bool:
    """Return whether words of a language are made by sacreBLEU's tokenisation, and not at spaces."""
    return code(language) in _OF_CODE


@functools.cache
def tokenisation(language: str) -> str:
    """Return the name of sacreBLEU's tokenisation for text in a language, of those whose packages are installed."""
    from sacrebleu.metrics import BLEU

    for kind in _OF_CODE.get(code(language), ()):
        try:
            BLEU(tokenize=kind)
        except RuntimeError:  # the packages of this tokenisation are not installed
            continue
        return kind
    return "13a"


def tokenised(lines: Iterable[str], language: str) -> list[str]:
    """Return text as words of sacreBLEU's tokenisation, which single spaces separate."""
    from sacrebleu.metrics import BLEU

    tokenizer = BLEU(tokenize=tokenisation(language)).tokenizer
    return [" ".join(tokenizer(line.rstrip()).split()) for line in lines]


def remarks(language: str) -> list[str]:
    """Return a line for the log about the words of scores; [] for a language whose words are separated by spaces."""
    if not is_without_spaces(language):
        return []
    best, kind = _OF_CODE[code(language)][0], tokenisation(language)
    missing = f", as {best} is not installed (pip install 'sacrebleu[{best[:2]}]')" if kind != best else ""
    return [f"# bleu is that of sacreBLEU, and all metrics are of the words of its tokenisation {kind}{missing}"]
