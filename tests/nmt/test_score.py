"""nmt.translate.score: golden scores that can be worked out by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nmt.errors import InputError
from nmt.translate.score import bleu, sacre_bleu, score_files


def test_equal_text_scores_100() -> None:
    assert bleu(["a b c d e", "f g h i"], ["a b c d e", "f g h i"]) == pytest.approx(100)


def test_precisions_by_hand() -> None:
    # 5 tokens; of the 1..4-grams 4/5, 3/4, 2/3 and 1/2 occur in the reference: their product is 1/5. No brevity.
    assert bleu(["a b c d x"], ["a b c d e"]) == pytest.approx(100 * 0.2**0.25)


def test_brevity_by_hand() -> None:
    # All n-grams match; 4 tokens stand for 6.
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
    # 5 tokens for 5; 4-grams and the rest of the second line match: only the 1-grams miss one.
    assert bleu(["", "a b c d"], ["x", "a b c d"]) == pytest.approx(100 * (4 / 5) ** 0.25)


def test_case_counts() -> None:
    assert bleu(["A b c d e"], ["a b c d e"]) < bleu(["a b c d e"], ["a b c d e"])


def test_sacrebleu_agrees_where_every_order_matches() -> None:
    hypotheses = ["the cat sat on the mat .", "a dog ran off to the park", "no"]
    references = ["the cat sat on a mat .", "the dog ran off to a park today", "no no"]
    score, signature = sacre_bleu(hypotheses, references)
    assert score == pytest.approx(bleu(hypotheses, references))
    assert "tok:none" in signature
    assert "nrefs:1" in signature


def test_numbers_of_lines_must_agree() -> None:
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        bleu(["a"], ["a", "b"])
    with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
        sacre_bleu(["a"], ["a", "b"])


def test_files(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(" grün ist ein baum \n")
    (tmp_path / "ref").write_text("gr@@ ün ist ein ba@@ um\n")
    scores = score_files(tmp_path / "out", tmp_path / "ref", "bpe")
    assert scores.bleu == pytest.approx(100)
    assert scores.sacre_bleu == pytest.approx(100)
    assert "version:" in scores.signature
    (tmp_path / "ref").write_text("a\nb\n")
    with pytest.raises(InputError, match="out has 1 lines and its reference .*ref has 2"):
        score_files(tmp_path / "out", tmp_path / "ref", "")
