"""Pictures of attention: any words, nothing cut off."""

from __future__ import annotations

import io
import sys
import warnings

import numpy as np
import pytest

from nmt.reporting.heatmap import heatmap, image_summary

ODD = ["$x^2$", "\\frac{", "$", "漢字", "العربية", "👍", "\t", "\x00", "a\u2028b", "_^{}", "", "e\u0301", "w" * 500]


def drawn(source: list[str], target: list[str]) -> bytes:
    """Return a picture of random weights."""
    pytest.importorskip("matplotlib")
    weights = np.random.default_rng(1).dirichlet(np.ones(len(source)), len(target))
    png = heatmap(source, target, weights.astype(np.float32))
    assert png is not None
    return png


def is_cut_off(png: bytes) -> bool:
    """Return whether anything reaches the picture's edge."""
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(png))[:, :, :3]
    edges = [pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]]
    return any((edge < 1).any() for edge in edges)


def test_any_words() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        png = drawn(ODD, ODD[::-1])
    assert png.startswith(b"\x89PNG")
    assert not is_cut_off(png)


@pytest.mark.parametrize(("source", "target"), [(1, 1), (1, 30), (30, 1), (250, 3)])
def test_any_size(source: int, target: int) -> None:
    assert not is_cut_off(drawn(["word"] * source, ["Donaudampfschifffahrt"] * target))


def test_image_summary() -> None:
    png = drawn(["a", "b"], ["A", "B", "</s>"])
    image = image_summary(png)
    from matplotlib.image import imread

    assert imread(io.BytesIO(png)).shape == (image.height, image.width, image.colorspace)
    assert image.encoded_image_string == png


def test_weights_must_fit() -> None:
    with pytest.raises(ValueError, match=r"weights \(1, 2\) for 2 target and 1 source words"):
        heatmap(["a"], ["A", "B"], np.ones([1, 2]))


def test_no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert heatmap(["a"], ["A"], np.ones([1, 1])) is None
