"""Makes vocabularies, and with --bpe or --spm subword text, from parallel text.

    python -m nmt.prepare --train_prefix=data/train --src=en --tgt=de --out_dir=D
        [--bpe=N | --spm=N] [--apply=data/dev,data/test] [--min_count=K] [--share_vocab]
        [--all_subwords]

reads data/train.en and data/train.de, whose tokens are separated by spaces, and writes D/vocab.en and D/vocab.de.
With --share_vocab both files hold one vocabulary of both languages; training then needs --share_vocab, too.

With --bpe or --spm it also writes D/bpe.codes or D/spm.model, and the segmented text: D/train.en, D/train.de and the
same for each prefix of --apply. The target file of an --apply prefix may be missing. Training then takes
--vocab_prefix=D/vocab, --train_prefix=D/train, and --subword_option=bpe or spm.

The same input gives the same output. All results are computed before the first file is written.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from nmt.core.errors import InputError
from nmt.core.files import make_directory, replace_atomically
from nmt.options.command import TrainingText, run
from nmt.options.option import option
from nmt.text.corpus import open_parallel
from nmt.text.lines import TextFile
from nmt.text.subwords import BytePairs, SentencePieces, Subwords
from nmt.text.tokens import split
from nmt.text.vocabulary import EOS, SOS, UNK, Vocabulary, write_vocabulary


@dataclass(frozen=True)
class FileSummary:
    """Counts of one text file.

    Attributes:
      name: the file's name without its directory, such as "dev.en".
      lines: number of lines.
      tokens: number of tokens, after segmentation.
      unknown: number of tokens that are not in the vocabulary.
    """

    name: str
    lines: int
    tokens: int
    unknown: int

    def __str__(self) -> str:
        """Return the file's line of the summary."""
        rate = 100 * self.unknown / max(1, self.tokens)
        return f"{self.name}: {self.lines} lines, {self.tokens} tokens, {rate:.2f} % of them unknown"


@dataclass(frozen=True)
class Summary:
    """Result of `prepare`.

    Attributes:
      vocabularies: source and target vocabulary.
      files: summaries of the training text, then of the texts that `apply` names.
      fewer: message that fewer BPE merges were learnt than asked for; empty otherwise.
    """

    vocabularies: tuple[Vocabulary, Vocabulary]
    files: tuple[FileSummary, ...]
    fewer: str = ""

    def __str__(self) -> str:
        """Return the summary for the user."""
        sizes = (f"{vocabulary.path}: {vocabulary.size} words" for vocabulary in self.vocabularies)
        return "\n".join(chain(sizes, map(str, self.files), [self.fewer] * bool(self.fewer)))


def prepare(
    train_prefix: str,
    src: str,
    tgt: str,
    out_dir: str | os.PathLike[str],
    *,
    apply: Sequence[str] = (),
    bpe: int | None = None,
    spm: int | None = None,
    min_count: int = 1,
    share_vocab: bool = False,
    all_subwords: bool = False,
) -> Summary:
    """Make vocabularies and subword text; the module's docstring names the files.

    Args:
      train_prefix: prefix of the training text, `<train_prefix>.<src>` and `<train_prefix>.<tgt>`.
      src: suffix of the source files.
      tgt: suffix of the target files.
      out_dir: output directory; made if missing.
      apply: prefixes of other texts that are segmented and counted in the same way.
      bpe: number of BPE merges, learnt from both languages together; None for no BPE.
      spm: number of pieces of a SentencePiece model of both languages; None for none. Excludes `bpe`.
      min_count: least count in the training text of a token in the vocabularies.
      share_vocab: whether both vocabularies hold the tokens of both languages, counted together.
      all_subwords: whether the vocabularies also hold the units that BPE-dropout produces when it skips merges.

    Raises:
      InputError: a file cannot be read or written, or an argument is invalid.
    """
    _check(src, tgt, bpe, spm, min_count)
    if all_subwords and bpe is None:
        raise InputError("--all_subwords applies to byte pair encoding only: give --bpe, or leave it out")
    prefixes = [train_prefix, *apply]
    directory = Path(out_dir)
    train = open_parallel(f"{train_prefix}.{src}", f"{train_prefix}.{tgt}")
    texts = {(train_prefix, src): train.src, (train_prefix, tgt): train.tgt} | _open(apply, src, tgt)
    for text in texts.values():
        _check_text(text)
    subwords = _learn(train.src, train.tgt, bpe, spm)
    if subwords:
        _check_outputs(prefixes, (src, tgt), directory)

    segmented = {key: [subwords.segment(line) for line in text] if subwords else text for key, text in texts.items()}
    counts = {key: _count_tokens(lines) for key, lines in segmented.items()}
    counted = {side: counts[train_prefix, side] for side in (src, tgt)}
    if share_vocab:
        counted = dict.fromkeys(counted, counted[src] + counted[tgt])
    more = subwords.units if all_subwords and isinstance(subwords, BytePairs) else set()
    words = {side: _frequent(count, min_count) for side, count in counted.items()}
    words = {side: [*listed, *sorted(more - set(listed))] for side, listed in words.items()}

    make_directory(directory)
    vocabularies = {side: write_vocabulary(directory / f"vocab.{side}", words[side]) for side in (src, tgt)}
    if subwords:
        with replace_atomically(directory / subwords.file_name, "wb") as file:
            file.write(subwords.model)
        for (prefix, side), lines in segmented.items():
            with replace_atomically(directory / f"{Path(prefix).name}.{side}") as file:
                file.writelines(line + "\n" for line in lines)
    return Summary(
        (vocabularies[src], vocabularies[tgt]),
        tuple(
            FileSummary(
                f"{Path(prefix).name}.{side}",
                len(texts[prefix, side]),
                count.total(),
                _unknown(count, vocabularies[side]),
            )
            for (prefix, side), count in counts.items()
        ),
        subwords.fewer if isinstance(subwords, BytePairs) else "",
    )


