"""Inputs of both kinds of runs, except checkpoints: vocabularies, pretrained vectors, parallel texts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.core.errors import InputError
from nmt.core.ranks import Ranks, check_equal, together
from nmt.options.config import Config
from nmt.options.presets import preset
from nmt.scoring.finishing import Finishing
from nmt.text.bpe_dropout import Merges, check_fit, read_merges
from nmt.text.character_vocabulary import CharacterVocabulary
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.lines import TextFile
from nmt.text.preparation import RECORD, Preparation, recorded
from nmt.text.tokens import begins_words, looks_like
from nmt.text.unknown_words import count_unknown
from nmt.text.vector_file import read_embeddings
from nmt.text.vocabulary import SourceVocabulary, Vocabulary, checked_vocabulary

Vocabularies = tuple[SourceVocabulary, Vocabulary]
_DECIDING = ("train", "dev")  # texts that must fit the vocabularies; a test text may be of another domain
_MANY_UNKNOWN = 0.1  # share of a text's tokens
_MANY_SUBWORDS_UNKNOWN = 0.01  # in a text to translate: with the right segmentation it has almost no unknown subwords
_WARNING = "warning: "


def read_vocabularies(config: Config, saved: Mapping[str, Any], writes: bool = False) -> Vocabularies:
    """Read both vocabularies, and check that the model was trained with them.

    Args:
        config: options of the run.
        saved: contents of the `hparams` file.
        writes: whether a vocabulary without the special words is completed by a file in out_dir, or only in memory.

    Raises:
        InputError: a file cannot be used, or has changed since the training began.
    """
    tgt = _read_vocabulary(config, saved, str(config.src if config.share_vocab else config.tgt), writes)
    marked = looks_like(tgt.words)
    if config.subword_option and marked and marked != config.subword_option:
        raise InputError(
            f"--subword_option={config.subword_option}{_by_preset(config, 'subword_option')} does not fit {tgt.path}, "
            f"which has subwords of {marked}: translations and their scores would be in subwords; give "
            f"--subword_option={marked}"
        )
    src: SourceVocabulary = tgt
    if config.share_vocab and not config.language_model:
        _check_joint(config, tgt)
    if config.use_char_encode:
        src = CharacterVocabulary()
    elif not config.share_vocab:
        src = _read_vocabulary(config, saved, str(config.src), writes)
    for name, value in vocabulary_record((src, tgt)).items():
        if name in saved and saved[name] != value:
            path = src.path if name.startswith("src") else tgt.path
            raise InputError(
                f"{path} is not the vocabulary that the model was trained with ({name} was {saved[name]}, is "
                f"{value}): restore it, or choose another out_dir"
            )
    return src, tgt


def check_vocabularies_exist(config: Config, flag: str) -> None:
    """Check that the vocabularies of a run, which a flag of another run names, are there.

    Raises:
        InputError: a file is missing.
    """
    sides = [(config.src, not config.use_char_encode), (config.tgt, not config.share_vocab)]
    for path in (f"{config.vocab_prefix}.{language}" for language, is_read in sides if is_read):
        if not os.path.exists(path):
            raise InputError(
                f"{flag} needs {path}, the vocabulary that this run was trained with: restore it there, or start in "
                "the directory that it is relative to"
            )


def _check_joint(config: Config, vocabulary: Vocabulary) -> None:
    """Raise InputError if the target's vocabulary file has words that the joint vocabulary lacks."""
    other = f"{config.vocab_prefix}.{config.tgt}"
    if os.path.exists(other) and set(TextFile(other)) - set(vocabulary.words):
        raise InputError(
            f"{_joint(config)} reads {vocabulary.path} for both sides, but {other} has other words. Make one "
            "vocabulary of both languages with python -m nmt.prepare --share_vocab, or give --noshare_vocab "
            f"--tie_embeddings=none. If {vocabulary.path} has both languages, remove {other}"
        )


def _joint(config: Config) -> str:
    return f"--share_vocab{_by_preset(config, 'share_vocab')}"


def _by_preset(config: Config, option: str) -> str:
    sets = preset(config.preset).get(option) == getattr(config, option)
    return f" (which --preset={config.preset} sets)" if sets else ""


def _read_vocabulary(config: Config, saved: Mapping[str, Any], suffix: str, writes: bool) -> Vocabulary:
    path = f"{config.vocab_prefix}.{suffix}"
    if not os.path.exists(path) and not os.path.isabs(path) and config.vocab_prefix == saved.get("vocab_prefix"):
        raise InputError(
            f"{path} cannot be read. The model's settings have this path relative to the directory where its training "
            f"was started; this directory is {os.getcwd()}. Start in that directory, or give --vocab_prefix"
        )
    if config.share_vocab and not os.path.exists(path):
        raise InputError(
            f"{path} cannot be read, and {_joint(config)} reads it for both sides: make it with nmt.prepare "
            "--share_vocab, or give --noshare_vocab --tie_embeddings=none"
        )
    out_dir, check = config.out_dir if writes else None, config.check_special_token
    return checked_vocabulary(path, out_dir, config.sos, config.eos, check_special_token=check)


