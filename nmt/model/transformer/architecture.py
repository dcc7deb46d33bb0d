"""Architecture of a Transformer: heads, widths, positions. No TensorFlow code is used here."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.model.architecture import Architecture


@dataclass(frozen=True)
class TransformerArchitecture(Architecture):
    """Sizes and choices of a Transformer, in addition to those of `Architecture`.

    Attributes:
        num_heads: number of heads of each attention, which share the width of the layers.
        feed_forward_size: inner width of the feed-forward layers; None for four times the width of the layers.
        norm: place of layer normalisation. "post": after each residual sum, as in the paper. "pre": at the input of
            each sublayer and after the top layer (Xiong et al. 2020).
        positions: position embeddings, "sinusoidal" or "learned".
        max_positions: greatest number of words of a sentence, end mark counted, with learned positions.

    Raises:
        ValueError: vectors and layers have other widths, or an odd one with sinusoidal positions.
    """

    num_heads: int = 8
    feed_forward_size: int | None = None
    norm: str = "post"
    positions: str = "sinusoidal"
    max_positions: int = 1024

    def __post_init__(self) -> None:
        """Check the widths."""
        if self.positions == "sinusoidal" and self.num_units % 2:
            raise ValueError(
                f"num_units is {self.num_units}; sinusoidal positions need an even number (or positions 'learned')"
            )
        sides = {"target": self.target_size} | ({} if self.language_model else {"source": self.source_size})
        for side, size in sides.items():
            if size != self.num_units:
                raise ValueError(
                    f"{side} words have vectors of {size} numbers, and num_units is {self.num_units}: a Transformer "
                    f"adds the layers' outputs to them, and both must have one width. Give num_units "
                    f"{size}, or vectors of {self.num_units} (leave embedding_size out)"
                )

    @property
    def has_attention(self) -> bool:
        """True if a decoder step returns attention weights over the source."""
        return not self.language_model

    @property
    def inner_size(self) -> int:
        """Inner width of the feed-forward layers."""
        return 4 * self.num_units if self.feed_forward_size is None else self.feed_forward_size

    @property
    def longest(self) -> int | None:
        """Greatest number of words of a sentence, end mark counted; None: any number."""
        return self.max_positions if self.positions == "learned" else None
