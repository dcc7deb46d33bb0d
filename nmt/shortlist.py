"""The words that each word of the source may become, from parallel text, for `nmt.nmt --shortlist`.

    python -m nmt.shortlist --train_prefix=data/train --src=en --tgt=de --vocab_prefix=data/vocab
        --out_file=data/shortlist [--candidates=50] [--frequent=100] [--pairs=100000]

reads data/train.en and data/train.de, in the subwords that the model is trained on, and writes a line for each word of
data/vocab.en: the word, and those of data/vocab.de that it most probably becomes (IBM Model 1). The line of the end
mark has the words that are frequent in the target, which a search may write whatever it reads.

The same input gives the same output.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically
from nmt.options.command import run
from nmt.options.option import POSITIVE, option
from nmt.text.corpus import open_parallel
from nmt.text.lines import TextFile
from nmt.text.tokens import split
from nmt.text.vocabulary import EOS
from nmt.text.word_translations import word_translations


def make_shortlist(
    train_prefix: str,
    src: str,
    tgt: str,
    vocab_prefix: str,
    out_file: str | os.PathLike[str],
    *,
    candidates: int = 50,
    frequent: int = 100,
    pairs: int = 100_000,
    eos: str = EOS,
) -> str:
    """Write a file of shortlists.

    Args:
        train_prefix: training text is `<train_prefix>.<src>` and `<train_prefix>.<tgt>`.
        src: suffix of the source files.
        tgt: suffix of the target files.
        vocab_prefix: vocabularies are `<vocab_prefix>.<src>` and `<vocab_prefix>.<tgt>`.
        out_file: its directory is made if missing.
        candidates: words of the target for each of the source, at most.
        frequent: words of the target for every sentence, at most.
        pairs: most sentence pairs that are read, from all over the text.
        eos: the word that ends a sentence.

    Returns:
        what was done, for the user.

    Raises:
        InputError: a file cannot be read or written, or text and vocabularies do not fit.
    """
    corpus = open_parallel(f"{train_prefix}.{src}", f"{train_prefix}.{tgt}")
    vocabularies = [tuple(TextFile(f"{vocab_prefix}.{suffix}")) for suffix in (src, tgt)]
    numbers = np.unique(np.linspace(0, len(corpus) - 1, min(pairs, len(corpus))).astype(int))
    sources, targets = (
        _known([text.line(number) for number in numbers], words)
        for text, words in zip((corpus.src, corpus.tgt), vocabularies, strict=True)
    )
    found = word_translations(sources, targets).best(candidates)
    if not len(found.sources):
        raise InputError(
            f"{train_prefix}.{src} and {train_prefix}.{tgt} have no pair with words of {vocab_prefix}.*: give the text "
            "that the vocabularies were made from, in its subwords"
        )
    of_target = vocabularies[1]
    counts = Counter(int(one) for ids in targets for one in ids)
    usual = sorted(counts, key=lambda one: (-counts[one], one))[:frequent]
    lines = {eos: [of_target[one] for one in usual]}
    for source, target in zip(found.sources.tolist(), found.targets.tolist(), strict=True):
        lines.setdefault(vocabularies[0][source], []).append(of_target[target])
    make_directory(Path(out_file).parent)
    with replace_atomically(out_file) as file:
        file.writelines(" ".join([word, *others]) + "\n" for word, others in lines.items())
    return f"{os.fspath(out_file)}: {len(lines)} words of {len(vocabularies[0])}, from {len(numbers)} sentence pairs"


def _known(lines: Sequence[str], words: Sequence[str]) -> list[np.ndarray]:
    """The numbers of each line's words, without those that are unknown."""
    ids = {word: number for number, word in enumerate(words)}
    return [np.array([ids[word] for word in split(line) if word in ids], np.int64) for line in lines]


@dataclass(frozen=True)
class ShortlistOptions:
    """The command line."""

    title: ClassVar[str] = "options"

    train_prefix: str | None = option(
        None, "Training text is <train_prefix>.<src> and <train_prefix>.<tgt>.", required=True
    )
    src: str | None = option(None, "Suffix of the source files.", required=True)
    tgt: str | None = option(None, "Suffix of the target files.", required=True)
    vocab_prefix: str | None = option(None, "Vocabularies are <vocab_prefix>.<src> and .<tgt>.", required=True)
    out_file: str | None = option(None, "What is written.", required=True)
    candidates: int = option(50, "Words of the target for each of the source, at most.", within=POSITIVE)
    frequent: int = option(100, "Frequent words of the target, for every sentence.", within=POSITIVE)
    pairs: int = option(100_000, "Most sentence pairs that are read, from all over the text.", within=POSITIVE)
    eos: str = option(EOS, "The word that ends a sentence.")


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""

    return run(lambda options: print(make_shortlist(**asdict(options))), ShortlistOptions, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
