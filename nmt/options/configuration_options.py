"""Options of processors (threads, GPUs), of reports (evaluation, checkpoints), and of files of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.options.option import NOT_NEGATIVE, POSITIVE, Condition, option
from nmt.options.training_options import PLATEAU, TrainingOptions

METRICS = ("bleu", "rouge", "accuracy", "word_accuracy")
PERPLEXITY_INTERVAL = 10  # in units of steps_per_stats


@dataclass(frozen=True)
class ProcessorOptions(TrainingOptions):
    """Options of the processors that a rank computes on."""

    title: ClassVar[str] = "processors"

    num_gpus: int = option(
        1, "number of GPUs that each rank spreads the layers over; 0, or no GPU found: the CPU", within=NOT_NEGATIVE
    )
    num_inter_threads: int = option(
        0,
        "operations run at once; 0: TensorFlow's choice",
        within=NOT_NEGATIVE,
    )
    num_intra_threads: int = option(
        0,
        "threads per operation; 0: TensorFlow's choice",
        within=NOT_NEGATIVE,
    )
    log_device_placement: bool = option(False, "log the device of each operation", saved=False)


def _names(metrics: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip().lower() for name in metrics.split(",") if name.strip()))


_KNOWN_METRICS = Condition(
    f"name some of {', '.join(METRICS)}", lambda value: bool(_names(value)) and all(n in METRICS for n in _names(value))
)


@dataclass(frozen=True)
class ReportOptions(ProcessorOptions):
    """Options of a training's log, evaluations and checkpoints."""

    title: ClassVar[str] = "reports"

    steps_per_stats: int = option(100, "number of steps between statistics in the log", within=POSITIVE)
    steps_per_external_eval: int | None = option(
        None, "steps between translations of held-out texts; unset or 0: 50 x steps_per_stats", within=NOT_NEGATIVE
    )
    evaluate_epochs: bool = option(True, "also translate and score held-out texts after each epoch")
    metrics: str = option(
        "bleu", f"scores of translations, separated by commas: {', '.join(METRICS)}", within=_KNOWN_METRICS
    )
    eval_mode: str = option("rank0", "ranks that evaluate: rank 0, or all (shared)", allowed=("rank0", "shared"))
    early_stopping_patience: int = option(
        0,
        "training ends after this number of evaluation intervals without a better score of the first metric; 0: never",
        within=NOT_NEGATIVE,
    )
    num_keep_ckpts: int = option(5, "number of checkpoints to keep", within=POSITIVE)
    avg_ckpts: bool = option(
        False,
        "also evaluate the mean of the kept checkpoints during training, and write it to out_dir/avg_checkpoints",
    )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Names of the scores of translations, in the order given."""
        return _names(self.metrics)

    @property
    def external_eval_interval(self) -> int:
        """Number of steps between translations of the held-out texts."""
        return self.steps_per_external_eval or 50 * self.steps_per_stats

    def stats_due(self, step: int) -> bool:
        """Return True if statistics are due after this step. All intervals count from step 0, also in a continued run.

        So a run that was interrupted continues identically.
        """
        return step % self.steps_per_stats == 0

    def perplexities_due(self, step: int) -> bool:
        """Return True if perplexities are due after this step."""
        return step % (PERPLEXITY_INTERVAL * self.steps_per_stats) == 0

    def scores_due(self, step: int, epoch_ended: bool) -> bool:
        """Return True if translations of the held-out texts are due after this step."""
        return step % self.external_eval_interval == 0 or (epoch_ended and self.evaluate_epochs)

    def look_contradictions(self) -> Iterator[str]:
        """Yield a message for each option that depends on evaluations, if too few take place before training ends."""
        interval, end = self.external_eval_interval, f"before --num_train_steps={self.num_train_steps}"
        patience, plateau = self.early_stopping_patience, self.decay_scheme == PLATEAU
        if patience and patience * interval >= self.num_train_steps:
            yield (
                f"--early_stopping_patience={patience} would have no effect: {patience} intervals of {interval} steps "
                f"between evaluations do not end {end}. Lower it or --steps_per_external_eval"
            )
        if plateau and self.plateau_metric == "score" and not self.evaluate_epochs and interval >= self.num_train_steps:
            yield (
                f"--decay_scheme=plateau would have no effect: with --noevaluate_epochs and an evaluation every "
                f"{interval} steps, none takes place {end}. Lower --steps_per_external_eval"
            )
        interval = PERPLEXITY_INTERVAL * self.steps_per_stats
        if plateau and self.plateau_metric == "perplexity" and interval >= self.num_train_steps:
            yield (
                f"--decay_scheme=plateau would have no effect: with a perplexity every {interval} steps "
                f"({PERPLEXITY_INTERVAL} x steps_per_stats), none is computed {end}. Lower --steps_per_stats"
            )

    def plateau_contradictions(self, before: Mapping[str, Any]) -> Iterator[str]:
        """Yield a message if the plateau decay compares another figure than the continued run, or if that had none."""
        if self.decay_scheme != PLATEAU:
            return
        if before["decay_scheme"] != PLATEAU:
            yield (
                f"--decay_scheme=plateau contradicts --decay_scheme={before['decay_scheme']} of the run that is "
                "continued, whose checkpoints have no evaluation history. Leave it out, or choose another out_dir"
            )
        first = _names(before["metrics"])[0]
        if self.plateau_metric == "score" and first != self.metric_names[0]:
            yield (
                f"--metrics={self.metrics} does not begin with {first}, which --decay_scheme=plateau has compared so "
                f"far. Begin with {first}, or choose another out_dir"
            )


_OF_LSTMS = ("small", "iwslt", "wmt")
PRESETS = ("", *_OF_LSTMS, "transformer_tiny", "transformer_base", "transformer_big", "convs2s_small")  # nmt/presets


@dataclass(frozen=True)
class ConfigurationOptions(ReportOptions):
    """Sources of options other than the command line."""

    title: ClassVar[str] = "configuration"

    preset: str = option(
        "",
        "set of values for texts of some size, which flags and the options of a continued run override; empty: none",
        allowed=PRESETS,
        fixed=True,
    )
    hparams_path: str | None = option(None, "JSON file of options, which override flags; unset: none", saved=False)
    override_loaded_hparams: bool = option(
        False, "ignore the options in the run's hparams file: use flags and defaults", saved=False
    )
