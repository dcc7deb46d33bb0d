"""nmt.text.tokens: lines to tokens and back."""

from __future__ import annotations

import pytest

from nmt.text.tokens import join, reference_text, split


def test_split_knows_the_space_only() -> None:
    assert split("  a  b\tc \u00a0 d ") == ["a", "b\tc", "\u00a0", "d"]
    assert split("") == split("   ") == []


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("a b </s> c", "", "a b"),
        ("</s> a", "", ""),
        ("En@@ ough of the reluc@@ tant men .", "bpe", "Enough of the reluctant men ."),
        ("a@@ b@@ c d", "bpe", "abc d"),
        ("the reluc@@ </s> tant", "bpe", "the reluc"),
        ("@@ a", "bpe", "a"),
        ("▁This ▁is ▁a ▁ te st .", "spm", "This is a test."),
        ("▁a </s> ▁b", "spm", "a"),
    ],
)
def test_join(text: str, option: str, expected: str) -> None:
    assert join(text.split(" "), option, "</s>") == expected


@pytest.mark.parametrize(
    ("line", "option", "expected"),
    [
        (" a  b \n", "", "a  b"),
        ("En@@ ough men@@", "bpe", "Enough men@@"),
        ("▁This ▁is ▁a ▁ te st .", "spm", "This is a test."),
    ],
)
def test_reference_text(line: str, option: str, expected: str) -> None:
    assert reference_text(line, option) == expected


def test_unknown_subword_options_are_refused() -> None:
    with pytest.raises(ValueError, match="'byte' is none of '', 'bpe', 'spm'"):
        join(["a"], "byte", "</s>")
    with pytest.raises(ValueError, match="'byte'"):
        reference_text("a", "byte")
