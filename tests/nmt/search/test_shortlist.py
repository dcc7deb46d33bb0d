"""Shortlists, against searches in which other words have no probability, and against searches without a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.core.errors import InputError
from nmt.search.beam_search import beam_search
from nmt.search.greedy import greedy_search
from nmt.search.shortlist import Shortlist, ShortlistTranslator, read_shortlist
from nmt.text.vocabulary import Vocabulary, write_vocabulary
from tests.nmt.model import graphs
from tests.nmt.model.graphs import EOS, SOS
from tests.nmt.model.oracle_model import OracleModel
from tests.nmt.search.oracle_search import beam, greedy
from tests.nmt.search.test_search import LENGTHS, MODELS, padded
from tests.nmt.search.test_translation_model import LINES, model_of
from tests.nmt.search.test_translation_model import MODES as SEARCHES

# Candidates among 13 target words, by source word; source word 5 has none.
CANDIDATES = {3: [8, 4], 4: [12], 6: [9, 10, 3], 7: [5], 8: [6, 7], 9: [11, 4], 10: [3, 12]}
TO_ALL = [7, 10]
TIED: dict[str, dict[str, Any]] = {"tied": dict(tie_embeddings="decoder", tgt_embedding_size=4)}


class Narrow:
    """The decoding of the NumPy model, limited to the words of one source."""

    def __init__(self, decoding: Any, allowed: set[int]) -> None:
        self._decoding, self._allowed = decoding, allowed

    @property
    def weights(self) -> Any:
        return self._decoding.weights

    def step(self, word: int) -> tuple[np.ndarray, Narrow]:
        logits, after = self._decoding.step(word)
        closed = [one not in self._allowed for one in range(len(logits))]
        return np.where(closed, -np.inf, logits), Narrow(after, self._allowed)


class NarrowModel:
    """The NumPy model, limited to the words of each source."""

    def __init__(self, model: OracleModel) -> None:
        self._model = model

    def start(self, source: Any) -> Narrow:
        allowed = {0, 1, 2, *TO_ALL, *(one for word in source for one in CANDIDATES.get(word, []))}
        return Narrow(self._model.start(source), allowed)


def shortlist() -> Shortlist:
    return Shortlist((0, SOS, EOS), np.array(TO_ALL), {word: np.array(ids) for word, ids in CANDIDATES.items()})


@pytest.mark.parametrize(
    "kind",
    ["attention", "tied", *(pytest.param(k, marks=pytest.mark.long("attention's")) for k in ("plain", "gnmt"))],
)
def test_search_is_that_over_the_words_of_each_sentence(kind: str) -> None:
    """Words and scores are those of a model in which a sentence's other words have no probability."""
    rows = graphs.sentences(LENGTHS, 11)
    source = graphs.time_major(rows, EOS, 2)
    words, closed = shortlist().of(source, 5)
    with graphs.model(graphs.architecture(**{**MODELS, **TIED}[kind]), weight=2.0) as (translator, session):
        short: Any = ShortlistTranslator(translator, tf.constant(words)[:], tf.constant(closed))
        arguments = (tf.constant(source), tf.constant(LENGTHS), tf.constant(9))
        _, sos, eos = shortlist().places
        ids, scores = session.run(beam_search(short, *arguments, sos, eos, 4, 1.0))
        best, free = session.run(
            [greedy_search(short, *arguments, sos, eos), greedy_search(translator, *arguments, SOS, EOS)]
        )
        expected: Any = NarrowModel(graphs.oracle(translator.architecture, session))
        for k, row in enumerate(rows):
            wanted = beam(expected, row, 9, SOS, EOS, 4, 1.0)
            assert words[ids[k]].tolist() == [padded(one.words, ids.shape[2], EOS) for one in wanted], k
            np.testing.assert_allclose(scores[k], [one.score for one in wanted], rtol=1e-4, err_msg=f"k {k}")
            assert words[best[k]].tolist() == padded(greedy(expected, row, 9, SOS, EOS), best.shape[1], EOS), k
    assert best.shape != free.shape or (words[best] != free).any()


