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

from nmt.model.lstm.architecture import ATTENTION_ARCHITECTURES, ATTENTIONS, ENCODER_TYPES, UNIT_TYPES
from nmt.scoring.metrics import METRICS
from nmt.text.tokens import SUBWORD_OPTIONS
from nmt.translate.translation_model import MODES, search_mode


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
    share_vocab: bool = option(False, "data", "the source's vocabulary and embedding serve both sides", fixed=True)
    check_special_token: bool = option(
        True, "data", "put <unk>, sos and eos before a vocabulary that does not begin with them", fixed=True
    )
    use_char_encode: bool = option(False, "data", "read source words as characters, not by a vocabulary", fixed=True)
    embed_prefix: str | None = option(
        None, "data", "pretrained embeddings are <embed_prefix>.<src> and <embed_prefix>.<tgt>"
    )
    subword_option: str = option("", "data", "how tokens are joined into words", allowed=SUBWORD_OPTIONS)
    src_max_len: int = option(50, "data", "tokens kept of a training source; 0 keeps all", within=NOT_NEGATIVE)
    tgt_max_len: int = option(50, "data", "tokens kept of a training target; 0 keeps all", within=NOT_NEGATIVE)
    max_train: int = option(0, "data", "no effect, as in the original: a training text is read to its end")
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
    language_model: bool = option(False, "model", "predict the target without any source", fixed=True)
    num_embeddings_partitions: int = option(
        0, "model", "parts an embedding is cut into; 1 or less: whole", within=NOT_NEGATIVE
    )
    unit_type: str = option("lstm", "model", "recurrent cell", allowed=UNIT_TYPES, fixed=True)
    forget_bias: float = option(1.0, "model", "added to the forget gate", within=FINITE, fixed=True)
    time_major: bool = option(True, "model", "no effect: the fast layout, time first, is always used")
    scope: str | None = option(None, "model", "no effect, as in the original", saved=False)
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
    num_sampled_softmax: int = option(
        0, "training", "words that a training step compares the right one with; 0: all", within=NOT_NEGATIVE
    )
    batch_size: int = option(128, "training", "sentences a step on each rank", within=POSITIVE)
    dropout: float = option(0.2, "training", "probability that an input of a cell is dropped", within=BELOW_ONE)
    max_gradient_norm: float = option(5.0, "training", "gradients are clipped to this global norm", within=POSITIVE)
    colocate_gradients_with_ops: bool = option(True, "training", "gradients on the device of what they are of")
    random_seed: int | None = option(
        None, "training", "seed of everything random; unset: drawn and logged", within=NOT_NEGATIVE
    )
    precision: str = option("float32", "training", "format of the matrix products", allowed=("float32", "bfloat16"))

    num_gpus: int = option(
        1, "processors", "GPUs of a rank that layers are spread over; 0, or none there: the CPU", within=NOT_NEGATIVE
    )
    num_inter_threads: int = option(0, "processors", "operations at once; 0: TensorFlow's choice", within=NOT_NEGATIVE)
    num_intra_threads: int = option(0, "processors", "threads of one; 0: TensorFlow's choice", within=NOT_NEGATIVE)
    log_device_placement: bool = option(False, "processors", "log where each operation runs", saved=False)

    steps_per_stats: int = option(100, "reports", "steps between lines of statistics", within=POSITIVE)
    steps_per_external_eval: int | None = option(
        None, "reports", "steps between external evaluations; 0: 50 x steps_per_stats", within=NOT_NEGATIVE
    )
    evaluate_epochs: bool = option(True, "reports", "translate and score held-out texts after each epoch, too")
    metrics: str = option(
        "bleu", "reports", f"what translations are scored by, with commas between: {', '.join(METRICS)}"
    )
    eval_mode: str = option(
        "rank0", "reports", "who evaluates: rank 0, or all ranks, each a share", allowed=("rank0", "shared")
    )
    early_stopping_patience: int = option(
        0,
        "reports",
        "external evaluations without a better score of the first metric before training ends; 0: never",
        within=NOT_NEGATIVE,
    )
    num_keep_ckpts: int = option(5, "reports", "checkpoints kept", within=POSITIVE)
    avg_ckpts: bool = option(False, "reports", "evaluate the mean of the checkpoints kept, too")

    hparams_path: str | None = option(None, "configuration", "JSON file of options, before all flags", saved=False)
    override_loaded_hparams: bool = option(
        False, "configuration", "continue a run by flags and defaults, not by its hparams file", saved=False
    )

    ckpt: str = option("", "inference", "checkpoint; empty: the latest in out_dir", saved=False)
    inference_input_file: str | None = option(None, "inference", "text to translate; selects inference", saved=False)
    inference_output_file: str | None = option(None, "inference", "where the translation goes", saved=False)
    src_max_len_infer: int | None = option(
        None, "inference", "tokens kept of a source; unset: all", within=NOT_NEGATIVE
    )
    tgt_max_len_infer: int | None = option(None, "inference", "most tokens of a translation", within=NOT_NEGATIVE)
    inference_list: str | None = option(
        None, "inference", "numbers of lines, from 0 and with commas between, to translate alone", saved=False
    )
    inference_ref_file: str | None = option(None, "inference", "reference to score the translation by", saved=False)
    infer_batch_size: int = option(32, "inference", "sentences translated together", within=POSITIVE)
    infer_mode: str | None = option(
        None,
        "inference",
        "search; unset: beam_search if beam_width is more than 0, sample if sampling_temperature is",
        allowed=MODES,
    )
    beam_width: int = option(0, "inference", "hypotheses kept by beam search", within=NOT_NEGATIVE)
    length_penalty_weight: float = option(0.0, "inference", "exponent of beam search's length penalty", within=FINITE)

    coverage_penalty_weight: float = option(
        0.0, "inference", "weight of beam search's coverage penalty; needs attention", within=FINITE
    )
    sampling_temperature: float = option(
        0.0, "inference", "what logits are divided by before a word is drawn", within=NOT_NEGATIVE
    )
    num_translations_per_input: int = option(1, "inference", "translations of each line, best first", within=POSITIVE)
    jobid: int = option(0, "inference", "no effect: a rank's number under mpirun takes its place", saved=False)
    num_workers: int = option(1, "inference", "only 1: mpirun -n N shares a text among N ranks", saved=False)

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What translations are scored by, in the order given."""
        return tuple(name.strip().lower() for name in self.metrics.split(",") if name.strip())

    @property
    def residual_layers(self) -> tuple[int, int]:
        """Residual layers of the encoder and of the decoder, if `residual`: all but the first.

        The gnmt encoder's lowest two have none: the bidirectional one and the one that reads both its directions.
        """
        if not self.residual:
            return 0, 0
        encoder, decoder = self.num_encoder_layers or 0, self.num_decoder_layers or 0
        if self.encoder_type == "gnmt":
            lower = max(0, encoder - 2)
            return lower, lower if decoder == encoder else decoder - 1
        return encoder - 1, decoder - 1

    @property
    def is_inference(self) -> bool:
        """Whether the run translates a file instead of training."""
        return self.inference_input_file is not None

    @property
    def search_mode(self) -> str:
        """How translations are searched for."""
        return search_mode(self.infer_mode, self.beam_width, self.sampling_temperature)

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
