"""Translation of lines: every mode of search, for any lines and any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from nmt.core.ranks import Ranks
from nmt.model.inference_model import TrainedWeights
from nmt.options.config import Config
from nmt.search.translation_model import TranslationModel, translate_shared
from tests.nmt.core.thread_ranks import outcomes

LINES = ["a b c", "", "d", "   ", "g f e d c b a", "b unknown", "a b c", *(" ".join("abcdefg"[i:]) for i in range(7))]
MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sample": {"sampling_temperature": 1.0, "num_translations_per_input": 2, "random_seed": 5},
    "beam": {"beam_width": 3, "num_translations_per_input": 2, "coverage_penalty_weight": 0.2},
}


def model_of(toy: Any, **settings: Any) -> TranslationModel:
    """Return a model with the same random weights in each call; its translations have different lengths."""
    made = TranslationModel(TrainedWeights(toy.architecture), toy.src_vocab, toy.tgt_vocab, Config(**settings))
    random = np.random.default_rng(2)
    variables = made.session.graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES)
    for variable in sorted(variables, key=lambda one: one.name):
        value = random.uniform(-1.5, 1.5, variable.shape)
        made.session.run(variable.initializer, {variable.initializer.inputs[1]: value})
    return made


@pytest.mark.parametrize("mode", MODES)
def test_a_translation_is_that_of_the_line_alone(toy: Any, mode: str) -> None:
    """In batches of 1, 7 and 32, with any other lines, and shared by any number of ranks."""
    one, seven, many = (model_of(toy, infer_batch_size=size, **MODES[mode]) for size in (1, 7, 32))
    expected = one.translate(LINES)
    assert seven.translate(LINES) == many.translate(LINES) == expected
    assert [many.translate([line])[0] for line in LINES] == expected == many.translate(LINES[::-1])[::-1]
    for size in (2, 3, 20):
        assert outcomes(size, lambda ranks: translate_shared(seven, LINES, ranks)) == [expected] * size, size
    found = 1 if mode == "greedy" else 2
    assert [len(translations) for translations in expected] == [found] * len(LINES)
    assert expected[1] == expected[3] == [""] * found
    assert one.translate([]) == []
    assert len({len(best.split()) for best, *_ in expected}) > 3
    assert expected[0] == expected[6]


def test_samples_follow_seed_source_and_place(toy: Any) -> None:
    model = model_of(toy, **MODES["sample"])
    found = model.translate(["g f e d c b a", "g f e d c a b", "g f e d c b a"])
    assert found[0] == found[2] != found[1]
    assert found[0][0] != found[0][1]
    assert model_of(toy, **{**MODES["sample"], "random_seed": 6}).translate(["g f e d c b a"])[0] != found[0]
    assert model_of(toy, sampling_temperature=1.0, random_seed=5).translate(["g f e d c b a"]) == [found[0][:1]]


def test_the_best_come_first(toy: Any) -> None:
    """As many translations as requested, but not more than there are hypotheses."""
    best = model_of(toy, beam_width=3).translate(LINES)
    three = model_of(toy, beam_width=3, num_translations_per_input=5).translate(LINES)
    assert [translations[:1] for translations in three] == best
    assert all(len(translations) == 3 for translations in three)
    assert len(set(three[4])) == 3


def test_a_beam_of_one_is_greedy(toy: Any) -> None:
    assert model_of(toy, beam_width=1).translate(LINES) == model_of(toy).translate(LINES)


@pytest.mark.parametrize("mode", MODES)
def test_any_line(toy: Any, mode: str) -> None:
    """Long lines, and characters that no vocabulary has; all unknown words give the same translation."""
    model = model_of(toy, tgt_max_len_infer=9, **MODES[mode])
    odd = ["a \u2028 b", "a \t b", "a \x00 b", "a 漢字 b", "a " + "x" * 10_000 + " b", "a \U0001f600 b", "a \r b"]
    found = model.translate([*odd, "a b " * 700])
    assert all(translations == found[0] for translations in found[:7])
    assert all(0 <= len(text.split()) <= 9 for translations in found for text in translations)
    assert not any("\n" in text for translations in found for text in translations)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_translation_are_at_least(toy: Any, mode: str) -> None:
    """At least min_length tokens, even if twice the source plus ten is less; and no unknown word."""
    model = model_of(toy, min_length=14, ban_unk_token=True, **MODES[mode])
    for translations in model.translate(["a", "a b c d e f g"]):
        assert all(len(text.split()) >= 14 and "<unk>" not in text for text in translations)


def test_tokens_of_a_source_are_limited(toy: Any) -> None:
    model = model_of(toy, src_max_len_infer=2)
    assert model.translate(["a b c d"]) == model.translate(["a b"])


@pytest.mark.parametrize("mode", MODES)
def test_alignment(toy: Any, mode: str) -> None:
    """It has the words of the best translation, and weights with a sum of 1 for each word."""
    model = model_of(toy, **MODES[mode])
    for number, line in enumerate(LINES):
        alignment = model.align(line)
        if not line.strip():
            assert alignment is None, number
            continue
        assert alignment is not None, number
        assert alignment.source == line.split(), number
        words = [word for word in alignment.target if word != "</s>"]
        assert " ".join(words) == model.translate([line])[0][0], number
        assert "</s>" not in alignment.target[:-1], number
        assert alignment.weights.shape == (len(alignment.target), len(alignment.source)), number
        np.testing.assert_allclose(alignment.weights.sum(1), 1, rtol=1e-5, err_msg=f"number {number}")


def test_settings() -> None:
    assert Config().search_mode == "greedy"
    assert Config(sampling_temperature=0.5).search_mode == "sample"
    assert Config(beam_width=2, sampling_temperature=0.5).search_mode == "beam_search"
    assert Config(infer_mode="greedy", beam_width=2, num_translations_per_input=4).translations == 1


class Echo:
    """Translates a line into itself, and counts the words that it was given."""

    def __init__(self) -> None:
        self.shares: dict[int, int] = {}  # number of words, by number of lines

    def translate(self, lines: Sequence[str]) -> list[list[str]]:
        self.shares[len(lines)] = sum(len(line.split()) for line in lines)
        return [[f"{line}/"] for line in lines]


def test_shares_are_in_order_and_equal() -> None:
    lines = [" ".join("w" * (i * 7 % 40)) for i in range(101)]
    shares: list[dict[int, int]] = []

    def body(ranks: Ranks) -> list[list[str]]:
        model: Any = Echo()
        shares.append(model.shares)
        return translate_shared(model, lines, ranks)

    expected = [[f"{line}/"] for line in lines]
    assert outcomes(4, body) == [expected] * 4
    counts = [count for share in shares for count in share]
    words = [total for share in shares for total in share.values()]
    assert sum(counts) == 101 and max(counts) - min(counts) <= 1
    assert max(words) - min(words) <= 40
