"""The options of the program: each is stated once, as a field of `Config`.

A field carries its name, type, default, help (with the unit), allowed values and group; the absl flags, the
help text, the `hparams` file and all checks derive from it. The program alone imports this module: the rest
takes plain arguments.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nmt.model.architecture import ATTENTION_ARCHITECTURES, ATTENTIONS, ENCODER_TYPES, UNIT_TYPES
from nmt.text.tokens import SUBWORD_OPTIONS


class Range(NamedTuple):
    """The values a number may take: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


POSITIVE = Range("more than 0, and finite", lambda value: 0 < value < float("inf"))
NOT_NEGATIVE = Range("0 or more", lambda value: value >= 0)
BELOW_ONE = Range("at least 0 and less than 1", lambda value: 0 <= value < 1)
FINITE = Range("a finite number", lambda value: abs(value) < float("inf"))


def option(
    default: Any,
    group: str,
    text: str,
    *,
    allowed: Sequence[str] = (),
    within: Range | None = None,
    fixed: bool = False,
    saved: bool = True,
) -> Any:
    """A field of `Config`: `fixed` once a run has begun; kept in `hparams` if `saved`."""
    details = {
        "group": group,
        "help": text,
        "allowed": tuple(allowed),
        "within": within,
        "fixed": fixed,
        "saved": saved,
    }
    return dataclasses.field(default=default, metadata=details)


