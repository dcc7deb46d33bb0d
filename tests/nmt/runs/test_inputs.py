"""How ranks, and starts of a run, compare the texts that they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.core.ranks import CollectiveError, Ranks
from nmt.options.resolve import resolve
from nmt.runs.inputs import changed_texts, check_same_text, read_vocabularies, text_record, unknown_words
from nmt.text.character_vocabulary import CharacterVocabulary
from nmt.text.corpus import ParallelCorpus, open_parallel
from nmt.text.vocabulary import write_vocabulary
from tests.nmt.core.thread_ranks import outcomes
from tests.nmt.options.test_configuration import NEEDED


def corpus(directory: Path, target: str = "A B\nC\n") -> ParallelCorpus:
    """Return a corpus; its lengths do not depend on ``target``."""
    directory.mkdir(exist_ok=True)
    (directory / "x.en").write_text("a b\nc\n")
    (directory / "x.de").write_text(target)
    return open_parallel(directory / "x.en", directory / "x.de")


def test_ranks_compare_contents_and_name_the_file(tmp_path: Path) -> None:
    texts = [corpus(tmp_path / str(rank), "B A\nC\n" if rank == 2 else "A B\nC\n") for rank in range(3)]

    def compare(ranks: Ranks) -> None:
        check_same_text(ranks, [texts[0], texts[ranks.rank]])

    errors = outcomes(3, compare)
    assert all(isinstance(error, CollectiveError) for error in errors)
    assert [error.is_mine for error in errors] == [False, False, True]
    assert str(errors[2]).startswith(f"{tmp_path}/2/x.de is not the same text on all ranks")
    assert "rank 2 differs from rank 0" in str(errors[2])
    assert outcomes(2, compare) == [None, None]


def test_a_start_compares_with_what_was_recorded(tmp_path: Path) -> None:
    record = text_record({"dev": corpus(tmp_path)})
    assert changed_texts({"dev": corpus(tmp_path)}, record) == []
    assert changed_texts({"dev": corpus(tmp_path, "A C\nC\n")}, record) == [f"{tmp_path}/x.de"]
    assert changed_texts({"test": corpus(tmp_path)}, record) == []  # the record has no such text


def test_texts_must_fit_their_vocabularies(tmp_path: Path) -> None:
    text, config = corpus(tmp_path), resolve(NEEDED)
    source = write_vocabulary(tmp_path / "vocab.en", ["a", "b", "c"])
    target = write_vocabulary(tmp_path / "vocab.de", ["A", "B"])
    said = unknown_words(resolve(NEEDED | {"max_unknown_share": 0.4}), {"train": text, "test": text}, (source, target))
    assert (
        said
        == [
            f"{tmp_path}/x.en: 0.00 % of its tokens are not in {tmp_path}/vocab.en",
            f"warning: {tmp_path}/x.de: 33.33 % of its tokens are not in {tmp_path}/vocab.de",
        ]
        * 2
    )
    for name in ("train", "dev"):
        told = f"{tmp_path}/x.de: 33.33 % of its tokens are not in {tmp_path}/vocab.de: .*nmt.prepare, .*--max_unknown"
        with pytest.raises(InputError, match=told):
            unknown_words(config, {name: text}, (source, target))
        with pytest.raises(InputError, match="nmt.prepare --share_vocab"):
            unknown_words(resolve(NEEDED | {"share_vocab": True}), {name: text}, (source, target))
    assert len(unknown_words(config, {"test": text}, (source, target))) == 2  # a test text may be of another domain
    characters = unknown_words(
        resolve(NEEDED | {"max_unknown_share": 1}), {"dev": text}, (CharacterVocabulary(), target)
    )
    assert len(characters) == 1 and f"{tmp_path}/x.de: " in characters[0]


def test_subwords_must_be_joined_as_they_were_made(tmp_path: Path) -> None:
    pieces = {"bpe": ["a@@", "b"], "spm": ["\u2581a", "b"], "": ["a", "b"]}
    for kind, words in pieces.items():
        for side in ("en", "de"):
            write_vocabulary(tmp_path / f"vocab.{side}", words)
        for option in pieces:
            config = resolve(NEEDED | {"subword_option": option, "vocab_prefix": f"{tmp_path}/vocab"})
            if option and kind and option != kind:
                with pytest.raises(InputError, match=f"--subword_option={option} does not fit .*={kind}$"):
                    read_vocabularies(config, {})
            else:
                vocabularies = read_vocabularies(config, {})
                told = unknown_words(config, {}, vocabularies)
                assert len(told) == ((kind == "") != (option == "") and (kind, option) != ("", "bpe")), (kind, option)
                what = "scored without spaces" if option else f"without --subword_option={kind} translations and"
                assert all(what in one for one in told)


def test_a_joint_vocabulary_must_be_one(tmp_path: Path) -> None:
    """The other file may exist, as prepare --share_vocab writes it, or with the words of one side."""
    config = resolve(NEEDED | {"share_vocab": True, "vocab_prefix": f"{tmp_path}/vocab"})
    for preset, told in (("", "--share_vocab reads"), ("small", r"--share_vocab \(which --preset=small sets\) reads")):
        of_preset = resolve(NEEDED | {"preset": preset, "share_vocab": True, "vocab_prefix": f"{tmp_path}/vocab"})
        with pytest.raises(
            InputError, match=f"vocab.en cannot be read, and {told} it for both sides: make it with nmt.prepare"
        ):
            read_vocabularies(of_preset, {})
    write_vocabulary(tmp_path / "vocab.en", ["a", "b", "A"])
    assert len({id(one) for one in read_vocabularies(config, {})}) == 1
    for words in (["a", "b", "A"], ["A"]):
        write_vocabulary(tmp_path / "vocab.de", words)
        read_vocabularies(config, {})
    write_vocabulary(tmp_path / "vocab.de", ["A", "B"])
    with pytest.raises(InputError, match="vocab.de has other words. Make one vocabulary .*nmt.prepare --share_vocab"):
        read_vocabularies(config, {})