def _check(src: str, tgt: str, bpe: int | None, spm: int | None, min_count: int) -> None:
    if src == tgt:
        raise InputError(f"--src and --tgt are both {src}; they are the suffixes of two different files")
    if bpe is not None and spm is not None:
        raise InputError("--bpe and --spm are two ways to make subwords; give one of them")
    for name, value in (("bpe", bpe), ("spm", spm), ("min_count", min_count)):
        if value is not None and value < 1:
            raise InputError(f"--{name}={value} must be at least 1")


def _check_text(text: TextFile) -> None:
    """Raise InputError if a text has no word, or a carriage return inside a line: a vocabulary file cannot hold it."""
    text.check_words()
    for number, line in enumerate(text, 1):
        if "\r" in line:
            remedy = "tr '\\r' '\\n', if it ends the lines" if len(text) == 1 else "tr '\\r' ' '"
            raise InputError(f"{text.path}, line {number}: has a carriage return in it; replace it with {remedy}")


def _open(prefixes: Iterable[str], src: str, tgt: str) -> dict[tuple[str, str], TextFile]:
    """Open the files of the `apply` prefixes, by prefix and suffix; a missing target file is left out."""
    texts: dict[tuple[str, str], TextFile] = {}
    for prefix in prefixes:
        if os.path.exists(f"{prefix}.{tgt}"):
            pair = open_parallel(f"{prefix}.{src}", f"{prefix}.{tgt}")
            texts |= {(prefix, src): pair.src, (prefix, tgt): pair.tgt}
        else:
            texts[prefix, src] = TextFile(f"{prefix}.{src}")
    return texts


def _check_outputs(prefixes: Sequence[str], suffixes: tuple[str, str], directory: Path) -> None:
    """Raise InputError if two prefixes have the same output files, or an output file is an input file."""
    by_name: dict[str, str] = {"vocab": "the vocabularies"}
    for prefix in prefixes:
        path = Path(prefix)
        if path.name in by_name:
            raise InputError(
                f"{prefix} and {by_name[path.name]} would both be written to {directory / path.name}.*; "
                "rename one of them"
            )
        by_name[path.name] = prefix
        if path.parent.resolve() == directory.resolve():
            raise InputError(
                f"{prefix}.{suffixes[0]} would be overwritten by its own subword text; choose another "
                f"--out_dir than {directory}"
            )


def _learn(src: TextFile, tgt: TextFile, bpe: int | None, spm: int | None) -> Subwords | None:
    if bpe is not None:
        return BytePairs(_count_tokens(chain(src, tgt)), bpe)
    if spm is not None:
        return SentencePieces(chain(src, tgt), spm)
    return None


def _count_tokens(lines: Iterable[str]) -> Counter[str]:
    return Counter(chain.from_iterable(map(split, lines)))


def _frequent(counts: Counter[str], min_count: int) -> list[str]:
    """Return the vocabulary without special words, most frequent words first, ties in code point order."""
    words = [word for word, count in counts.items() if count >= min_count and word not in (UNK, SOS, EOS)]
    return sorted(words, key=lambda word: (-counts[word], word))


def _unknown(counts: Counter[str], vocabulary: Vocabulary) -> int:
    return sum(count * vocabulary.count_unknown([token]) for token, count in counts.items())


@dataclass(frozen=True)
class PrepareOptions(TrainingText):
    """Command-line options of `nmt.prepare`."""

    out_dir: str | None = option(None, "Directory for all output files; made if missing.", required=True)
    apply: str = option("", "Prefixes of other texts to segment and count, separated by commas.")
    bpe: int | None = option(None, "Number of BPE merges, learnt from both languages together.")
    spm: int | None = option(None, "Number of pieces of a SentencePiece model of both languages.")
    min_count: int = option(1, "Least count of a token in the vocabularies.")
    share_vocab: bool = option(False, "One vocabulary of both languages, for nmt.nmt --share_vocab.")
    all_subwords: bool = option(
        False,
        "With --bpe: all units that BPE can produce, for nmt.nmt --src_bpe_dropout, --tgt_bpe_dropout.",
    )


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""

    def command(options: PrepareOptions) -> None:
        given = asdict(options)
        given["apply"] = [prefix.strip() for prefix in options.apply.split(",") if prefix.strip()]
        print(prepare(**given))

    return run(command, PrepareOptions, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