@dataclasses.dataclass(frozen=True)
class Config:
    """Every option with its value: lengths in tokens, sizes in sentences, intervals in steps (updates)."""

    src: str | None = option(None, "data", "suffix of the source files, such as en", fixed=True)
    tgt: str | None = option(None, "data", "suffix of the target files, such as de", fixed=True)
    train_prefix: str | None = option(None, "data", "training text is <train_prefix>.<src> and <train_prefix>.<tgt>")
    dev_prefix: str | None = option(None, "data", "development text, likewise")
    test_prefix: str | None = option(None, "data", "test text, likewise; may be left out")
    vocab_prefix: str | None = option(None, "data", "vocabularies are <vocab_prefix>.<src> and <vocab_prefix>.<tgt>")
    out_dir: str | None = option(None, "data", "directory of checkpoints, logs and outputs", saved=False)
    sos: str = option("<s>", "data", "the token before a sentence", fixed=True)
    eos: str = option("</s>", "data", "the token after a sentence", fixed=True)
    subword_option: str = option("", "data", "how tokens are joined into words", allowed=SUBWORD_OPTIONS)
    src_max_len: int = option(50, "data", "tokens kept of a training source; 0 keeps all", within=NOT_NEGATIVE)
    tgt_max_len: int = option(50, "data", "tokens kept of a training target; 0 keeps all", within=NOT_NEGATIVE)
    num_buckets: int = option(5, "data", "length classes that batches are cut from; 1 or less: one class")

    num_units: int = option(32, "model", "hidden and embedding size", within=POSITIVE, fixed=True)
    num_layers: int = option(2, "model", "depth of both sides, where not given apart", within=POSITIVE)
    num_encoder_layers: int | None = option(None, "model", "encoder depth", within=NOT_NEGATIVE, fixed=True)
    num_decoder_layers: int | None = option(None, "model", "decoder depth", within=NOT_NEGATIVE, fixed=True)
    encoder_type: str = option("uni", "model", "encoder", allowed=ENCODER_TYPES, fixed=True)
    residual: bool = option(False, "model", "residual connections above the first layer", fixed=True)
    attention: str = option("", "model", "attention score; empty: no attention", allowed=ATTENTIONS, fixed=True)
    attention_architecture: str = option(
        "standard", "model", "where attention enters", allowed=ATTENTION_ARCHITECTURES, fixed=True
    )
    output_attention: bool = option(True, "model", "project the attention vector, not the cell output", fixed=True)
    pass_hidden_state: bool = option(True, "model", "start the decoder from the encoder's state", fixed=True)
    unit_type: str = option("lstm", "model", "recurrent cell", allowed=UNIT_TYPES, fixed=True)
    forget_bias: float = option(1.0, "model", "added to the forget gate", within=FINITE, fixed=True)
    init_op: str = option("uniform", "model", "initialiser", allowed=("uniform", "glorot_normal", "glorot_uniform"))
    init_weight: float = option(0.1, "model", "uniform draws lie within +-init_weight", within=FINITE)

    optimizer: str = option("sgd", "training", "optimizer", allowed=("sgd", "adam"))
    learning_rate: float = option(1.0, "training", "learning rate of one rank", within=POSITIVE)
    learning_rate_scaling: str = option(
        "none",
        "training",
        "factor of the learning rate: 1, ranks, or their root; warm-up is then linear",
        allowed=("none", "linear", "sqrt"),
    )
    warmup_steps: int = option(0, "training", "steps of warm-up", within=NOT_NEGATIVE)
    warmup_scheme: str = option("t2t", "training", "warm-up, where the rate is not scaled", allowed=("t2t", "linear"))
    decay_scheme: str = option("", "training", "decay of the rate", allowed=("", "luong5", "luong10", "luong234"))
    num_train_steps: int = option(12000, "training", "steps in all, those of a continued run included", within=POSITIVE)
    batch_size: int = option(128, "training", "sentences a step on each rank", within=POSITIVE)
    dropout: float = option(0.2, "training", "probability that an input of a cell is dropped", within=BELOW_ONE)
    max_gradient_norm: float = option(5.0, "training", "gradients are clipped to this global norm", within=POSITIVE)
    random_seed: int | None = option(
        None, "training", "seed of everything random; unset: drawn and logged", within=NOT_NEGATIVE
    )
    precision: str = option("float32", "training", "format of the matrix products", allowed=("float32", "bfloat16"))

    steps_per_stats: int = option(100, "reports", "steps between lines of statistics", within=POSITIVE)
    steps_per_external_eval: int | None = option(
        None, "reports", "steps between external evaluations; 0: 50 x steps_per_stats", within=NOT_NEGATIVE
    )
    metrics: str = option("bleu", "reports", "what translations are scored by", allowed=("bleu",))
    num_keep_ckpts: int = option(5, "reports", "checkpoints kept", within=POSITIVE)

    ckpt: str = option("", "inference", "checkpoint; empty: the latest in out_dir", saved=False)
    inference_input_file: str | None = option(None, "inference", "text to translate; selects inference", saved=False)
    inference_output_file: str | None = option(None, "inference", "where the translation goes", saved=False)
    src_max_len_infer: int | None = option(
        None, "inference", "tokens kept of a source; unset: all", within=NOT_NEGATIVE
    )
    tgt_max_len_infer: int | None = option(None, "inference", "most tokens of a translation", within=NOT_NEGATIVE)
    infer_batch_size: int = option(32, "inference", "sentences translated together", within=POSITIVE)
    infer_mode: str | None = option(
        None,
        "inference",
        "search; unset: beam search if beam_width is more than 0",
        allowed=("greedy", "beam_search"),
    )
    beam_width: int = option(0, "inference", "hypotheses kept by beam search", within=NOT_NEGATIVE)
    length_penalty_weight: float = option(0.0, "inference", "exponent of beam search's length penalty", within=FINITE)

    @property
    def residual_layers(self) -> tuple[int, int]:
        """Residual layers of the encoder and of the decoder: all but the first, if `residual`."""
        depths = (self.num_encoder_layers or 0, self.num_decoder_layers or 0)
        return (depths[0] - 1, depths[1] - 1) if self.residual else (0, 0)

    @property
    def is_inference(self) -> bool:
        """Whether the run translates a file instead of training."""
        return self.inference_input_file is not None

    @property
    def search_width(self) -> int:
        """Hypotheses kept by beam search, 0 for greedy search."""
        return 0 if self.infer_mode == "greedy" else self.beam_width

    @property
    def external_eval_interval(self) -> int:
        """Steps between translations of the development text."""
        return self.steps_per_external_eval or 50 * self.steps_per_stats

    def to_json(self, **more: Any) -> str:
        """The `hparams` file: the options worth keeping, and `more`, sorted, indented by 4."""
        kept = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.metadata["saved"]}
        return json.dumps(kept | more, indent=4, sort_keys=True, ensure_ascii=False) + "\n"


TYPES: dict[str, type] = {
    name: typing.get_args(hint)[0] if typing.get_args(hint) else hint
    for name, hint in typing.get_type_hints(Config).items()
}  # `int | None` counts as int
FIELDS = {field.name: field for field in dataclasses.fields(Config)}
