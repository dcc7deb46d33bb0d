"""Device placement: the device of each layer of a model.

The layers are assigned to the GPUs in turn (round-robin), so that a deep model is spread over several GPUs. Without
GPUs everything is on the CPU. If fewer GPUs than `num_gpus` may exist, the session needs `allow_soft_placement`.
"""

from __future__ import annotations

from dataclasses import dataclass

_MOST_WORDS_ON_GPU = 50_000  # as in the TensorFlow NMT tutorial: a larger table leaves too little memory


@dataclass(frozen=True)
class Placement:
    """Device names for `tf.device`.

    Attributes:
        num_gpus: number of GPUs to use; 0 for the CPU.

    Raises:
        ValueError: num_gpus is negative.
    """

    num_gpus: int = 0

    def embedding(self, words: int) -> str:
        """Return the device of an embedding of this many words: the first GPU, or the CPU for a large one."""
        return "/cpu:0" if words > _MOST_WORDS_ON_GPU else self.layer(0)

    def layer(self, number: int) -> str:
        """Return the device of the layer with this number."""
        return f"/gpu:{number % self.num_gpus}" if self.num_gpus else "/cpu:0"

    def output(self, num_decoder_layers: int) -> str:
        """Return the device of the output layer: a GPU without decoder layers, or else that of the top layer."""
        return self.layer(num_decoder_layers if num_decoder_layers < self.num_gpus else num_decoder_layers - 1)
