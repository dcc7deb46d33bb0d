"""Makes vocabularies, and with --bpe or --spm subword text, from parallel text.

    python -m nmt.prepare --train_prefix=data/train --src=en --tgt=de --out_dir=D
        [--tokenizer=moses | --tokenizer=sentencepiece] [--casing=marked] [--normalization=nfc]
        [--bpe=N | --spm=N] [--apply=data/dev,data/test] [--min_count=K] [--share_vocab] [--all_subwords]

reads data/train.en and data/train.de, and writes D/vocab.en and D/vocab.de. A file may be compressed: data/train.en.gz.
Several prefixes, separated by commas, are one text. With --share_vocab both vocabularies hold the tokens of both
languages.

Raw text needs --tokenizer: moses splits off punctuation, and sentencepiece cuts pieces of --spm directly. Without it
the tokens of the input must be separated by spaces. The prepared text is D/train.en, D/train.de and the same for each
prefix of --apply. The target file of an --apply prefix may be missing. With --like=D0 texts are prepared as those of
D0, an earlier D, with the same vocabularies and subwords. D/preparation.json records what was done. Training reads it
with --vocab_prefix=D/vocab --train_prefix=D/train, and so does translation.

The same input gives the same output, with any number of --processes. All results are computed before the first file
appears in D.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import IO

from nmt.core.errors import InputError
from nmt.core.files import RAW, make_directory, put_in_place, replace_atomically, unwritable
from nmt.core.interruption import termination_is_raised
from nmt.core.parallel import Mapping, cores, pieces, processes
from nmt.core.scratch import scratch_folder
from nmt.core.standard_output import write_lines
from nmt.options.command import TrainingText, run
from nmt.options.option import POSITIVE, option
from nmt.text.preparation import (
    RECORD,
    TOKENIZERS,
    VOCABULARY,
    Preparation,
    Recipe,
    read_preparation,
    record_files,
    recorded_texts,
    words,
    write_record,
)
from nmt.text.raw_lines import packed_or_plain, read_lines
from nmt.text.raw_words import CASINGS, NORMALIZATIONS
from nmt.text.subwords import FILES, Learnt, dropout_units, learn_byte_pairs, learn_pieces
from nmt.text.tokens import split
from nmt.text.vocabulary import EOS, SOS, UNK, Vocabulary, read_vocabulary, write_vocabulary
from nmt.text.word_counts import WordCounts

_PIECE_LINES = 5_000  # lines that a process prepares at a time
_ONE_PROCESS_BYTES = 8 << 20  # a small text is prepared faster than processes start
_ATTACHED = re.compile(r"\w[.!?,]( |$)")  # punctuation that no tokeniser has split off
_LOOKS_RAW = 0.3  # share of lines
_SEVERAL = "train"  # name of the training text that several prefixes make
_WORDS = "words"  # scratch file of a text before subwords are cut; names of texts have a dot


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
      notices: messages for the user.
    """

    vocabularies: tuple[Vocabulary, Vocabulary]
    files: tuple[FileSummary, ...]
    notices: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the summary for the user."""
        sizes = (f"{vocabulary.path}: {vocabulary.size} words" for vocabulary in self.vocabularies)
        return "\n".join(chain(sizes, map(str, self.files), self.notices))


@dataclass
class _Text:
    """One language of a text.

    Attributes:
      name: name of the prepared text's file.
      language: suffix of the files.
      paths: input files, one after the other.
      is_training: whether vocabularies and subwords are learnt from it.
      counts: numbers of its tokens, which are words or subwords.
      lines: number of lines of each input file.
      looks_raw: number of lines with punctuation that no tokeniser has split off.
    """

    name: str
    language: str
    paths: list[str]
    is_training: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    lines: list[int] = field(default_factory=list)
    looks_raw: int = 0

    @property
    def file_name(self) -> str:
        return f"{self.name}.{self.language}"


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
    tokenizer: str = "none",
    normalization: str | None = None,
    casing: str = "keep",
    like: str | None = None,
    processes: int | None = None,
) -> Summary:
    """Make vocabularies and prepared text; the module's docstring names the files.

    Args:
      train_prefix: prefix of the training text, `<train_prefix>.<src>` and `<train_prefix>.<tgt>`; or several prefixes,
        separated by commas.
      src: suffix of the source files.
      tgt: suffix of the target files.
      out_dir: output directory; made if missing.
      apply: prefixes of other texts that are prepared and counted in the same way.
      bpe: number of BPE merges, learnt from both languages together; None for no BPE.
      spm: number of pieces of a SentencePiece model of both languages; None for none. Excludes `bpe`.
      min_count: least count in the training text of a token in the vocabularies.
      share_vocab: whether both vocabularies hold the tokens of both languages, counted together.
      all_subwords: whether the vocabularies also hold the units that BPE-dropout produces when it skips merges.
      tokenizer: "none", "moses" or "sentencepiece".
      normalization: "none", "nfc", "nfkc" or "moses"; None for "nfc" with a tokenizer, and "none" without.
      casing: "keep", "lower" or "marked".
      like: directory of texts that were prepared before: their vocabularies and subwords are taken, and nothing is
        learnt. Excludes the options of what is learnt and how.
      processes: number of processes; None for the number of cores.

    Raises:
      InputError: a file cannot be read or written, or an argument is invalid.
    """
    subword_option = "bpe" if bpe is not None else "spm" if spm is not None else ""
    normal = normalization or ("none" if tokenizer == "none" else "nfc")
    recipe = Recipe(src, tgt, tokenizer, normal, casing, subword_option, share_vocab)
    known = None
    if like is not None:
        known = _known(like, recipe, {"min_count": min_count != 1, "all_subwords": all_subwords})
        recipe = known.recipe
    else:
        _check(recipe, bpe, spm, min_count)
    if all_subwords and bpe is None:
        raise InputError("--all_subwords applies to byte pair encoding only: give --bpe, or leave it out")
    directory = Path(out_dir)
    texts = _texts(train_prefix, apply, (src, tgt))
    written = texts if recipe.changes_words or recipe.subwords else []
    _check_outputs(texts, written, recipe, directory, like)
    # New processes first: they do not hold the scratch folder's lock then.
    with _mapping(texts, processes, spm is not None) as mapping, _scratch(directory) as scratch:
        counts = WordCounts(scratch)
        _split(texts, recipe, scratch, mapping, None if bpe is None else counts)
        learnt = Learnt(known.model) if known else _learn(texts, counts, scratch, mapping, bpe, spm)
        more = dropout_units(learnt.model, map(itemgetter(0), counts)) if all_subwords else set()
        if recipe.subwords:
            _cut(texts, known or Preparation(recipe, learnt.model), scratch, mapping)
        make_directory(directory)
        if known:
            vocabularies = _copied_vocabularies(Path(str(like)), recipe, directory)
        else:
            vocabularies = _write_vocabularies(texts, recipe, directory, min_count, more)
        if recipe.subwords:
            with replace_atomically(directory / FILES[recipe.subwords], "wb") as file:
                file.write(learnt.model)
        for text in written:
            put_in_place(scratch / text.file_name, directory / text.file_name)
            if recipe.raw and not text.is_training:
                put_in_place(scratch / RAW / text.file_name, make_directory(directory / RAW) / text.file_name)
        # Last: it says that the other files are complete.
        write_record(directory, recipe, [text.file_name for text in written])
    of = dict(zip((src, tgt), vocabularies, strict=True))
    summaries = (
        FileSummary(text.file_name, sum(text.lines), text.counts.total(), _unknown(text, of[text.language]))
        for text in texts
    )
    notices = [learnt.notice, *map(_marks_notice, texts)]
    notices += [_raw_notice(text) for text in texts if text.is_training and not recipe.raw and not known]
    return Summary(vocabularies, tuple(summaries), tuple(filter(None, notices)))


def _known(like: str, asked: Recipe, other: dict[str, bool]) -> Preparation:
    """Return the preparation of a directory.

    Args:
      like: the directory.
      asked: recipe of the options; all but the languages must be the defaults.
      other: whether further options were given, by name.

    Raises:
      InputError: there is none, or its languages are others, or an option contradicts it.
    """
    if (known := read_preparation(like)) is None:
        what = "has no record of a preparation" if os.path.exists(like) else "does not exist"
        raise InputError(f"--like={like} {what}: give an out_dir of nmt.prepare, or the directory preparation of a run")
    if (known.recipe.src, known.recipe.tgt) != (asked.src, asked.tgt):
        raise InputError(
            f"--src={asked.src} --tgt={asked.tgt} are not the languages of --like={like}, which are "
            f"{known.recipe.src} and {known.recipe.tgt}"
        )
    given = [name for name, is_given in other.items() if is_given]
    plain = asdict(Recipe(asked.src, asked.tgt))
    given += [name for name, value in asdict(asked).items() if value != plain[name]]
    if given:
        name = {"subwords": "bpe or --spm"}.get(given[0], given[0])
        raise InputError(f"--like={like} takes everything from there: leave --{name} out")
    return known


def _copied_vocabularies(source: Path, recipe: Recipe, directory: Path) -> tuple[Vocabulary, Vocabulary]:
    """Copy the vocabularies of another directory."""
    made = []
    for language in (recipe.src, recipe.tgt):
        words = read_vocabulary(source / f"{VOCABULARY}.{language}").words
        made.append(write_vocabulary(directory / f"{VOCABULARY}.{language}", words[3:]))
    return made[0], made[1]


def _check(recipe: Recipe, bpe: int | None, spm: int | None, min_count: int) -> None:
    if recipe.src == recipe.tgt:
        raise InputError(f"--src and --tgt are both {recipe.src}; they are the suffixes of two different files")
    if bpe is not None and spm is not None:
        raise InputError("--bpe and --spm are two ways to make subwords; give one of them")
    for name, value in (("bpe", bpe), ("spm", spm), ("min_count", min_count)):
        if value is not None and value < 1:
            raise InputError(f"--{name}={value} must be at least 1")
    if recipe.tokenizer == "sentencepiece" and spm is None:
        raise InputError("--tokenizer=sentencepiece cuts text into pieces: give their number by --spm")
    if recipe.tokenizer == "moses" and spm is not None:
        raise InputError("--spm does not need --tokenizer=moses: give --tokenizer=sentencepiece, or --bpe with moses")
    if recipe.tokenizer == "sentencepiece" and recipe.casing == "marked":
        raise InputError("--casing=marked marks words: give --tokenizer=moses, or another --casing")


def _texts(train_prefix: str, apply: Sequence[str], languages: Sequence[str]) -> list[_Text]:
    """Return both languages of each text, the training text first; a missing target of `apply` is left out."""
    prefixes = _listed(train_prefix)
    if not prefixes:
        raise InputError(f"--train_prefix={train_prefix} names no text: give the prefix of its files")
    name = Path(prefixes[0]).name if len(prefixes) == 1 else _SEVERAL
    texts = [_Text(name, x, [packed_or_plain(f"{prefix}.{x}") for prefix in prefixes], True) for x in languages]
    for prefix in apply:
        paths = [packed_or_plain(f"{prefix}.{language}") for language in languages]
        pair = zip(languages, paths[: 1 + os.path.exists(paths[1])], strict=False)
        texts += [_Text(Path(prefix).name, language, [path]) for language, path in pair]
    return texts


def _listed(prefixes: str) -> list[str]:
    return [prefix.strip() for prefix in prefixes.split(",") if prefix.strip()]


def _check_outputs(
    texts: Sequence[_Text], written: Sequence[_Text], recipe: Recipe, directory: Path, like: str | None
) -> None:
    """Check that no file would be lost.

    Args:
      texts: all texts.
      written: those that are written into the directory.
      recipe: what is done.
      directory: output directory.
      like: directory whose vocabularies and subwords are taken.

    Raises:
      InputError: two inputs have one output, an output is an input, or a text that was prepared before is left.
    """
    belonging = {directory / name: "the files of the preparation" for name in (RECORD, *record_files(recipe))}
    made = dict(belonging)
    for text in texts:
        for path in _outputs(text, recipe, directory):
            if path in made:
                raise InputError(
                    f"{text.paths[0]} and {made[path]} would both be written to {path}; rename one of them"
                )
            made[path] = text.paths[0]
    outputs = chain(belonging, *(_outputs(text, recipe, directory) for text in written))
    replaced = {os.path.realpath(path): path for path in outputs}
    for given in chain.from_iterable(text.paths for text in texts):
        if output := replaced.get(os.path.realpath(given)):
            raise InputError(
                f"{given} would be overwritten by the output {output}; choose another --out_dir than {directory}"
            )
    again = {text.file_name for text in written}
    alike = like is not None and os.path.realpath(like) == os.path.realpath(directory)
    why = "the new record would not name it" if alike else "would not fit the new files there"
    for name in recorded_texts(directory):
        if name not in again and os.path.exists(directory / name):
            raise InputError(
                f"{directory / name} was prepared before and {why}: name its text in --apply, remove it, or choose "
                "another --out_dir"
            )


def _outputs(text: _Text, recipe: Recipe, directory: Path) -> list[Path]:
    """Return the files that a prepared text takes the place of."""
    paths = [directory / text.file_name]
    return [*paths, directory / RAW / text.file_name] if recipe.raw and not text.is_training else paths


@contextlib.contextmanager
def _scratch(directory: Path) -> Iterator[Path]:
    """Yield a new directory for unfinished files, next to where the finished ones will be.

    Raises:
      InputError: a file in the block cannot be written.
    """
    place = directory.absolute()
    while not place.is_dir():
        place = place.parent
    with contextlib.ExitStack() as stack:
        try:
            scratch = stack.enter_context(scratch_folder(place, ".nmt-prepare-"))
            (scratch / RAW).mkdir()
        except OSError as error:
            raise InputError(f"{place}: cannot be written ({error.strerror}); choose another --out_dir") from error
        try:
            yield scratch
        except OSError as error:
            raise InputError(unwritable(error.filename2 or directory, error)) from error


def _mapping(texts: Sequence[_Text], number: int | None, apart: bool) -> contextlib.AbstractContextManager[Mapping]:
    size = sum(os.path.getsize(path) for text in texts for path in text.paths if os.path.isfile(path))
    return processes(1 if size < _ONE_PROCESS_BYTES else number or cores(), apart)


def _split(
    texts: Sequence[_Text], recipe: Recipe, scratch: Path, mapping: Mapping, of_training: WordCounts | None
) -> None:
    """Write the words of all texts, and count them: for the vocabulary, or for what is learnt from the training text.

    Raises:
      InputError: a file cannot be used, or the languages of a text have different numbers of lines.
    """
    for text in texts:
        has_words = False
        with contextlib.ExitStack() as files:
            lines: Iterator[str] = chain.from_iterable(_checked(path, text.lines) for path in text.paths)
            if recipe.raw and not text.is_training:
                lines = _copied(lines, files.enter_context(_new(scratch / RAW / text.file_name)))
            output = files.enter_context(_new(scratch / text.file_name))
            work = functools.partial(_words_of, recipe, text.language)
            for piece, counts, raw in mapping(work, pieces(lines, _PIECE_LINES)):
                output.writelines(line + "\n" for line in piece)
                text.looks_raw += raw
                has_words = has_words or bool(counts)
                if not recipe.subwords:
                    text.counts.update(counts)
                elif of_training is not None and text.is_training:
                    of_training.add(counts)
        if not has_words:
            raise InputError(
                f"{text.paths[0]} has no word in any of its {sum(text.lines)} lines: give a file with text"
            )
    for _, group in groupby(texts, key=lambda text: text.name):
        sides = [zip(text.paths, text.lines, strict=True) for text in group]
        for (path, lines), *others in zip(*sides, strict=True):
            for other, count in others:
                if count != lines:
                    raise InputError(
                        f"{path} has {lines} lines and {other} has {count}. Parallel files need the same number of "
                        "lines"
                    )


def _new(path: Path) -> IO[str]:
    """Return a file to write in the scratch directory."""
    return open(path, "w", encoding="utf-8", newline="\n")


def _checked(path: str, counts: list[int]) -> Iterator[str]:
    """Yield the lines of a file, and append their number to `counts`.

    Raises:
      InputError: a line has a carriage return inside: programs disagree on its lines.
    """
    lines, number = read_lines(path), 0
    for number, line in enumerate(lines, 1):
        if "\r" in line:
            is_all = number == 1 and next(lines, None) is None
            new = "'\\n', if it ends the lines" if is_all else "' '"
            raise InputError(f"{path}, line {number}: has a carriage return in it; replace it with tr '\\r' {new}")
        yield line
    counts.append(number)


def _copied(lines: Iterable[str], file: IO[str]) -> Iterator[str]:
    for line in lines:
        file.write(line + "\n")
        yield line


def _words_of(recipe: Recipe, language: str, lines: Sequence[str]) -> tuple[list[str], Counter[str], int]:
    """Return lines as words, the counts of the words, and the number of lines that look raw."""
    found = [words(recipe, line, language) for line in lines]
    raw = 0 if recipe.raw else sum(bool(_ATTACHED.search(line)) for line in lines)
    return found, Counter(chain.from_iterable(map(split, found))), raw


def _learn(
    texts: Sequence[_Text], counts: WordCounts, scratch: Path, mapping: Mapping, bpe: int | None, spm: int | None
) -> Learnt:
    if bpe is not None:
        return learn_byte_pairs(counts, bpe)
    if spm is not None:
        paths = [os.fspath(scratch / text.file_name) for text in texts if text.is_training]
        return next(mapping(functools.partial(_pieces_of, spm), [paths]))
    return Learnt(b"")


def _pieces_of(spm: int, paths: Sequence[str]) -> Learnt:
    return learn_pieces(chain.from_iterable(zip(*map(read_lines, paths), strict=True)), spm)


def _cut(texts: Sequence[_Text], preparation: Preparation, scratch: Path, mapping: Mapping) -> None:
    """Replace the words of all texts by subwords, and count these."""
    for text in texts:
        path, words = scratch / text.file_name, scratch / _WORDS
        os.replace(path, words)
        work = functools.partial(_tokens_of, preparation.recipe, preparation.model)
        with _new(path) as output:
            for piece, counts in mapping(work, pieces(read_lines(os.fspath(words)), _PIECE_LINES)):
                output.writelines(line + "\n" for line in piece)
                text.counts.update(counts)


@functools.lru_cache(maxsize=1)
def _preparation(recipe: Recipe, model: bytes) -> Preparation:
    return Preparation(recipe, model)


def _tokens_of(recipe: Recipe, model: bytes, lines: Sequence[str]) -> tuple[list[str], Counter[str]]:
    found = [_preparation(recipe, model).cut(line) for line in lines]
    return found, Counter(chain.from_iterable(map(split, found)))


def _write_vocabularies(
    texts: Sequence[_Text], recipe: Recipe, directory: Path, min_count: int, more: set[str]
) -> tuple[Vocabulary, Vocabulary]:
    """Write the vocabularies of the training text's tokens, and of `more` tokens."""
    counts = [text.counts for text in texts if text.is_training]
    if recipe.share_vocab:
        counts = [counts[0] + counts[1]] * 2
    made = []
    for language, count in zip((recipe.src, recipe.tgt), counts, strict=True):
        listed = _frequent(count, min_count)
        listed += sorted(more - {UNK, SOS, EOS, *listed})
        made.append(write_vocabulary(directory / f"{VOCABULARY}.{language}", listed))
    return made[0], made[1]


