"""Makes the list of probable translations of each source word from parallel text, for `nmt.nmt --shortlist`.

    python -m nmt.shortlist --train_prefix=data/train --src=en --tgt=de --vocab_prefix=data/vocab
        --out_file=data/shortlist [--candidates=50] [--frequent=100] [--pairs=100000]

reads data/train.en and data/train.de, segmented into the subwords that the model is trained on. It writes a line for
each word of data/vocab.en that occurs in the text. The line has the word and its most probable translations in
data/vocab.de (IBM Model 1), with a probability of at least 0.001. The line of the end mark holds the most frequent
target words, which are allowed in every translation. A source word without a line allows only these.

The same input gives the same output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from nmt.core.errors import InputError
from nmt.core.files import check_no_input, make_directory, replace_atomically
from nmt.options.command import TrainingText, run
from nmt.options.option import POSITIVE, option
from nmt.text.corpus import open_parallel
from nmt.text.tokens import split
from nmt.text.vocabulary import EOS, SOS, checked_vocabulary
from nmt.text.word_translations import word_translations

_LEAST = 0.001  # least probability of a translation in the list


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
    sos: str = SOS,
    eos: str = EOS,
    check_special_token: bool = True,
    share_vocab: bool = False,
) -> str:
    """Write a file of shortlists.

    Args:
        train_prefix: prefix of the training text, `<train_prefix>.<src>` and `<train_prefix>.<tgt>`.
        src: suffix of the source files.
        tgt: suffix of the target files.
        vocab_prefix: prefix of the vocabularies, `<vocab_prefix>.<src>` and `<vocab_prefix>.<tgt>`.
        out_file: path of the file to write; its directory is made if missing.
        candidates: most target words for each source word.
        frequent: most target words that every sentence may have.
        pairs: most sentence pairs that are read, evenly spaced in the text.
        sos: the word that starts a sentence.
        eos: the word that ends a sentence.
        check_special_token: whether vocabularies begin with the special words, or have none of them.
        share_vocab: whether `<vocab_prefix>.<src>` is the vocabulary of both languages.

    Returns:
        a summary for the user.

    Raises:
        InputError: a file cannot be read or written, or the text does not fit the vocabularies.
    """
    make_directory(Path(out_file).parent)
    inputs = [f"{prefix}.{suffix}" for prefix in (train_prefix, vocab_prefix) for suffix in (src, tgt)]
    check_no_input("out_file", out_file, inputs)
    with replace_atomically(out_file) as file:  # before the work: it may not be writable
        corpus = open_parallel(f"{train_prefix}.{src}", f"{train_prefix}.{tgt}")
        vocabularies = [
            checked_vocabulary(f"{vocab_prefix}.{suffix}", None, sos, eos, check_special_token=check_special_token)
            for suffix in (src, src if share_vocab else tgt)
        ]
        numbers = np.unique(np.linspace(0, len(corpus) - 1, min(pairs, len(corpus))).astype(int))
        sides = list(zip((corpus.src, corpus.tgt), vocabularies, strict=True))
        sources, targets = ([words.encode(split(text.line(number))) for number in numbers] for text, words in sides)
        unknown = [
            sum(int((ids == 0).sum()) for ids in side) / max(1, sum(map(len, side))) for side in (sources, targets)
        ]
        targets = [ids[ids > 0] for ids in targets]  # a search may always write the unknown word
        counts = np.bincount(np.concatenate(targets))
        if not counts.size:
            raise InputError(
                f"{corpus.tgt.path} has no word of {vocabularies[1].path}: give the text that the vocabularies were "
                "made from, in its subwords"
            )
        usual = np.argsort(-counts, kind="stable")[: min(frequent, np.count_nonzero(counts))]
        found = word_translations(sources, targets).best(candidates, _LEAST)
        source_words, target_words = (one.words for one in vocabularies)
        lines = {eos: [*vocabularies[1].decode(usual)]}
        for source, target in zip(found.sources.tolist(), found.targets.tolist(), strict=True):
            lines.setdefault(source_words[source], []).append(target_words[target])
        file.writelines(" ".join([word, *others]) + "\n" for word, others in lines.items())
        told = (f"{100 * share:.2f} % of {text.path}" for share, (text, _) in zip(unknown, sides, strict=True))
        return (
            f"{os.fspath(out_file)}: {len(lines)} words of {len(source_words)}, from {len(numbers)} sentence pairs; "
            f"unknown are {' and '.join(told)}"
        )


@dataclass(frozen=True)
class ShortlistOptions(TrainingText):
    """Command-line options of `nmt.shortlist`."""

    vocab_prefix: str | None = option(None, "Vocabularies are <vocab_prefix>.<src> and .<tgt>.", required=True)
    out_file: str | None = option(None, "File to write.", required=True)
    candidates: int = option(50, "Most target words for each source word.", within=POSITIVE)
    frequent: int = option(100, "Number of frequent target words that every sentence may have.", within=POSITIVE)
    pairs: int = option(100_000, "Most sentence pairs that are read, evenly spaced in the text.", within=POSITIVE)
    sos: str = option(SOS, "The word that starts a sentence.")
    eos: str = option(EOS, "The word that ends a sentence.")
    check_special_token: bool = option(True, "Same as the flag of nmt.nmt.")
    share_vocab: bool = option(False, "<vocab_prefix>.<src> is the vocabulary of both languages.")


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    return run(lambda options: print(make_shortlist(**asdict(options))), ShortlistOptions, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