class Vectors(NamedTuple):
    """Pretrained word vectors, float32 [words, size]; None for a side that trains its vectors from the start."""

    source: np.ndarray | None = None
    target: np.ndarray | None = None

    @property
    def record(self) -> dict[str, int | None]:
        """The sizes of the vectors, for the `hparams` file."""
        return {
            f"{side}_embedding_size": None if one is None else int(one.shape[1])
            for side, one in (("src", self.source), ("tgt", self.target))
        }


def read_vectors(config: Config, vocabularies: Vocabularies) -> Vectors:
    """Read the pretrained vectors that --embed_prefix names; one of the two files may be missing.

    Raises:
        InputError: a file cannot be used, or both are missing.
    """
    if config.embed_prefix is None:
        return Vectors()
    found = []
    for suffix, vocabulary in zip((config.src, config.tgt), vocabularies, strict=True):
        path = f"{config.embed_prefix}.{suffix}"
        there = os.path.exists(path) and isinstance(vocabulary, Vocabulary)
        found.append(read_embeddings(path, vocabulary) if there else None)  # type: ignore[arg-type]
    if config.share_vocab:
        found = [found[0], found[0]]
    if all(one is None for one in found):
        raise InputError(
            f"--embed_prefix={config.embed_prefix}: neither {config.embed_prefix}.{config.src} nor "
            f"{config.embed_prefix}.{config.tgt} exists: correct the prefix, or leave it out"
        )
    return Vectors(*found)


def vocabulary_record(vocabularies: Vocabularies) -> dict[str, Any]:
    """Return the sizes of the vocabularies and checksums of their words in order, for the `hparams` file."""
    record: dict[str, Any] = {}
    for side, vocabulary in zip(("src", "tgt"), vocabularies, strict=True):
        record[f"{side}_vocab_size"] = vocabulary.size
        record[f"{side}_vocab_sha256"] = _digest(vocabulary)
    return record


def check_same_vocabularies(ranks: Ranks, config: Config, vocabularies: Vocabularies) -> None:
    """Check that all ranks have the same vocabularies.

    Collective: every rank calls.

    Raises:
        CollectiveError: on every rank, if a vocabulary differs.
    """
    number = int("".join(_digest(vocabulary)[:7] for vocabulary in vocabularies), 16)  # below 2**56
    check_equal(ranks, number, f"the vocabularies {config.vocab_prefix}.* are not the same on all ranks")


def check_same_shortlist(ranks: Ranks, config: Config) -> None:
    """Check that all ranks read the same shortlist, if there is one.

    Collective: every rank calls.

    Raises:
        CollectiveError: on every rank, if a shortlist differs or cannot be read.
    """
    with together(ranks):
        checksum = TextFile(config.shortlist).checksum if config.shortlist else 0
    check_equal(ranks, checksum, f"{config.shortlist} is not the same on all ranks: copy one to all")


def _digest(vocabulary: SourceVocabulary) -> str:
    """Return the SHA-256 of the words in order, in hexadecimal."""
    return hashlib.sha256("\n".join(vocabulary.words).encode("utf-8")).hexdigest()


def read_recorded(config: Config) -> Preparation | None:
    """Read the record of how the text was prepared, next to the vocabularies; None if there is none.

    Raises:
        InputError: the record is damaged, or contradicts the options.
    """
    preparation = recorded(config.vocab_prefix)
    if preparation is None:
        return None
    recipe, path = preparation.recipe, Path(str(config.vocab_prefix)).with_name(RECORD)
    if not {config.src, config.tgt} <= {recipe.src, recipe.tgt}:
        raise InputError(
            f"--src={config.src} --tgt={config.tgt} are not the languages of {path}, {recipe.src} and {recipe.tgt}"
        )
    if config.subword_option != recipe.subwords:
        raise InputError(
            f"--subword_option={config.subword_option} contradicts {path}, where it is {recipe.subwords!r}: leave the "
            "flag out"
        )
    return preparation


def finishing(config: Config, texts: Iterable[str]) -> Finishing:
    """Return what makes text of translations, with the references, as text, of texts that the options name.

    Raises:
        InputError: a record or a raw reference cannot be used.
    """
    preparation = read_recorded(config)
    prefixes = {"dev": config.dev_prefix, "test": config.test_prefix}
    plain = Finishing(str(config.tgt), config.subword_option, preparation)
    raw = {}
    for name in texts if plain.preparation.recipe.raw else ():
        raw[name] = plain.references(f"{prefixes[name]}.{config.tgt}", is_prepared=True)
    return Finishing(str(config.tgt), config.subword_option, preparation, raw)


def open_text(config: Config, prefix: str | None) -> ParallelCorpus:
    """Open the parallel text `<prefix>.<src>`, `<prefix>.<tgt>`."""
    return open_parallel(f"{prefix}.{config.src}", f"{prefix}.{config.tgt}")


