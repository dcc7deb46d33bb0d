"""nmt.scoring.metrics: scores that can be worked out by hand, and properties for any text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from nmt.scoring.metrics import METRICS, accuracy, bleu, common_subsequence, rouge, word_accuracy


def texts(seed: int, lines: int = 40, longest: int = 12) -> list[str]:
    """Return random lines of few words, some of them blank."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(list("abcdef"), random.integers(longest))) for _ in range(lines)]


def test_equal_text_scores_100() -> None:
    assert bleu(["a b c d e", "f g h i"], ["a b c d e", "f g h i"]) == pytest.approx(100)


def test_precisions_by_hand() -> None:
    # 5 tokens; of the 1..4-grams 4/5, 3/4, 2/3 and 1/2 occur in the reference: their product is 1/5. No brevity.
    assert bleu(["a b c d x"], ["a b c d e"]) == pytest.approx(100 * 0.2**0.25)


def test_brevity_by_hand() -> None:
    # All n-grams match; there are 4 tokens instead of 6.
    assert bleu(["a b c d"], ["a b c d e f"]) == pytest.approx(100 * math.exp(1 - 6 / 4))


def test_too_long_is_punished_by_precision_only() -> None:
    # 4/6, 3/5, 2/4, 1/3
    assert bleu(["a b c d e f"], ["a b c d"]) == pytest.approx(100 * (4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25)


def test_counts_are_clipped_per_sentence_and_summed_over_the_corpus() -> None:
    # 1-grams 1+4 of 4+4, 2-grams 0+3 of 3+3, 3-grams 2 of 4, 4-grams 1 of 2.
    expected = 100 * (5 / 8 * 3 / 6 * 2 / 4 * 1 / 2) ** 0.25
    assert bleu(["a a a a", "p q r s"], ["a b c d", "p q r s"]) == pytest.approx(expected)


def test_no_match_of_some_order_scores_0() -> None:
    assert bleu(["a b c"], ["a b c"]) == 0
    assert bleu(["a b x c d"], ["a b y c d"]) == 0
    assert bleu([], []) == 0
    assert bleu([""], ["a b c d"]) == 0


def test_an_empty_line_is_one_empty_token() -> None:
    # 5 tokens each; one of the 1-grams does not match, all longer n-grams do.
    assert bleu(["", "a b c d"], ["x", "a b c d"]) == pytest.approx(100 * (4 / 5) ** 0.25)


def test_case_counts() -> None:
    assert bleu(["A b c d e"], ["a b c d e"]) < bleu(["a b c d e"], ["a b c d e"])


def test_rouge_by_hand() -> None:
    # "a c d" is common: R = 3/5, P = 3/4, b = 5/4.
    expected = (1 + 25 / 16) * 3 / 5 * 3 / 4 / (3 / 5 + 25 / 16 * 3 / 4)
    assert rouge(["a b c d"], ["a c d e f"]) == pytest.approx(100 * expected)
    # The mean of this score, of 0 (no common word), and of two equal sentences.
    assert rouge(["a b c d", "x", "", "y z"], ["a c d e f", "y", "", "y z"]) == pytest.approx(25 * (expected + 2))


def test_order_counts_for_rouge() -> None:
    # One word of two is in common order: R = P = 1/2, F = 1/2.
    assert rouge(["b a"], ["a b"]) == pytest.approx(50)


def test_accuracy_by_hand() -> None:
    assert accuracy(["a b ", "c", "", "D"], ["a b", "d", "", "d"]) == pytest.approx(50)


def test_word_accuracy_by_hand() -> None:
    # 2 of 4 places, 1 of 1 (an empty token), 0 of 2, 0 of 3.
    found, wanted = ["a b c", "", "", "x a b"], ["a x c d", "", "a b", "a b"]
    assert word_accuracy(found, wanted) == pytest.approx(25 * (1 / 2 + 1))


def plain_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(second) + 1)
    for a in first:
        before = row
        row = [0]
        for j, b in enumerate(second):
            row.append(before[j] + 1 if a == b else max(row[j], before[j + 1]))
    return row[-1]


def test_common_subsequence_is_the_plain_one() -> None:
    for seed in range(40):
        first, second = (list(text.replace(" ", "")) for text in texts(seed, lines=2, longest=90))
        assert common_subsequence(first, second) == plain_common(first, second) == common_subsequence(second, first), (
            seed
        )
    assert common_subsequence([], ["a"]) == common_subsequence(["a"], []) == 0


def test_long_files() -> None:
    """A thousand lines of a hundred words; two lines of many thousands, for which a table would take minutes."""
    first, second = (texts(seed, lines=1000, longest=200) for seed in (1, 2))
    assert 0 < rouge(first, second) < 100
    word = list("abcdefgh") * 2500
    assert common_subsequence(word, word[::-1]) > 2500


@pytest.mark.parametrize("name", METRICS)
def test_any_metric(name: str) -> None:
    """100 for the references, 0 for nothing in common, values between otherwise; the order of lines is no matter."""
    metric = METRICS[name]
    found, wanted = texts(1), texts(2)
    assert metric(wanted, wanted) == pytest.approx(100)
    assert metric(["x y z"] * len(wanted), wanted) == 0
    score = metric(found, wanted)
    assert 0 <= score < 100
    assert metric(found[::-1], wanted[::-1]) == pytest.approx(score)
    half = metric(found[:20] + wanted[20:], wanted)
    assert score < half < 100
    assert metric([], []) == 0
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        metric(["a"], ["a", "b"])
