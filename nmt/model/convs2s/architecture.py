"""The architecture (shape) of a convolutional model: the kernels' width, positions. Knows nothing of TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.model.architecture import Architecture


@dataclass(frozen=True)
class ConvS2SArchitecture(Architecture):
    """Sizes of one convolutional model, beside those of `Architecture`.

    Words' vectors may be of another width than the layers.

    Attributes:
        kernel_width: words that a layer reads at once; odd.
        max_positions: words of the longest sentence, its end counted.

    Raises:
        ValueError: a value is outside what is allowed, or two values contradict each other.
    """

    kernel_width: int = 3
    max_positions: int = 1024

    def __post_init__(self) -> None:
        """Refuse values that no model can be built from."""
        super().__post_init__()
        if self.kernel_width < 1 or self.kernel_width % 2 == 0:
            raise ValueError(f"kernel_width is {self.kernel_width}; it must be odd: a word, and as many on each side")
        if self.max_positions < 1:
            raise ValueError(f"max_positions is {self.max_positions}; it must be at least 1")
        if not self.language_model and self.source_size != self.target_size:
            raise ValueError(
                f"source words have vectors of {self.source_size} numbers, target words of {self.target_size}: "
                "attention compares them, and they must be of one width"
            )

    @property
    def has_attention(self) -> bool:
        """Whether a step of the decoder tells where in the source it looked."""
        return not self.language_model

    @property
    def longest(self) -> int | None:
        """Words of the longest sentence, its end counted."""
        return self.max_positions
