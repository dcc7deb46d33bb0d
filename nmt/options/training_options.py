"""Options of training: the optimizer, the loss, the learning rate, the batch, dropout, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.model.parts.dropout import DROPOUT_MASKS
from nmt.model.parts.initializers import Initializer
from nmt.model.transformer.architecture import TransformerArchitecture
from nmt.options.data_options import BY_SENTENCES
from nmt.options.model_options import ModelOptions, of_family
from nmt.options.option import BELOW_ONE, BETWEEN_0_AND_1, NOT_NEGATIVE, POSITIVE, Condition, option
from nmt.scoring.perplexity import LikelihoodSettings
from nmt.train.divergence import ACTIONS
from nmt.train.feed import NORMALIZATIONS, FeedSettings
from nmt.train.loop import Cadence
from nmt.train.plateau import PlateauSettings
from nmt.train.schedule import DECAY_SCHEMES, PLATEAU, ROOTS, WARMUP_SCHEMES, Schedule
from nmt.train.step import Optimization
from nmt.train.synchronisation import BLOCK_STATES, SYNCS, Synchronisation
from nmt.translate.translation_model import SearchSettings

_PLATEAU = Condition("--decay_scheme=plateau", lambda options: options.decay_scheme == PLATEAU)
_ADAM = Condition("--optimizer=adam", lambda options: options.optimizer == "adam")
_DROPS = Condition(
    "--dropout or --output_dropout",
    lambda options: options.dropout or options.output_dropout or options.activation_dropout,
)
_BLOCKS = Condition("--sync=average or --sync=bmuf", lambda options: options.sync != "gradients")
_ALL_WORDS = Condition("--num_sampled_softmax=0", lambda options: options.num_sampled_softmax == 0)
_TRANSFORMS = Condition("another --model_family", lambda options: of_family(options, TransformerArchitecture))
_SOURCE = Condition("no --language_model", lambda options: not options.language_model)
_WARMS_UP = Condition("--warmup_steps", lambda options: options.warmup_steps > 0)
_FILTER = Condition("--sync=bmuf", lambda options: options.sync == "bmuf")


@dataclass(frozen=True)
class TrainingOptions(ModelOptions):
    """How weights are found."""

    title: ClassVar[str] = "training"

    optimizer: str = option("sgd", "optimizer", allowed=("sgd", "adam"), makes=[Optimization])
    adam_beta1: float = option(
        0.9,
        "what Adam keeps of its mean of gradients in a step",
        within=BELOW_ONE,
        needs=_ADAM,
        makes=[Optimization],
    )
    adam_beta2: float = option(
        0.999,
        "what Adam keeps of its mean of squared gradients in a step",
        within=BELOW_ONE,
        needs=_ADAM,
        makes=[Optimization],
    )
    adam_epsilon: float = option(
        1e-8, "what Adam adds to the root of the latter", within=POSITIVE, needs=_ADAM, makes=[Optimization]
    )
    weight_decay: float = option(
        0.0,
        "part of kernels and embeddings that a step takes away, times the learning rate, apart from gradients",
        within=BELOW_ONE,
        makes=[Optimization],
    )
    learning_rate: float = option(1.0, "learning rate of one rank", within=POSITIVE)
    learning_rate_scaling: str = option(
        "none",
        "factor of the learning rate: 1, ranks times accumulated steps, or the root of that; warm-up is then linear",
        allowed=("none", "linear", "sqrt"),
    )
    warmup_steps: int = option(0, "steps of warm-up", within=NOT_NEGATIVE, makes=[Schedule])
    warmup_scheme: str = option("t2t", "warm-up, where the rate is not scaled", allowed=WARMUP_SCHEMES, needs=_WARMS_UP)
    decay_scheme: str = option(
        "",
        "decay of the rate; noam: by the root of the step, times --learning_rate / sqrt(--num_units); inverse_sqrt: "
        "the same from --learning_rate at its peak; plateau: when evaluations find nothing better",
        allowed=DECAY_SCHEMES,
        makes=[Schedule],
    )
    plateau_metric: str = option(
        "score",
        "what must get better on the development text: the first of --metrics, or the perplexity",
        allowed=("score", "perplexity"),
        needs=_PLATEAU,
        fixed=True,
    )
    plateau_factor: float = option(
        0.5,
        "what the rate is multiplied by when it does not",
        within=BETWEEN_0_AND_1,
        needs=_PLATEAU,
        fixed=True,  # with it, the checkpoints' count of how often tells the rate
        makes=[(PlateauSettings, "factor")],
    )
    plateau_patience: int = option(
        2,
        "evaluations in succession without a better figure before that",
        within=POSITIVE,
        needs=_PLATEAU,
        makes=[(PlateauSettings, "patience")],
    )
    num_train_steps: int = option(
        12000, "steps in all, those of a continued run included", within=POSITIVE, makes=[Schedule, Cadence]
    )
    num_sampled_softmax: int = option(
        0, "words that a training step compares the right one with; 0: all", within=NOT_NEGATIVE, makes=[Optimization]
    )
    label_smoothing: float = option(
        0.0,
        "probability that a training step asks for of all words alike; figures are without it",
        within=BELOW_ONE,
        needs=_ALL_WORDS,
        makes=[Optimization],
    )
    r_drop: float = option(
        0.0,
        "weight of the divergence of two passes with other dropout, which a training step then makes; 0: one pass",
        within=NOT_NEGATIVE,
        needs=_ALL_WORDS,
        makes=[Optimization],
    )
    batch_size: int = option(
        128,
        "sentences a step on each rank",
        within=POSITIVE,
        needs=BY_SENTENCES,
        makes=[FeedSettings, LikelihoodSettings],
    )
    batch_tokens: int | None = option(
        None,
        "tokens of a step's batch for each rank, on its longer side, padding counted, in place of --batch_size and "
        "--num_buckets; a rank may have one sentence more; unset or 0: these count",
        within=NOT_NEGATIVE,
        makes=[FeedSettings],
    )
    accumulate_steps: int | None = option(
        None,
        "batches of each rank that make one step; unset: TFDIST_ACCUMULATE_STEPS, or 1",
        within=POSITIVE,
        makes=[FeedSettings],
    )
    max_batch_tokens: int | None = option(
        None,
        "most tokens of a rank's batch, padding counted; unset: 200 a sentence, or what sentences are cut to",
        within=POSITIVE,
        makes=[FeedSettings, LikelihoodSettings],
    )
    dropout: float = option(
        0.2,
        "probability that a number of what a layer reads is dropped; transformer: of what its parts give",
        within=BELOW_ONE,
        makes=[Optimization],
    )
    output_dropout: float = option(
        0.0,
        "probability that a number of what the output layer reads is dropped",
        within=BELOW_ONE,
        makes=[Optimization],
    )
    attention_dropout: float = option(
        0.0,
        "probability that a weight of attention is dropped",
        within=BELOW_ONE,
        needs=_TRANSFORMS,
        makes=[Optimization],
    )
    activation_dropout: float = option(
        0.0,
        "probability that a number inside a feed-forward layer is dropped",
        within=BELOW_ONE,
        needs=_TRANSFORMS,
        makes=[Optimization],
    )
    dropout_mask: str = option(
        "step",
        "how long a mask of --dropout, --output_dropout and --activation_dropout lasts: a step, or a whole sentence",
        allowed=DROPOUT_MASKS,
        needs=_DROPS,
        makes=[Optimization],
    )
    src_word_dropout: float = option(
        0.0,
        "probability that a source word is dropped as a whole",
        within=BELOW_ONE,
        needs=_SOURCE,
        makes=[Optimization],
    )
    tgt_word_dropout: float = option(
        0.0,
        "probability that a target word that the decoder reads is dropped as a whole",
        within=BELOW_ONE,
        makes=[Optimization],
    )
    max_gradient_norm: float = option(
        5.0, "gradients are clipped to this global norm", within=POSITIVE, makes=[Optimization]
    )
    colocate_gradients_with_ops: bool = option(
        True, "gradients on the device of what they are of", makes=[Optimization]
    )
    divergence: str | None = option(
        None,
        "if the loss rises where it should fall: a warning; the end of training; or, from the last checkpoint before "
        "that, half the learning rate; unset: TFDIST_DIVERGENCE, or off",
        allowed=ACTIONS,
        saved=False,
    )
    random_seed: int | None = option(
        None,
        "seed of everything random; unset: drawn and logged",
        within=NOT_NEGATIVE,
        makes=[(FeedSettings, "seed"), (SearchSettings, "seed"), (Initializer, "seed")],
    )
    precision: str = option("float32", "format of the matrix products", allowed=("float32", "bfloat16", "float16"))
    loss_scale: str | None = option(
        None,
        "what the loss is multiplied by: none, a number, backoff, window, logmax; unset: TFDIST_LOSS_SCALE, or none",
        makes=[Optimization],
    )
    loss_normalization: str | None = option(
        None,
        "what a step's summed loss is divided by: its sentences, or its target words; unset: words if --batch_tokens "
        "is set, else sentences",
        allowed=NORMALIZATIONS,
        makes=[FeedSettings],
    )

    sync: str = option(
        "gradients",
        "what the ranks exchange: gradients in each step, or weights after blocks of steps",
        allowed=SYNCS,
        makes=[Synchronisation],
        fixed=True,
    )
    block_steps: int = option(0, "steps of a block", within=NOT_NEGATIVE, needs=_BLOCKS, makes=[Synchronisation])
    block_momentum: float | None = option(
        None,
        "what is left of the last block's change; unset: 1 - 1/ranks",
        within=BELOW_ONE,
        needs=_FILTER,
        makes=[Synchronisation],
    )
    block_learning_rate: float = option(
        1.0, "what a block's own change counts", within=POSITIVE, needs=_FILTER, makes=[Synchronisation]
    )
    block_nesterov: bool = option(
        False, "a block begins where the momentum leads", needs=_FILTER, makes=[Synchronisation]
    )
    block_state: str = option(
        "reset",
        "the optimizer's own state at a block's end",
        allowed=BLOCK_STATES,
        needs=_BLOCKS,
        makes=[Synchronisation],
    )
    block_warmup: int = option(
        0,
        "steps with averaged gradients before the first block",
        within=NOT_NEGATIVE,
        needs=_BLOCKS,
        makes=[Synchronisation],
    )

    def loss_contradictions(self) -> Iterator[str]:
        """What asks for all words, where a step compares some."""
        for name in ("label_smoothing", "r_drop"):
            if self.num_sampled_softmax and (value := getattr(self, name)):
                yield (
                    f"--num_sampled_softmax={self.num_sampled_softmax} contradicts --{name}={value}, which asks for "
                    f"all words: give --{name}=0 or --num_sampled_softmax=0"
                )

    def batch_contradictions(self) -> Iterator[str]:
        """Batches of more tokens than a batch may have."""
        if self.batch_tokens and self.max_batch_tokens and self.max_batch_tokens < self.batch_tokens:
            yield (
                f"--max_batch_tokens={self.max_batch_tokens} is less than --batch_tokens={self.batch_tokens}: give at "
                "least as many, or leave it out"
            )

    def pass_contradictions(self) -> Iterator[str]:
        """Two passes that would be the same."""
        drops = [self.dropout, self.output_dropout, self.src_word_dropout, self.tgt_word_dropout]
        drops += [self.attention_dropout, self.activation_dropout]
        if self.r_drop and not any(drops):
            yield (
                f"--r_drop={self.r_drop} compares two passes, which are the same without dropout: give --dropout, "
                "--output_dropout, --src_word_dropout or --tgt_word_dropout"
            )

    def block_contradictions(self) -> Iterator[str]:
        """Blocks without a length."""
        if self.sync != "gradients" and not self.block_steps:
            yield f"--sync={self.sync} contradicts --block_steps=0: say after how many steps weights are averaged"

    def warmup_contradiction(self, given: Mapping[str, Any]) -> Iterator[str]:
        """The default scheme of an unscaled rate, where it was asked for with one whose warm-up is linear."""
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
        """A decay that cannot be without a warm-up."""
        if self.decay_scheme in ROOTS and not self.warmup_steps:
            yield (
                f"--decay_scheme={self.decay_scheme} needs the step at which its rate is greatest: give "
                "--warmup_steps, 4000 say"
            )