def _frequent(counts: Counter[str], min_count: int) -> list[str]:
    """Return the vocabulary without special words, most frequent words first, ties in code point order."""
    words = [word for word, count in counts.items() if count >= min_count and word not in (UNK, SOS, EOS)]
    return sorted(words, key=lambda word: (-counts[word], word))


def _unknown(text: _Text, vocabulary: Vocabulary) -> int:
    return sum(count * vocabulary.count_unknown([token]) for token, count in text.counts.items())


def _marks_notice(text: _Text) -> str:
    found = [f"{mark} {text.counts[mark]} times" for mark in (SOS, EOS) if text.counts[mark]]
    said = (
        f"{text.file_name} has {' and '.join(found)} as words. The model marks sentences with them, so it reads {UNK}"
    )
    return f"{said} there. If they matter, write them in another way" * bool(found)


def _raw_notice(text: _Text) -> str:
    lines = sum(text.lines)
    if text.looks_raw <= _LOOKS_RAW * lines:
        return ""
    return (
        f"{text.file_name} looks raw: {text.looks_raw} of {lines} lines have punctuation attached to a word. If nobody "
        "has split it off, give --tokenizer=moses"
    )


@dataclass(frozen=True)
class PrepareOptions(TrainingText):
    """Command-line options of `nmt.prepare`."""

    out_dir: str | None = option(None, "Directory for all output files; made if missing.", required=True)
    apply: str = option("", "Prefixes of other texts to prepare and count, separated by commas.")
    tokenizer: str = option(
        "none",
        "Way to find the words of raw text; none: the input's tokens are separated by spaces.",
        allowed=TOKENIZERS,
    )
    normalization: str | None = option(
        None,
        "Normal form of the characters; unset: nfc with a tokenizer, none without.",
        allowed=NORMALIZATIONS,
    )
    casing: str = option(
        "keep",
        "Treatment of capital letters; marked: a token before a word says that it has them, and translations get them "
        "back.",
        allowed=CASINGS,
    )
    bpe: int | None = option(None, "Number of BPE merges, learnt from both languages together.")
    spm: int | None = option(None, "Number of pieces of a SentencePiece model of both languages.")
    min_count: int = option(1, "Least count of a token in the vocabularies.")
    share_vocab: bool = option(False, "One vocabulary of both languages; training takes this over from the record.")
    all_subwords: bool = option(
        False,
        "With --bpe: all units that BPE can produce, for nmt.nmt --src_bpe_dropout --tgt_bpe_dropout.",
    )
    like: str | None = option(
        None, "Directory of prepared texts whose vocabularies, subwords and recipe are taken; nothing is learnt."
    )
    processes: int | None = option(None, "Number of processes; unset: the number of cores.", within=POSITIVE)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""

    def command(options: PrepareOptions) -> None:
        given = asdict(options)
        given["apply"] = _listed(options.apply)
        write_lines([prepare(**given)])

    with termination_is_raised():
        return run(command, PrepareOptions, __doc__ or "", argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
