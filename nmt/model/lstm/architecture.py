"""Architecture of a recurrent model: cells, layers, directions, attention. No TensorFlow code is used here."""

from __future__ import annotations

from dataclasses import dataclass

from nmt.model.architecture import Architecture


@dataclass(frozen=True)
class LSTMArchitecture(Architecture):
    """Sizes and choices of a recurrent model, in addition to those of `Architecture`.

    A "bi" encoder has half of its layers in each direction. `num_units` is the size of each cell's state and of the
    attention vector.

    Attributes:
        num_encoder_residual_layers: number of top encoder layers with a residual connection. "bi": half of it, rounded
            down, in each direction; "gnmt": only unidirectional layers count.
        num_decoder_residual_layers: number of top decoder layers with a residual connection.
        encoder_type: "uni", "bi" or "gnmt" (see `nmt.model.lstm.encoder`).
        attention: score function of the attention; "" for none: the decoder reads the encoder's last state only.
        attention_architecture: "standard": one attention around the whole decoder stack, fed back as input; "gnmt" and
            "gnmt_v2": attention around the bottom layer (see `nmt.model.lstm.gnmt_decoder`).
        output_attention: True if the output layer reads the attention vector, False for the top cell's output. Not used
            by "gnmt" and "gnmt_v2", which have no attention vector.
        pass_hidden_state: True if the decoder starts from the encoder's last state, False for zeros.
        unit_type: kind of recurrent cell: "lstm", "gru", "layer_norm_lstm" or "nas".
        forget_bias: constant added to the forget gate's pre-activation, in "lstm" and "layer_norm_lstm" only.

    Raises:
        ValueError: a residual layer has inputs of another width.
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
        """Check the residual layers."""
        # A residual connection needs inputs as wide as num_units. Three kinds of inputs are wider or narrower: an
        # embedding of another width, the two directions' outputs in "gnmt", and [embedding; attention].
        adds = self.source_size == self.num_units
        wider = 2 if self.encoder_type == "gnmt" else int(not adds)
        self._check_residual("num_encoder_residual_layers", self.num_encoder_layers - wider)
        adds = self.target_size == self.num_units and not self.attention
        self._check_residual("num_decoder_residual_layers", self.num_decoder_layers - (not adds))

    def _check_residual(self, name: str, limit: int) -> None:
        if not 0 <= getattr(self, name) <= limit:
            raise ValueError(f"{name} is {getattr(self, name)}; it must be between 0 and {limit}")

    @property
    def memory_size(self) -> int:
        """Width of the top encoder layer's outputs, which attention reads."""
        return 2 * self.num_units if self.encoder_type == "bi" else self.num_units

    @property
    def has_attention(self) -> bool:
        """True if the decoder has an attention."""
        return bool(self.attention)
