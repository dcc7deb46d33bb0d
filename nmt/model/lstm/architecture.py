"""The shape of a translation model: everything that decides which variables exist and how they are wired.

Two models with equal `Architecture` have the same variables, by name and shape. Training settings (dropout,
learning rate, initial values) are no part of it. Knows nothing of TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass

from nmt.text.character_vocabulary import NUM_CHARACTERS, WORD_LENGTH

UNIT_TYPES = ("lstm", "gru", "layer_norm_lstm", "nas")
ENCODER_TYPES = ("uni", "bi", "gnmt")
ATTENTIONS = ("", "luong", "scaled_luong", "bahdanau", "normed_bahdanau")
ATTENTION_ARCHITECTURES = ("standard", "gnmt", "gnmt_v2")


@dataclass(frozen=True)
class Architecture:
    """Sizes and choices of one model.

    Attributes:
        src_vocab_size: rows of the source embedding.
        tgt_vocab_size: rows of the target embedding, and logits per target position.
        num_units: size of each cell's state and of the attention vector.
        num_encoder_layers: layers in all; a bidirectional encoder gives half of them to each direction.
        num_decoder_layers: layers of the decoder's stack.
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
        src_embedding_size: width of an embedded source word; None for num_units.
        tgt_embedding_size: the same for target words.
        src_pretrained: whether source words but the first three (`<unk>` and the sentence marks) have vectors
            that are given and not trained.
        tgt_pretrained: the same for target words.
        share_embedding: one embedding for both sides, whose words are then the same.
        num_embeddings_partitions: pieces that each embedding is cut into, by rows; up to 1 for none. A pretrained
            one is not cut. Checkpoints are the same however it is cut.
        character_source: source words are read as characters (`nmt.text.character_vocabulary`).
        language_model: there is no source: the decoder predicts sentences from nothing.

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
    src_embedding_size: int | None = None
    tgt_embedding_size: int | None = None
    src_pretrained: bool = False
    tgt_pretrained: bool = False
    share_embedding: bool = False
    num_embeddings_partitions: int = 0
    character_source: bool = False
    language_model: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no model can be built from."""
        for name in (
            "src_vocab_size",
            "tgt_vocab_size",
            "num_units",
            "num_encoder_layers",
            "num_decoder_layers",
            "source_size",
            "target_size",
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
        self._check_embeddings()
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

    def _check_embeddings(self) -> None:
        if self.character_source and (self.share_embedding or self.src_pretrained or self.language_model):
            raise ValueError(
                "character_source reads words that have no vectors of their own; it excludes share_embedding, "
                "src_pretrained and language_model"
            )
        if self.character_source and self.src_vocab_size != NUM_CHARACTERS:
            raise ValueError(f"src_vocab_size is {self.src_vocab_size}; with character_source it is {NUM_CHARACTERS}")
        if not self.share_embedding:
            return
        for name, src, tgt in (
            ("vocab_size", self.src_vocab_size, self.tgt_vocab_size),
            ("embedding_size", self.source_size, self.target_size),
            ("pretrained", self.src_pretrained, self.tgt_pretrained),
        ):
            if src != tgt:
                raise ValueError(
                    f"share_embedding needs equal sides; src_{name} is {src}, tgt_{name} is {tgt}: "
                    "give both sides the same vocabulary, or each its own embedding"
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
    def source_size(self) -> int:
        """Width of an embedded source word."""
        return self.num_units if self.src_embedding_size is None else self.src_embedding_size

    @property
    def target_size(self) -> int:
        """Width of an embedded target word."""
        return self.num_units if self.tgt_embedding_size is None else self.tgt_embedding_size

    @property
    def source_shape(self) -> list[int | None]:
        """The static shape of source ids: [time, batch], or [time, batch, WORD_LENGTH] as characters."""
        return [None, None, WORD_LENGTH] if self.character_source else [None, None]

    @property
    def source_embedding(self) -> str | None:
        """The full name of the source embedding's variable; None for a language model, unless it is shared."""
        if self.share_embedding:
            return "embeddings/embedding_share"
        return None if self.language_model else "embeddings/encoder/embedding_encoder"

    @property
    def target_embedding(self) -> str:
        """The full name of the target embedding's variable."""
        return "embeddings/embedding_share" if self.share_embedding else "embeddings/decoder/embedding_decoder"

    @property
    def pretrained_names(self) -> tuple[str | None, str | None]:
        """The full names of the variables that hold given vectors, source first; None where none are given."""
        source = self.src_pretrained and self.source_embedding
        return (
            f"{source}_pretrained" if source else None,
            f"{self.target_embedding}_pretrained" if self.tgt_pretrained else None,
        )
