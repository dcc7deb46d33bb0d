"""Device placement: which device each layer of a model is on.

The layers are dealt out to the GPUs in turn, so that a deep model is spread over several of them. Without
GPUs everything is on the CPU. A session needs `allow_soft_placement` wherever there may be fewer GPUs than
told. Knows nothing of TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_WORDS_ON_GPU = 50_000  # as in the TensorFlow NMT tutorial: a larger table would crowd the layers out


@dataclass(frozen=True)
class Placement:
    """Names of devices, for `tf.device`.

    Attributes:
        num_gpus: how many GPUs to use; 0 for the CPU.

    Raises:
        ValueError: num_gpus is negative.
    """

    num_gpus: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be counted."""
        if self.num_gpus < 0:
            raise ValueError(f"num_gpus is {self.num_gpus}; it must be at least 0")

    def embedding(self, words: int) -> str:
        """Where the table of so many words is: on the first GPU, or on the CPU if it is large."""
        return "/cpu:0" if words > _MOST_WORDS_ON_GPU else self.layer(0)

    def layer(self, number: int) -> str:
        """Where the layer with this number is."""
        return f"/gpu:{number % self.num_gpus}" if self.num_gpus else "/cpu:0"

    def output(self, num_decoder_layers: int) -> str:
        """Where logits are formed: on a GPU that no decoder layer is on, or else with the top one."""
        return self.layer(num_decoder_layers if num_decoder_layers < self.num_gpus else num_decoder_layers - 1)
