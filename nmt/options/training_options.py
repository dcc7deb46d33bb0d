"""Options of training: the optimizer, the loss, the learning rate, the batch, dropout, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nmt.options.data_options import BY_SENTENCES
from nmt.options.model_options import ModelOptions
from nmt.options.option import BELOW_ONE, BETWEEN_0_AND_1, NOT_NEGATIVE, POSITIVE, Condition, option

WARMUP_SCHEMES = ("t2t", "linear")
NOAM, INVERSE_SQRT, PLATEAU = "noam", "inverse_sqrt", "plateau"
ROOTS = (NOAM, INVERSE_SQRT)  # these have a warm-up of their own
DECAY_SCHEMES = ("", "luong5", "luong10", "luong234", *ROOTS, PLATEAU)
DROPOUT_MASKS = ("step", "sentence")
NORMALIZATIONS = ("sentences", "words")
ACTIONS = ("off", "warn", "stop", "rewind")
PARTS = ("source_embedding", "target_embedding", "encoder", "decoder", "output")
COMPRESSIONS = ("none", "bf16", "fp16", "int8", "int4", "int2")


def listed(parts: str) -> list[str]:
    """Return the names in a list such as "encoder,output"."""
    return [name.strip() for name in parts.split(",") if name.strip()]


_PLATEAU = Condition("--decay_scheme=plateau", lambda options: options.decay_scheme == PLATEAU)
_ADAM = Condition("--optimizer=adam", lambda options: options.optimizer == "adam")
_DROPS = Condition(
    "--dropout or --output_dropout",
    lambda options: options.dropout or options.output_dropout or options.activation_dropout,
)
_PARTS = Condition(f"it must name parts of a model: {', '.join(PARTS)}", lambda value: {*listed(value)} <= {*PARTS})
_ALL_WORDS = Condition("--num_sampled_softmax=0", lambda options: options.num_sampled_softmax == 0)
_TRANSFORMS = Condition("another --model_family", lambda options: options.model_family == "transformer")
_SOURCE = Condition("no --language_model", lambda options: not options.language_model)
_WARMS_UP = Condition("--warmup_steps", lambda options: options.warmup_steps > 0)


@dataclass(frozen=True)
class TrainingOptions(ModelOptions):
    """Options of training."""

    title: ClassVar[str] = "training"

    optimizer: str = option("sgd", "optimizer", allowed=("sgd", "adam"))
    adam_beta1: float = option(
        0.9,
        "Adam's beta1: decay of the moving average of gradients, per step",
        within=BELOW_ONE,
        needs=_ADAM,
    )
    adam_beta2: float = option(
        0.999,
        "Adam's beta2: decay of the moving average of squared gradients, per step",
        within=BELOW_ONE,
        needs=_ADAM,
    )
    adam_epsilon: float = option(1e-8, "Adam's epsilon, added to Adam's denominator", within=POSITIVE, needs=_ADAM)
    weight_decay: float = option(
        0.0,
        "decoupled weight decay (AdamW): share of kernels and embeddings, times the learning rate, that a step removes",
        within=BELOW_ONE,
    )
    init_from: str | None = option(
        None, "run or checkpoint whose weights a new training begins with, with a new optimizer; unset: random weights"
    )
    freeze: str = option(
        "",
        f"parts of the model that are not trained, separated by commas: {', '.join(PARTS)}",
        within=_PARTS,
        fixed=True,  # checkpoints have moments of the trained parts only
    )
    learning_rate: float = option(
        1.0, "learning rate before scaling and decay; noam: factor of its formula", within=POSITIVE
    )
    learning_rate_scaling: str = option(
        "none",
        "factor of the learning rate: 1, n = ranks x accumulate_steps, or sqrt(n); warm-up is then linear",
        allowed=("none", "linear", "sqrt"),
    )
    warmup_steps: int = option(0, "number of warm-up steps; 0: no warm-up", within=NOT_NEGATIVE)
    warmup_scheme: str = option("t2t", "shape of an unscaled rate's warm-up", allowed=WARMUP_SCHEMES, needs=_WARMS_UP)
    decay_scheme: str = option(
        "",
        "decay of the learning rate; empty: none. inverse_sqrt: as 1 / sqrt(step), from --learning_rate. noam: as "
        "1 / sqrt(step), times --learning_rate / sqrt(--num_units). plateau: when evaluations do not improve",
        allowed=DECAY_SCHEMES,
    )
    plateau_metric: str = option(
        "score",
        "figure of the development text that plateau decay compares: score (the first of --metrics) or perplexity",
        allowed=("score", "perplexity"),
        needs=_PLATEAU,
        fixed=True,
    )
    plateau_factor: float = option(
        0.5,
        "factor of the learning rate at each plateau decay",
        within=BETWEEN_0_AND_1,
        needs=_PLATEAU,
        fixed=True,  # checkpoints hold only the number of decays, from which the factor gives the rate
    )
    plateau_patience: int = option(
        2,
        "number of consecutive evaluations without a better figure before a plateau decay",
        within=POSITIVE,
        needs=_PLATEAU,
    )
    num_train_steps: int = option(
        12000,
        "steps in total, including those before a continuation",
        within=POSITIVE,
    )
    num_sampled_softmax: int = option(0, "words in the sampled softmax of training; 0: all words", within=NOT_NEGATIVE)
    label_smoothing: float = option(
        0.0,
        "label smoothing: target probability spread evenly over all words; logged figures leave it out",
        within=BELOW_ONE,
        needs=_ALL_WORDS,
    )
    r_drop: float = option(
        0.0,
        "R-Drop: weight of the divergence between two passes with different dropout masks; 0: one pass, no R-Drop",
        within=NOT_NEGATIVE,
        needs=_ALL_WORDS,
    )
    batch_size: int = option(
        128,
        "number of sentence pairs in each rank's batch",
        within=POSITIVE,
        needs=BY_SENTENCES,
    )
    batch_tokens: int | None = option(
        None,
        "tokens of each rank's batch on its longer side, with padding; replaces --batch_size and --num_buckets. A rank "
        "may have one more sentence. Unset or 0: --batch_size counts",
        within=NOT_NEGATIVE,
    )
    accumulate_steps: int | None = option(
        None,
        "number of batches that each rank accumulates for one step; unset: TFDIST_ACCUMULATE_STEPS, or 1",
        within=POSITIVE,
    )
    max_batch_tokens: int | None = option(
        None,
        "greatest number of tokens of a rank's batch, with padding; unset: 200 per sentence, or --src_max_len or "
        "--tgt_max_len if longer",
        within=POSITIVE,
    )
    dropout: float = option(
        0.2,
        "dropout probability of each layer's inputs; transformer: of the embeddings and of each sublayer's output",
        within=BELOW_ONE,
    )
    output_dropout: float = option(
        0.0,
        "dropout probability of the output layer's inputs",
        within=BELOW_ONE,
    )
    attention_dropout: float = option(
        0.0,
        "dropout probability of attention weights",
        within=BELOW_ONE,
        needs=_TRANSFORMS,
    )
    activation_dropout: float = option(
        0.0,
        "dropout probability of the activations inside feed-forward layers",
        within=BELOW_ONE,
        needs=_TRANSFORMS,
    )
    dropout_mask: str = option(
        "step",
        "positions with the same mask of --dropout, --output_dropout, --activation_dropout: one, or the whole sentence",
        allowed=DROPOUT_MASKS,
        needs=_DROPS,
    )
    src_word_dropout: float = option(
        0.0,
        "probability that the whole embedding of a source word is dropped",
        within=BELOW_ONE,
        needs=_SOURCE,
    )
    tgt_word_dropout: float = option(
        0.0,
        "probability that the whole embedding of a target word that the decoder reads is dropped",
        within=BELOW_ONE,
    )
    max_gradient_norm: float = option(5.0, "global norm that gradients are clipped to", within=POSITIVE)
    colocate_gradients_with_ops: bool = option(
        True, "compute each gradient on the device of the operation that it belongs to"
    )
    divergence: str | None = option(
        None,
        "action when the loss diverges: a warning; the end of training; or a return to an earlier checkpoint with half "
        "the learning rate. Unset: TFDIST_DIVERGENCE, or off",
        allowed=ACTIONS,
        saved=False,
    )
    random_seed: int | None = option(
        None,
        "seed of all random numbers; unset: drawn at random and logged",
        within=NOT_NEGATIVE,
    )
    precision: str = option("float32", "dtype of the matrix products", allowed=("float32", "bfloat16", "float16"))
    loss_scale: str | None = option(
        None,
        "loss scale against underflow in float16: none, a number, or a rule that adapts it (backoff, window, logmax); "
        "unset: TFDIST_LOSS_SCALE, or none",
    )
    loss_normalization: str | None = option(
        None,
        "divisor of a step's summed loss: its sentences or its target words; unset: words with --batch_tokens, else "
        "sentences",
        allowed=NORMALIZATIONS,
    )

    sync: str = option(
        "gradients",
        "data that ranks exchange: gradients in each step, or what a block of local steps has changed, in the words of "
        "TFDIST_SYNC: average:steps=16, bmuf:steps=16:momentum=0.9, diloco:steps=64:fragments=4",
        fixed=True,
    )
    compression: str | None = option(
        None,
        "dtype in which gradients or changes of blocks travel; int8, int4, int2: between machines; unset: "
        "TFDIST_COMPRESSION, or none",
        allowed=COMPRESSIONS,
    )

    @property
    def divides_by_words(self) -> bool:
        """True if a step's summed loss is divided by its number of target words, not of sentences."""
        return bool(self.batch_tokens) if self.loss_normalization is None else self.loss_normalization == "words"

    def loss_contradictions(self) -> Iterator[str]:
        """Yield a message for each option that needs the full softmax, if training uses a sampled softmax."""
        for name in ("label_smoothing", "r_drop"):
            if self.num_sampled_softmax and (value := getattr(self, name)):
                yield (
                    f"--num_sampled_softmax={self.num_sampled_softmax} contradicts --{name}={value}, which needs the "
                    f"softmax over all words: give --{name}=0 or --num_sampled_softmax=0"
                )

    def beginning_contradictions(self, before: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message if --init_from names this run, or if a continued run, `before`, has begun otherwise."""
        if not self.init_from:
            return
        named = Path(self.init_from).resolve()
        if Path(str(self.out_dir)).resolve() in (named, *named.parents):
            yield (
                f"--init_from={self.init_from} is in --out_dir={self.out_dir}: leave it out to continue that run, or "
                "choose another out_dir"
            )
        begun = before.get("init_from")
        if before and (not begun or Path(begun).resolve() != named):
            yield (
                f"--init_from={self.init_from} contradicts the run in --out_dir={self.out_dir}, which began with "
                f"{begun or 'random weights'}: leave it out to continue that run, or choose another out_dir"
            )

    def batch_contradictions(self) -> Iterator[str]:
        """Yield a message if --batch_tokens exceeds --max_batch_tokens."""
        if self.batch_tokens and self.max_batch_tokens and self.max_batch_tokens < self.batch_tokens:
            yield (
                f"--max_batch_tokens={self.max_batch_tokens} is less than --batch_tokens={self.batch_tokens}: give at "
                "least as many, or leave it out"
            )

    def pass_contradictions(self) -> Iterator[str]:
        """Yield a message if the two passes of R-Drop would be equal."""
        drops = [self.dropout, self.output_dropout, self.src_word_dropout, self.tgt_word_dropout]
        drops += [self.attention_dropout, self.activation_dropout]
        if self.r_drop and not any(drops):
            yield (
                f"--r_drop={self.r_drop} compares two passes, which are the same without dropout: give --dropout, "
                "--output_dropout, --src_word_dropout or --tgt_word_dropout"
            )

    def warmup_contradiction(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message if --warmup_scheme=t2t was given together with an option that makes the warm-up linear."""
        if given.get("warmup_scheme") == "t2t" and self.learning_rate_scaling != "none":
            yield (
                f"--warmup_scheme=t2t contradicts --learning_rate_scaling={self.learning_rate_scaling}, whose warm-up "
                "is linear: leave one of them out"
            )
        if given.get("warmup_scheme") == "t2t" and self.decay_scheme in ROOTS:
            yield (
                f"--warmup_scheme=t2t contradicts --decay_scheme={self.decay_scheme}, whose warm-up is linear: leave "
                "one of them out"
            )

    def decay_contradictions(self) -> Iterator[str]:
        """Yield a message if the decay scheme needs a warm-up and there is none."""
        if self.decay_scheme in ROOTS and not self.warmup_steps:
            yield (
                f"--decay_scheme={self.decay_scheme} needs the step at which its rate is greatest: give "
                "--warmup_steps, for example 4000"
            )
