"""Architecture of a translation model of any family: all sizes and choices that determine its variables.

Two models with equal `Architecture` have the same variables, by name and shape. Training settings (dropout, learning
rate, initial values) are not included. A family adds its own fields in a subclass. The options check
what they can; a subclass checks what depends on the widths of vectors, too. No TensorFlow code is used here.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from nmt.text.character_vocabulary import WORD_LENGTH


@dataclass(frozen=True)
class Architecture:
    """Sizes of encoder, decoder and embeddings that all families have.

    Attributes:
        src_vocab_size: number of rows of the source embedding.
        tgt_vocab_size: number of rows of the target embedding, and of logits per target position.
        num_units: width of the layers, and of the decoder's outputs.
        num_encoder_layers: total number of encoder layers.
        num_decoder_layers: number of decoder layers.
        src_embedding_size: width of the source embedding; None for num_units.
        tgt_embedding_size: width of the target embedding; None for num_units.
        src_pretrained: True if the source embedding is pretrained and not trained, except for its first three words
            (`<unk>` and the sentence marks).
        tgt_pretrained: the same as `src_pretrained` for the target embedding.
        share_embedding: True if both sides share one vocabulary and one embedding.
        character_source: True if source words are read as characters (`nmt.text.character_vocabulary`).
        language_model: True if there is no source and no encoder: the decoder alone predicts sentences.
        tie_embeddings: "none"; "decoder": the output layer uses the target embedding's weights (Press, Wolf 2017),
            after a projection if the widths differ. "all" requires share_embedding: all three are one variable.
    """

    src_vocab_size: int
    tgt_vocab_size: int
    num_units: int
    num_encoder_layers: int
    num_decoder_layers: int
    _: KW_ONLY
    src_embedding_size: int | None = None
    tgt_embedding_size: int | None = None
    src_pretrained: bool = False
    tgt_pretrained: bool = False
    share_embedding: bool = False
    character_source: bool = False
    language_model: bool = False
    tie_embeddings: str = "none"

    @property
    def has_attention(self) -> bool:
        """True if a decoder step returns attention weights over the source."""
        return False

    @property
    def longest(self) -> int | None:
        """Greatest number of words of a sentence that the model reads or writes, end mark counted; None: any number."""
        return None

    @property
    def ties_output(self) -> bool:
        """True if the output layer uses an embedding's weights instead of its own variable."""
        return self.tie_embeddings != "none"

    @property
    def output_size(self) -> int:
        """Width of the output layer's inputs."""
        return self.target_size if self.ties_output else self.num_units

    @property
    def source_size(self) -> int:
        """Width of the source embedding."""
        return self.num_units if self.src_embedding_size is None else self.src_embedding_size

    @property
    def target_size(self) -> int:
        """Width of the target embedding."""
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
        """The full names of the pretrained embeddings' variables, source first; None for a trained embedding."""
        source = self.src_pretrained and self.source_embedding
        return (
            f"{source}_pretrained" if source else None,
            f"{self.target_embedding}_pretrained" if self.tgt_pretrained else None,
        )
