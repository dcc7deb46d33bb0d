"""Options of the model: its family, its architecture and its initial weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.options.data_options import DataOptions
from nmt.options.option import FINITE, NOT_NEGATIVE, POSITIVE, Condition, option, options_of

FAMILIES = ["lstm", "convs2s", "transformer"]  # their classes: nmt/model/registry.py
UNIT_TYPES = ("lstm", "gru", "layer_norm_lstm", "nas")
ENCODER_TYPES = ("uni", "bi", "gnmt")
ATTENTIONS = ("", "luong", "scaled_luong", "bahdanau", "normed_bahdanau")
ATTENTION_ARCHITECTURES = ("standard", "gnmt", "gnmt_v2")
TIED = ("none", "decoder", "all")
NORMS = ("post", "pre")
POSITIONS = ("sinusoidal", "learned")
INIT_OPS = ("uniform", "glorot_normal", "glorot_uniform")

_HAS_BIAS = Condition(
    "--unit_type=lstm or layer_norm_lstm", lambda config: config.unit_type in ("lstm", "layer_norm_lstm")
)
_OWN_VECTORS = Condition("no --embed_prefix", lambda config: not config.embed_prefix)
_ATTENDS = Condition(
    "--attention, and --attention_architecture=standard",
    lambda config: config.attention and config.attention_architecture == "standard",
)
_ODD = Condition("it must be odd, and 1 or more", lambda value: value > 0 and value % 2 == 1)
_DRAWN = Condition("another --model_family", lambda config: _draws(config))
_UNIFORM = Condition(
    "--init_op=uniform, and a --model_family that draws so",
    lambda config: config.init_op == "uniform" and _draws(config),
)
_RECURRENT = Condition("another --model_family", lambda config: config.model_family == "lstm")
_LEARNED = Condition(
    "--positions=learned, or --model_family=convs2s",
    lambda config: config.positions == "learned" or config.model_family == "convs2s",
)


def _draws(config: Any) -> bool:
    """Return True if --init_op applies to any weights: to all of a family that uses it, or to the characters' only."""
    return config.model_family == "lstm" or bool(config.use_char_encode)