@pytest.mark.parametrize("specials", [(0, 7, 4), (0, 5, 5), (0, 0, 4)])
def test_special_words_anywhere(specials: tuple[int, int, int]) -> None:
    """Two of them may be the same word; a list of all words changes nothing."""
    rows, (_, sos, eos) = graphs.sentences(LENGTHS, 11), specials
    source = graphs.time_major(rows, EOS)
    every = Shortlist(specials, np.arange(13), {})
    place = every.places
    words, closed = every.of(source, 5)
    assert sorted(words.tolist()) == list(range(13)) and not closed.any()
    with graphs.model(graphs.architecture(**MODELS["attention"]), weight=2.0) as (translator, session):
        short: Any = ShortlistTranslator(translator, tf.constant(words), tf.constant(closed))
        arguments = (tf.constant(source), tf.constant(LENGTHS), tf.constant(9))
        ids, free = session.run(
            [
                beam_search(short, *arguments, place[1], place[2], 4, 1.0, 0.0, 3, place[0])[0],
                beam_search(translator, *arguments, sos, eos, 4, 1.0, 0.0, 3, 0)[0],
            ]
        )
    assert words[ids].tolist() == free.tolist()


def test_words_of_a_batch() -> None:
    """Special words, then the words of all sentences in order; some are excluded for some sentences."""
    words, closed = shortlist().of(np.array([[3, 5], [EOS, 9]]), 2)
    assert words.tolist() == [0, SOS, EOS, 4, 7, 8, 10, 11]
    assert words.dtype == np.int32
    assert closed.astype(int).tolist() == [[0, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 0, 0, 1, 0, 0]]
    words, closed = shortlist().of(np.array([[5]]), 9)
    assert words.tolist() == [0, SOS, EOS, 7, 10, 0, 0, 0, 0]
    assert closed[0].tolist() == [False] * 5 + [True] * 4


@pytest.mark.parametrize("mode", SEARCHES)
def test_a_list_of_all_words_changes_nothing(toy: Any, mode: str) -> None:
    """With any other lines in the batch. A list of few words does change lines, but none depends on the others."""
    letters = ["a", "b", "c", "d", "e", "f", "g"]
    path = toy.directory / "shortlist"
    path.write_text("</s> A B C\n" + "".join(f"{one} A B C D E F G\n" for one in letters) + "<unk> D E F G\n")
    all_words = model_of(toy, infer_batch_size=7, shortlist=str(path), **SEARCHES[mode]).translate(LINES)
    free = model_of(toy, infer_batch_size=7, **SEARCHES[mode]).translate(LINES)
    assert all_words == free
    path.write_text("</s> A\n" + "".join(f"{one} {one.upper()}\n" for one in letters))
    few, one = (model_of(toy, infer_batch_size=size, shortlist=str(path), **SEARCHES[mode]) for size in (7, 1))
    found = few.translate(LINES)
    assert found == one.translate(LINES) != free
    for line, translations in zip(LINES, found, strict=True):
        allowed = {"A", "<unk>", "<s>", *line.upper().split()}
        assert all(set(one.split()) <= allowed for one in translations), line


def test_a_beam_wider_than_the_list(toy: Any) -> None:
    path = toy.directory / "shortlist"
    path.write_text("</s>\na B\n")
    model = model_of(toy, beam_width=7, num_translations_per_input=7, shortlist=str(path))
    assert len({*model.translate(["a"])[0]}) > 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("</s> A\nx A\n", "shortlist, line 2: 'x' is not in SRC, so this is the shortlist of another"),
        ("</s> A\na x\n", "shortlist, line 2: 'x' is not in TGT, so this is the shortlist of another"),
        ("</s> A\na A\na A\n", "shortlist, line 3: 'a' has a line before it"),
        ("</s> A\n\na B\n", "shortlist, line 2: the line is empty"),
        ("a A\n", "shortlist has no line for '</s>', with the words that are open to every sentence"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, text: str, message: str) -> None:
    vocabularies: list[Vocabulary] = [write_vocabulary(tmp_path / f"v.{one}", [one]) for one in "aA"]
    (tmp_path / "shortlist").write_text(text)
    with pytest.raises(InputError) as told:
        read_shortlist(tmp_path / "shortlist", *vocabularies)
    message = message.replace("SRC", vocabularies[0].path).replace("TGT", vocabularies[1].path)
    assert message in str(told.value) and "python -m nmt.shortlist" in str(told.value)
