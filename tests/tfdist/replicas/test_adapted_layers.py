"""Which states of adapted layers are equal except for rounding."""

from __future__ import annotations

from tfdist.replicas.adapted_layers import _alike, _shown


def test_rounding_is_no_difference() -> None:
    assert _alike([[1.0, 0.0]], [[1.0 + 1e-6, 1e-7]])
    assert not _alike([[1.0, 0.0]], [[1.001, 0.0]])
    assert _shown([[0.5, 1.0000012]]) == "[0.5, 1.0000012]"


def test_words_are_the_same_or_not() -> None:
    assert _alike([["a", "b"], [1.0]], [["a", "b"], [1.0]])
    assert not _alike([["a", "b"]], [["b", "a"]])
    assert not _alike([["a", "b"]], [["a"]])
    assert _alike([[]], [[]])