@dataclass(frozen=True)
class ModelOptions(DataOptions):
    """Options of the model."""

    title: ClassVar[str] = "model"

    model_family: str = option("lstm", "family of models", allowed=FAMILIES, fixed=True)
    num_units: int = option(32, "width of the layers", within=POSITIVE, fixed=True)
    embedding_size: int | None = option(
        None,
        "width of the word embeddings; unset: num_units, or the width of pretrained embeddings",
        within=POSITIVE,
        needs=_OWN_VECTORS,
        fixed=True,
    )
    num_layers: int = option(
        2, "number of layers of the encoder and of the decoder, unless each has its own number", within=POSITIVE
    )
    num_encoder_layers: int | None = option(
        None, "number of encoder layers; unset or 0: num_layers", within=NOT_NEGATIVE, fixed=True
    )
    num_decoder_layers: int | None = option(
        None, "number of decoder layers; unset or 0: num_layers", within=NOT_NEGATIVE, fixed=True
    )
    encoder_type: str = option(
        "uni",
        "direction of the encoder's layers: one, both, or gnmt (both in the first layer only)",
        allowed=ENCODER_TYPES,
        families=("lstm",),
        fixed=True,
    )
    residual: bool = option(False, "residual connections around each layer but the first", needs=_RECURRENT, fixed=True)
    attention: str = option(
        "", "score of the attention; empty: no attention", allowed=ATTENTIONS, families=("lstm",), fixed=True
    )
    attention_architecture: str = option(
        "standard",
        "place of the attention: around all decoder layers (standard) or around the bottom layer (gnmt, gnmt_v2)",
        allowed=ATTENTION_ARCHITECTURES,
        families=("lstm",),
        fixed=True,
    )
    output_attention: bool = option(
        True,
        "the output layer reads the attention vector, not the cell's output",
        needs=_ATTENDS,
        families=("lstm",),
        fixed=True,
    )
    pass_hidden_state: bool = option(
        True, "start the decoder from the encoder's last state", families=("lstm",), fixed=True
    )
    language_model: bool = option(False, "predict the target without any source", fixed=True)
    tie_embeddings: str = option(
        "none",
        "embeddings that share the output layer's weights: decoder, the target's; all, also the source's (needs "
        "--share_vocab)",
        allowed=TIED,
        fixed=True,
    )
    unit_type: str = option("lstm", "kind of recurrent cell", allowed=UNIT_TYPES, families=("lstm",), fixed=True)
    forget_bias: float = option(
        1.0, "bias added to the forget gate", within=FINITE, needs=_HAS_BIAS, families=("lstm",), fixed=True
    )
    num_heads: int = option(8, "heads of each attention", within=POSITIVE, families=("transformer",), fixed=True)
    feed_forward_size: int | None = option(
        None,
        "inner width of feed-forward layers; unset: four times num_units",
        within=POSITIVE,
        families=("transformer",),
        fixed=True,
    )
    norm: str = option(
        "post",
        "place of layer normalisation: after the residual connection (post) or at the input of each sublayer (pre)",
        allowed=NORMS,
        families=("transformer",),
        fixed=True,
    )
    positions: str = option(
        "sinusoidal", "position embeddings", allowed=POSITIONS, families=("transformer",), fixed=True
    )
    max_positions: int = option(
        1024,
        "number of learned position embeddings: greatest length of a sentence in tokens, end mark counted",
        within=POSITIVE,
        needs=_LEARNED,
        families=("convs2s", "transformer"),
        fixed=True,
    )
    kernel_width: int = option(
        3, "width of a convolution in tokens; an odd number", within=_ODD, families=("convs2s",), fixed=True
    )
    time_major: bool = option(True, "no effect: the fast layout, time first, is always used")
    num_embeddings_partitions: int = option(0, "no effect: each embedding is one variable, as it is in checkpoints")
    scope: str | None = option(None, "no effect, as in the TensorFlow NMT tutorial", saved=False)
    init_op: str = option(
        "uniform",
        "initializer of the weights; the families transformer and convs2s use those of their papers",
        allowed=INIT_OPS,
        needs=_DRAWN,
    )
    init_weight: float = option(0.1, "uniform: range from -init_weight to init_weight", within=FINITE, needs=_UNIFORM)

    @property
    def most_positions(self) -> int | None:
        """Greatest length of a sentence in tokens, end mark counted, that the model has positions for; None: any."""
        return self.max_positions if _LEARNED.holds(self) else None

    @property
    def attends(self) -> bool:
        """True if the decoder attends to the source: a recurrent one with --attention, the others with any source."""
        return bool(self.attention) if self.model_family == "lstm" else not self.language_model

    @property
    def residual_layers(self) -> tuple[int, int]:
        """Number of residual layers of the encoder and of the decoder: without `residual` 0, else all but the first.

        The lowest two layers of a gnmt encoder are not residual: the bidirectional one, and the one that reads its
        output.
        """
        if not self.residual:
            return 0, 0
        encoder, decoder = self.num_encoder_layers or 0, self.num_decoder_layers or 0
        if self.encoder_type == "gnmt":
            lower = max(0, encoder - 2)
            return lower, lower if decoder == encoder else decoder - 1
        return encoder - 1, decoder - 1

    @classmethod
    def shaping(cls) -> list[str]:
        """Return the names of the options that fix a model's variables and what it computes with them."""
        of_data = options_of(DataOptions).keys() - {"share_vocab", "use_char_encode"}
        fixed = (name for name, field in options_of(ModelOptions).items() if field.metadata["fixed"])
        return [name for name in fixed if name not in of_data]

    def model_contradictions(self) -> Iterator[str]:
        """Yield a message for each contradiction of these options with each other, or with those of the data."""
        yield from self._recurrent_contradictions() if self.model_family == "lstm" else ()
        if self.model_family == "transformer" and self.num_units % self.num_heads:
            yield (
                f"--num_heads={self.num_heads} cannot share --num_units={self.num_units} evenly: give another number "
                "of heads, or a --num_units that is a multiple of --num_heads"
            )
        yield from self._position_contradictions()
        if self.init_op == "uniform" and self.init_weight <= 0:
            yield f"--init_op=uniform needs --init_weight more than 0, not {self.init_weight}"
        if self.embed_prefix and self.embedding_size:
            yield "--embed_prefix has vectors of one width: leave --embedding_size out"
        if self.tie_embeddings == "all" and not self.share_vocab:
            yield "--tie_embeddings=all needs --share_vocab, and the vocabulary that nmt.prepare --share_vocab makes"
        if self.tie_embeddings != "none" and self.embed_prefix:
            yield f"--tie_embeddings={self.tie_embeddings} needs an embedding that is trained: leave --embed_prefix out"
        if self.use_char_encode and (self.share_vocab or self.embed_prefix):
            yield "--use_char_encode has no source vocabulary: leave --share_vocab and --embed_prefix out"

    def _recurrent_contradictions(self) -> Iterator[str]:
        encoder = self.num_encoder_layers or 0
        if self.encoder_type == "bi" and encoder % 2:
            yield f"--encoder_type=bi needs an even --num_encoder_layers, not {encoder}"
        if self.encoder_type == "gnmt" and encoder < 2:
            yield f"--encoder_type=gnmt needs 2 or more --num_encoder_layers, not {encoder}"
        if self.attention_architecture != "standard" and not self.attention:
            yield f"--attention_architecture={self.attention_architecture} needs --attention: give one"
        if self.attention_architecture == "gnmt" and encoder < 2:
            yield f"--attention_architecture=gnmt needs 2 or more --num_encoder_layers, not {encoder}"
        if not (self.attention or self.pass_hidden_state or self.language_model):
            yield (
                "without --pass_hidden_state (or with unequal --num_encoder_layers and --num_decoder_layers) the "
                "decoder reads the source through --attention only: give one"
            )

    def _position_contradictions(self) -> Iterator[str]:
        if self.most_positions is None:
            return
        source = [] if self.language_model else [("src_max_len", self.src_max_len, 0)]
        for name, longest, end in (*source, ("tgt_max_len", self.tgt_max_len, 1)):
            if not longest or longest + end > self.max_positions:
                yield (
                    f"--{name}={longest} keeps sentences that are longer than --max_positions={self.max_positions} "
                    f"(a target's end mark counts). Give --{name}={self.max_positions - end} or less, or more positions"
                )
