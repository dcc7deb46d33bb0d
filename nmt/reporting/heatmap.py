"""Pictures of attention: a heatmap of the attention weights between source words and target words."""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_DOTS_PER_INCH = 120
_CELL_INCHES = 0.36  # width of a column and height of a row, unless the picture would become too large
_MOST_INCHES = 40  # greatest width of all columns and height of all rows
_LONGEST_LABEL = 24  # characters
_BLANKS = {ord(character): "\N{OPEN BOX}" for character in "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"}


def heatmap(source: Sequence[str], target: Sequence[str], weights: np.ndarray) -> bytes | None:
    """Draw a PNG with a column for each source word and a row for each target word; a darker cell has a larger weight.

    Args:
        source: source words, at least one.
        target: target words, at least one.
        weights: attention weights, [target, source], 0 to 1.

    Returns:
        the PNG; None without matplotlib.

    Raises:
        ValueError: the shape of the weights does not fit the numbers of words.
    """
    if not source or np.shape(weights) != (len(target), len(source)):
        raise ValueError(f"weights {np.shape(weights)} for {len(target)} target and {len(source)} source words")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    cell = min(_CELL_INCHES, _MOST_INCHES / max(len(source), len(target)))
    figure = Figure(figsize=(max(cell * len(source), 1.2), max(cell * len(target), 1.2)))
    axes = figure.add_axes((0, 0, 1, 1))  # the cells only; `savefig` adds room for words and scale
    picture = axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto", interpolation="nearest")
    style: dict[str, Any] = {
        "fontsize": min(10.0, 0.65 * 72 * cell),
        "parse_math": False,
    }  # parse_math: a "$" is an ordinary word, not the begin of a formula
    axes.set_xticks(range(len(source)), [_label(word) for word in source], rotation=60, ha="left", **style)
    axes.set_yticks(range(len(target)), [_label(word) for word in target], **style)
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    for tick in axes.xaxis.get_major_ticks():
        tick.label2.set_rotation_mode("anchor")
    axes.set_xticks(np.arange(1, len(source)) - 0.5, minor=True)
    axes.set_yticks(np.arange(1, len(target)) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5 * cell / _CELL_INCHES)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_color("lightgray")
    width, height = figure.get_size_inches()
    scale = figure.colorbar(picture, cax=figure.add_axes((1 + 0.15 / width, 0, 0.12 / width, 1)))
    scale.set_ticks([0, 0.5, 1])
    scale.ax.tick_params(labelsize=8, length=2)
    scale.outline.set_visible(False)
    return _png(figure)


def image_summary(png: bytes) -> Any:
    """Return the picture as a `tf.compat.v1.Summary.Image`, the field `image` of a summary's value."""
    width, height = struct.unpack(">II", png[16:24])  # the header is the first chunk of every PNG (RFC 2083, 11.2.1)
    return tf.compat.v1.Summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)


def _label(word: str) -> str:
    word = word.translate(_BLANKS)
    return word if len(word) <= _LONGEST_LABEL else word[: _LONGEST_LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _png(figure: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        # The font lacks some scripts. The picture shows boxes for their letters, so a warning for each adds nothing.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(file, format="png", dpi=_DOTS_PER_INCH, bbox_inches="tight", pad_inches=0.1)
    return file.getvalue()
