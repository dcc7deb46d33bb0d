"""Source words as characters, from the text to the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.checkpoints.checkpoint import Checkpoints, restore
from nmt.model.inference_model import TrainedWeights
from nmt.model.lstm.translator import LSTMTranslator
from nmt.model.parts.character_convolution import CharacterEmbedding
from nmt.model.parts.initializers import Initializer, initializer
from nmt.options.config import Config
from nmt.scoring.perplexity import LikelihoodModel
from nmt.search.translation_model import TranslationModel
from nmt.text.batches import make_batch, source_batch
from nmt.text.character_vocabulary import NUM_CHARACTERS, WORD_LENGTH, CharacterVocabulary
from nmt.train.schedule import Schedule
from nmt.train.step import TrainStep
from tests.nmt.model import graphs
from tests.nmt.model.graphs import EOS, SOS, architecture, v1
from tests.nmt.model.oracle_embeddings import character_vector
from tests.nmt.model.slopes import assert_gradients_are_slopes

CHARACTERS = CharacterVocabulary()
KIND = dict(src_vocab_size=NUM_CHARACTERS, character_source=True)
SENTENCES = [["The", "größte", "x" * 60], ["a"], ["aaaaaaaa", "y" * 44]]


def test_a_word_is_its_bytes() -> None:
    numbers = CHARACTERS.encode(["ab", "ü", "", "x" * 60])
    assert numbers.dtype == np.int32
    assert numbers[0].tolist() == [259, 98, 99, 260] + [261] * 46
    assert numbers[1].tolist() == [259, 0xC3 + 1, 0xBC + 1, 260] + [261] * 46
    assert numbers[2].tolist() == [259, 260] + [261] * 48
    assert numbers[3].tolist() == [259] + [ord("x") + 1] * 48 + [260]
    assert CHARACTERS.encode([]).shape == (0, WORD_LENGTH)
    assert CHARACTERS.encode(["\U0010ffff"]).max() < CHARACTERS.size == 262


def test_batches_of_words_as_characters(toy: Any) -> None:
    source, lengths = source_batch(SENTENCES, CHARACTERS, 2)
    assert source.shape == (2, 3, WORD_LENGTH)
    assert lengths.tolist() == [2, 1, 2]
    np.testing.assert_array_equal(source[:, 0], CHARACTERS.encode(SENTENCES[0][:2]))
    assert (source[1, 1] == 257).all()
    nothing = make_batch([], toy.train, CHARACTERS, toy.tgt_vocab, None, None, 1, 2)
    assert (nothing.source.shape, nothing.source_lengths.tolist()) == ((1, 1, WORD_LENGTH), [1])


def arrays() -> list[np.ndarray]:
    """Return a batch of the sentences above with random targets."""
    target = graphs.sentences([2, 4, 1], 13, seed=1)
    return [
        *source_batch(SENTENCES, CHARACTERS, None),
        graphs.time_major([[SOS, *words] for words in target], EOS),
        graphs.time_major([[*words, EOS] for words in target], EOS),
        np.array([3, 5, 2], np.int32),
    ]


@pytest.mark.parametrize("size", [None, 4])
def test_loss_is_that_of_the_numpy_model(size: int | None) -> None:
    arch = architecture(**KIND, src_embedding_size=size, attention="luong")
    batch = arrays()
    with graphs.model(arch) as (translator, session):
        places = [v1.placeholder(tf.int32, arch.source_shape)]
        places += [v1.placeholder(tf.int32, [None] * array.ndim) for array in batch[1:]]
        loss = session.run(translator.losses(*places).words, dict(zip(places, batch, strict=True)))
        oracle = graphs.oracle(arch, session)
    wanted = sum(
        oracle.loss(CHARACTERS.encode(words).tolist(), batch[2][:n, k].tolist(), batch[3][:n, k].tolist())
        for k, (words, n) in enumerate(zip(SENTENCES, batch[4], strict=True))
    )
    assert loss == pytest.approx(wanted, rel=1e-5)


def test_gradients_are_finite_differences() -> None:
    def loss() -> tf.Tensor:
        translator = LSTMTranslator(architecture(**KIND), initializer("uniform", 0.5, seed=5))
        return translator.losses(*map(tf.constant, arrays())).words

    assert_gradients_are_slopes(loss, step=1e-6)


def test_names() -> None:
    with tf.Graph().as_default():
        LSTMTranslator(architecture(**KIND), initializer())
        found = {v.op.name: v.shape.as_list() for v in v1.trainable_variables() if v.op.name.startswith("embeddings")}
    assert found == {
        "embeddings/encoder/embedding_encoder": [262, 16],
        "embeddings/encoder/convolution/kernel": [5, 16, 6],
        "embeddings/encoder/convolution/bias": [6],
        "embeddings/decoder/embedding_decoder": [13, 6],
    }


def test_a_vector_does_not_depend_on_the_neighbours() -> None:
    """Words of all lengths have equal vectors alone and together with long words."""
    words = CHARACTERS.encode(["b" * n for n in range(1, 53)])
    with tf.Graph().as_default(), v1.variable_scope("", custom_getter=initializer("uniform", 0.8, seed=2).getter):
        ids = v1.placeholder(tf.int32, [None, None, WORD_LENGTH])
        vectors = CharacterEmbedding(architecture(**KIND))(ids)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            together = session.run(vectors, {ids: words[None]})[0]
            alone = [session.run(vectors, {ids: word[None, None]})[0, 0] for word in words]
            padding = session.run(vectors, {ids: np.full((1, 1, WORD_LENGTH), 257)})
            weights = {v.op.name: session.run(v) for v in v1.global_variables()}
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(together, [character_vector(weights, word) for word in words.tolist()], atol=1e-5)
    assert (padding == -1).all()


def test_train_score_and_translate(toy: Any, tmp_path: Path) -> None:
    """The same source vocabulary serves training, scoring and translation; each word has a vector."""
    shape = architecture(**KIND, tgt_vocab_size=toy.tgt_vocab.size, attention="luong")
    batch = make_batch(range(6), toy.train, CHARACTERS, toy.tgt_vocab, None, None, 6, 1)
    with tf.Graph().as_default(), v1.Session() as session:
        schedule = Schedule(0.1, num_train_steps=9)
        step = TrainStep(shape, Initializer(seed=1), Config(dropout=0.2), schedule)
        session.run(v1.global_variables_initializer())
        losses = [step.run(session, batch, np.array([1, 2], np.int32)).loss_sum for _ in range(5)]
        path = Checkpoints(tmp_path).save(session, v1.train.Saver(), 5)
    assert losses[-1] < losses[0]
    weights = TrainedWeights(shape)
    likelihood = LikelihoodModel(weights, CHARACTERS, toy.tgt_vocab, Config())
    translation = TranslationModel(weights, CHARACTERS, toy.tgt_vocab, Config(beam_width=2, tgt_max_len=4))
    restore(weights.session, weights.saver, path)
    assert 1 < likelihood.perplexity(toy.dev) < 20
    assert len(translation.translate(["a neverseen word", "", "b"])) == 3
