"""The architecture (shape) of a recurrent model: cells, stacks, directions, attention. Knows nothing of TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.model.architecture import Architecture

UNIT_TYPES = ("lstm", "gru", "layer_norm_lstm", "nas")
ENCODER_TYPES = ("uni", "bi", "gnmt")
ATTENTIONS = ("", "luong", "scaled_luong", "bahdanau", "normed_bahdanau")
ATTENTION_ARCHITECTURES = ("standard", "gnmt", "gnmt_v2")


@dataclass(frozen=True)
class LSTMArchitecture(Architecture):
    """Sizes and choices of one recurrent model, beside those of `Architecture`.

    A bidirectional encoder gives half of its layers to each direction; `num_units` is the size of each cell's state and
    of the attention vector.

    Attributes:
        num_encoder_residual_layers: how many top layers add their input to their output (bi: half of it,
            rounded down, in each direction; gnmt: of the layers in one direction).
        num_decoder_residual_layers: the same for the decoder.
        encoder_type: "uni", "bi" or "gnmt" (see `nmt.model.lstm.encoder`).
        attention: the score of the attention, or "" for a decoder that sees the encoder's last state only.
        attention_architecture: "standard" is one attention around the whole decoder stack, fed back as input;
            "gnmt" and "gnmt_v2" have it around the bottom layer (see `nmt.model.lstm.gnmt_decoder`).
        output_attention: whether the attention vector (else the top cell's output) is projected to logits;
            no matter to "gnmt" and "gnmt_v2", which have no such vector.
        pass_hidden_state: whether the decoder starts from the encoder's last state (else from zeros).
        unit_type: kind of recurrent cell: "lstm", "gru", "layer_norm_lstm" or "nas".
        forget_bias: added to the forget gate's pre-activation; only the two LSTMs have one.

    Raises:
        ValueError: a value is outside what is allowed, or two values contradict each other.
    """

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
        super().__post_init__()
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
        if self.encoder_type == "gnmt" and self.num_encoder_layers < 2:
            raise ValueError(
                f"num_encoder_layers is {self.num_encoder_layers}; encoder_type 'gnmt' needs at least 2, the "
                "bottom one of them in both directions"
            )
        self._check_attention_architecture()
        # What a cell reads is added to its output only where both are of one width: not an embedding of another size,
        # not both directions below the bottom unidirectional layer of "gnmt", and not [embedding; attention].
        adds = self.source_size == self.num_units
        wider = 2 if self.encoder_type == "gnmt" else int(not adds)
        self._check_residual("num_encoder_residual_layers", self.num_encoder_layers - wider)
        adds = self.target_size == self.num_units and not self.attention
        self._check_residual("num_decoder_residual_layers", self.num_decoder_layers - (not adds))
        if self.language_model:
            self._check_language_model()
            return
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

    def _check_language_model(self) -> None:
        if self.attention or self.pass_hidden_state:
            raise ValueError(
                "a language_model has no source to look at: attention must be '' and pass_hidden_state False"
            )

    def _check_attention_architecture(self) -> None:
        if self.attention_architecture == "standard":
            return
        if not self.attention:
            raise ValueError(
                f"attention_architecture is {self.attention_architecture!r} and attention is ''; choose an attention"
            )
        if self.attention_architecture == "gnmt" and self.num_encoder_layers < 2:
            raise ValueError(
                f"num_encoder_layers is {self.num_encoder_layers}; attention_architecture 'gnmt' needs at least 2 "
                "('gnmt_v2' does not)"
            )

    def _check_residual(self, name: str, limit: int) -> None:
        if not 0 <= getattr(self, name) <= limit:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be between 0 and {limit}")

    @property
    def memory_size(self) -> int:
        """Width of the encoder's top outputs, which attention reads."""
        return 2 * self.num_units if self.encoder_type == "bi" else self.num_units

    @property
    def has_attention(self) -> bool:
        """Whether the decoder has one."""
        return bool(self.attention)