def open_held_out(config: Config) -> dict[str, ParallelCorpus]:
    """Open the texts for the evaluation during training, by name: "dev", and "test" if it is given."""
    prefixes = {"dev": config.dev_prefix, "test": config.test_prefix}
    return {name: open_text(config, prefix) for name, prefix in prefixes.items() if prefix}


def check_same_text(ranks: Ranks, corpora: Iterable[ParallelCorpus]) -> None:
    """Check that all ranks read texts with the same contents.

    Collective: every rank calls, with the same number of texts.

    Raises:
        CollectiveError: on every rank, naming the first file that differs.
    """
    for corpus in corpora:
        for file in (corpus.src, corpus.tgt):
            check_equal(ranks, file.checksum, f"{file.path} is not the same text on all ranks: copy one to all")


def merges_of(config: Config, corpus: ParallelCorpus, vocabularies: Vocabularies) -> Merges | None:
    """Read the BPE merges for BPE-dropout and check that they fit the training text; None without BPE-dropout.

    Raises:
        InputError: the file --bpe_codes cannot be used, or does not fit the text or the vocabularies.
    """
    rates = config.src_bpe_dropout, config.tgt_bpe_dropout
    if not any(rates):
        return None
    joints = read_merges(str(config.bpe_codes))
    for rate, text, vocabulary in zip(rates, (corpus.src, corpus.tgt), vocabularies, strict=True):
        if rate:
            check_fit(joints, text, vocabulary if isinstance(vocabulary, Vocabulary) else None)
    return joints


def text_record(corpora: Mapping[str, ParallelCorpus]) -> dict[str, dict[str, int]]:
    """Return checksums of the contents of texts, for the `hparams` file."""
    return {name: {"src": corpus.src.checksum, "tgt": corpus.tgt.checksum} for name, corpus in corpora.items()}


def changed_texts(corpora: Mapping[str, ParallelCorpus], record: Mapping[str, Any]) -> list[str]:
    """Return the paths of the files that differ from their checksums in a record of `text_record`."""
    changed = []
    for name, corpus in corpora.items():
        before = record.get(name, {})
        for side, file in (("src", corpus.src), ("tgt", corpus.tgt)):
            if before.get(side, file.checksum) != file.checksum:
                changed.append(file.path)
    return changed


def unknown_in_input(config: Config, vocabulary: SourceVocabulary) -> list[str]:
    """Return a warning about the words of a text to translate that the vocabulary lacks; [] if they are few.

    Raises:
        InputError: their share is more than --max_unknown_share.
    """
    if not isinstance(vocabulary, Vocabulary):
        return []
    marked = looks_like(vocabulary.words)
    cut = f"segment it with the same subword model ({marked})" if marked else "tokenise it"
    remedy = f"Prepare it like the training text: {cut}, with the same capitals"
    many = _MANY_SUBWORDS_UNKNOWN if marked else _MANY_UNKNOWN
    line = _fitting(TextFile(str(config.inference_input_file)), vocabulary, config.max_unknown_share, remedy, many)
    return [f"{line}. {remedy}"] if line.startswith(_WARNING) else []


def _fitting(text: TextFile, vocabulary: Vocabulary, most: float, remedy: str, many: float = _MANY_UNKNOWN) -> str:
    """Return a log line about the share of a text's words that a vocabulary lacks.

    Raises:
        InputError: the share is more than `most`.
    """
    found = count_unknown(text, vocabulary)
    if found.share > most:
        raise InputError(
            f"{found}: the model would see <unk> in their place. {remedy}, or allow it with --max_unknown_share"
        )
    return f"{_WARNING * (found.share > many or bool(found.marks))}{found}"


def unknown_words(config: Config, corpora: Mapping[str, ParallelCorpus], vocabularies: Vocabularies) -> list[str]:
    """Return log lines about the words of texts that the vocabularies lack, and about a wrong --subword_option.

    Raises:
        InputError: their share in the training or the development text is more than --max_unknown_share.
    """
    lines = []
    for name, corpus in corpora.items():
        for text, vocabulary in zip((corpus.src, corpus.tgt), vocabularies, strict=True):
            if not isinstance(vocabulary, Vocabulary):
                continue  # a character vocabulary has no unknown words
            shared = " --share_vocab" if config.share_vocab else ""
            remedy = f"Make text and vocabularies together (python -m nmt.prepare{shared}, with one --bpe or --spm"
            most = config.max_unknown_share if name in _DECIDING else 1.0
            lines.append(_fitting(text, vocabulary, most, f"{remedy} for all texts)"))
    marked = looks_like(vocabularies[1].words)
    if marked and not config.subword_option:
        lines.append(
            f"warning: {vocabularies[1].path} has subwords: without --subword_option={marked} translations and their "
            "scores are in subwords"
        )
    if config.subword_option == "spm" and not begins_words(vocabularies[1].words):
        lines.append(
            f"warning: {vocabularies[1].path} has no piece that begins a word: with --subword_option=spm translations "
            "are written and scored without spaces"
        )
    return lines
