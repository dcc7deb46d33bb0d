"""Architecture of a convolutional model: width of the kernels, positions. No TensorFlow code is used here."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.model.architecture import Architecture


@dataclass(frozen=True)
class ConvS2SArchitecture(Architecture):
    """Sizes of a convolutional model, in addition to those of `Architecture`.

    The embeddings may have another width than the layers.

    Attributes:
        kernel_width: width of the convolutions in words, an odd number.
        max_positions: greatest number of words of a sentence, end mark counted.

    Raises:
        ValueError: source and target words have vectors of other widths.
    """

    kernel_width: int = 3
    max_positions: int = 1024

    def __post_init__(self) -> None:
        """Check the widths."""
        if not self.language_model and self.source_size != self.target_size:
            raise ValueError(
                f"source words have vectors of {self.source_size} numbers, target words of {self.target_size}: "
                "attention compares them, and they must have one width"
            )

    @property
    def has_attention(self) -> bool:
        """True if a decoder step returns attention weights over the source."""
        return not self.language_model

    @property
    def longest(self) -> int | None:
        """Greatest number of words of a sentence, end mark counted."""
        return self.max_positions
