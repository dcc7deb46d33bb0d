"""The shape of a translation model: everything that decides which variables exist and how they are wired.

Two models with equal `Architecture` have the same variables, by name and shape. Training settings (dropout,
learning rate, initial values) are no part of it. Knows nothing of TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT_TYPES = ("lstm",)
ENCODER_TYPES = ("uni", "bi")
ATTENTIONS = ("", "luong", "scaled_luong", "bahdanau", "normed_bahdanau")
ATTENTION_ARCHITECTURES = ("standard",)


@dataclass(frozen=True)
class Architecture:
    """Sizes and choices of one model.

    Attributes:
        src_vocab_size: rows of the source embedding.
        tgt_vocab_size: rows of the target embedding, and logits per target position.
        num_units: size of the embeddings, of each cell's state and of the attention vector.
        num_encoder_layers: layers in all; a bidirectional encoder gives half of them to each direction.
        num_decoder_layers: layers of the decoder's stack.
        num_encoder_residual_layers: how many top layers add their input to their output (bi: half of it,
            rounded down, in each direction).
        num_decoder_residual_layers: the same for the decoder.
        encoder_type: "uni" or "bi".
        attention: the score of the attention, or "" for a decoder that sees the encoder's last state only.
        attention_architecture: "standard" is one attention around the whole decoder stack, fed back as input.
        output_attention: whether the attention vector (else the top cell's output) is projected to logits.
        pass_hidden_state: whether the decoder starts from the encoder's last state (else from zeros).
        unit_type: kind of recurrent cell.
        forget_bias: added to the forget gate's pre-activation.

    Raises:
        ValueError: a value is outside what is allowed, or two values contradict each other.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    num_units: int
    num_encoder_layers: int
    num_decoder_layers: int
    num_encoder_residual_layers: int = 0
    num_decoder_residual_layers: int = 0
    encoder_type: str = "uni"
    attention: str = ""
    attention_architecture: str = "standard"
    output_attention: bool = True
    pass_hidden_state: bool = True
    unit_type: str = "lstm"
    forget_bias: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that no model can be built from."""
        for name in (
            "src_vocab_size",
            "tgt_vocab_size",
            "num_units",
            "num_encoder_layers",
            "num_decoder_layers",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name, allowed in (
            ("encoder_type", ENCODER_TYPES),
            ("attention", ATTENTIONS),
            ("attention_architecture", ATTENTION_ARCHITECTURES),
            ("unit_type", UNIT_TYPES),
        ):
            if getattr(self, name) not in allowed:
                choices = ", ".join(repr(choice) for choice in allowed)
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {choices}")
        if self.encoder_type == "bi" and self.num_encoder_layers % 2:
            raise ValueError(
                f"num_encoder_layers is {self.num_encoder_layers}; encoder_type 'bi' needs an even number, "
                "half of them for each direction"
            )
        self._check_residual("num_encoder_residual_layers", self.num_encoder_layers)
        # With attention the bottom cell reads [embedding; attention], which its output cannot be added to.
        self._check_residual("num_decoder_residual_layers", self.num_decoder_layers - bool(self.attention))
        if self.pass_hidden_state and self.num_encoder_layers != self.num_decoder_layers:
            raise ValueError(
                f"pass_hidden_state needs equal depths; num_encoder_layers is {self.num_encoder_layers}, "
                f"num_decoder_layers is {self.num_decoder_layers}"
            )
        if not self.pass_hidden_state and not self.attention:
            raise ValueError(
                "pass_hidden_state is False and attention is '': the decoder would not see the source; "
                "choose an attention"
            )

    def _check_residual(self, name: str, limit: int) -> None:
        if not 0 <= getattr(self, name) <= limit:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be between 0 and {limit}")

    @property
    def memory_size(self) -> int:
        """Width of the encoder's top outputs, which attention reads."""
        return 2 * self.num_units if self.encoder_type == "bi" else self.num_units
