"""nmt.scoring.score: scores of texts and files, and sacreBLEU's figures with their signatures."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.scoring.finishing import Finishing
from nmt.scoring.metrics import METRICS, bleu
from nmt.scoring.score import chrf, sacre_bleu, score, score_files


def test_sacrebleu_agrees_where_every_order_matches() -> None:
    hypotheses = ["the cat sat on the mat .", "a dog ran off to the park", "no"]
    references = ["the cat sat on a mat .", "the dog ran off to a park today", "no no"]
    score, signature = sacre_bleu(hypotheses, references)
    assert score == pytest.approx(bleu(hypotheses, references))
    assert "tok:none" in signature
    assert "nrefs:1" in signature


def test_chrf_by_hand() -> None:
    # 2/3, 1/2 and 0/1 of the n-grams of 1, 2 and 3 characters match, on both sides.
    found, signature = chrf(["abc"], ["abd"])
    assert found == pytest.approx(100 * (2 / 3 + 1 / 2) / 3)
    assert "nc:6|nw:0" in signature
    assert chrf(["grün ist ein baum"], ["grün ist ein baum"]).score == pytest.approx(100)


def test_numbers_of_lines_must_agree() -> None:
    for metric in (sacre_bleu, chrf, score):
        with pytest.raises(ValueError, match="1 hypotheses for 2 references"):
            metric(["a"], ["a", "b"])


def test_all_scores_of_texts() -> None:
    scores = score(["a b c d e"], ["a b c d x"], ["rouge", "bleu"])
    assert list(scores.metrics) == ["rouge", "bleu"]
    assert scores.metrics["rouge"] == pytest.approx(80)
    assert scores.metrics["bleu"] == pytest.approx(100 * 0.2**0.25)
    lines = scores.lines("dev")
    assert lines[:2] == ["  rouge dev: 80.0", "  bleu dev: 66.9"]
    assert [line.split(" (")[0] for line in lines[2:]] == [
        "  sacrebleu dev: 66.87",
        f"  chrf dev: {scores.chrf.score:.2f}",
    ]
    assert scores.lines()[1] == "  bleu: 66.9"


def write(directory: Path, found: str, wanted: str, option: str = "") -> tuple[Path, str, list[str]]:
    """Write both files, and return their paths, and the second one's lines as text."""
    (directory / "out").write_text(found)
    (directory / "ref").write_text(wanted)
    return directory / "out", f"{directory}/ref", Finishing("de", option).references(f"{directory}/ref", False)


@pytest.mark.parametrize(
    ("option", "reference"),
    [("", "grün ist ein baum"), ("bpe", "gr@@ ün ist ein ba@@ um"), ("spm", "▁grün ▁ist ▁ein ▁ba um")],
)
def test_files(tmp_path: Path, option: str, reference: str) -> None:
    scores = score_files(*write(tmp_path, " grün ist ein baum \n", reference + "\r\n", option), list(METRICS))
    assert scores.metrics == {name: pytest.approx(100) for name in METRICS}
    assert (scores.sacre_bleu.score, scores.chrf.score) == pytest.approx((100, 100))
    assert "version:" in scores.sacre_bleu.signature


def test_files_of_other_lengths(tmp_path: Path) -> None:
    paths = write(tmp_path, "a\n", "a\nb\n")
    with pytest.raises(InputError, match="out has 1 lines and its reference .*ref has 2"):
        score_files(*paths)


def test_several_translations_and_picked_lines(tmp_path: Path) -> None:
    paths = write(tmp_path, "c\nx\na\ny\n", "a\nb\nc\n")
    options = {"translations_per_input": 2, "picked": [2, 0]}
    assert score_files(*paths, ["accuracy"], **options).metrics == {"accuracy": 100}  # type: ignore[arg-type]
    for wrong in ({"picked": [2, 0]}, {"translations_per_input": 2}, {"translations_per_input": 2, "picked": [2, 3]}):
        with pytest.raises(InputError, match="ref has 3"):
            score_files(*paths, ["accuracy"], **wrong)  # type: ignore[arg-type]
    assert bleu(["a"], ["a"]) == 0
