"""Options of processors and reports, and about files of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nmt.checkpoints.run_directory import NoStore
from nmt.model.session import session_config
from nmt.options.option import NOT_NEGATIVE, POSITIVE, Condition, option
from nmt.options.training_options import TrainingOptions
from nmt.scoring.metrics import METRICS
from nmt.train.loop import PERPLEXITY_INTERVAL, Cadence
from nmt.train.schedule import PLATEAU


@dataclass(frozen=True)
class ProcessorOptions(TrainingOptions):
    """Where a rank computes."""

    title: ClassVar[str] = "processors"

    num_gpus: int = option(
        1, "GPUs of a rank that layers are spread over; 0, or none there: the CPU", within=NOT_NEGATIVE
    )
    num_inter_threads: int = option(
        0, "operations at once; 0: TensorFlow's choice", within=NOT_NEGATIVE, makes=[(session_config, "inter_threads")]
    )
    num_intra_threads: int = option(
        0, "threads of one; 0: TensorFlow's choice", within=NOT_NEGATIVE, makes=[(session_config, "intra_threads")]
    )
    log_device_placement: bool = option(False, "log where each operation runs", makes=[session_config], saved=False)


def _names(metrics: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in metrics.split(",") if name.strip())


_KNOWN_METRICS = Condition(
    f"name some of {', '.join(METRICS)}", lambda value: bool(_names(value)) and all(n in METRICS for n in _names(value))
)


@dataclass(frozen=True)
class ReportOptions(ProcessorOptions):
    """What a training tells and keeps."""

    title: ClassVar[str] = "reports"

    steps_per_stats: int = option(100, "steps between lines of statistics", within=POSITIVE, makes=[Cadence])
    steps_per_external_eval: int | None = option(
        None, "steps between external evaluations; 0: 50 x steps_per_stats", within=NOT_NEGATIVE
    )
    evaluate_epochs: bool = option(True, "translate and score held-out texts after each epoch, too", makes=[Cadence])
    metrics: str = option(
        "bleu", f"what translations are scored by, with commas between: {', '.join(METRICS)}", within=_KNOWN_METRICS
    )
    eval_mode: str = option("rank0", "who evaluates: rank 0, or all ranks, each a share", allowed=("rank0", "shared"))
    early_stopping_patience: int = option(
        0,
        "external evaluations without a better score of the first metric before training ends; 0: never",
        within=NOT_NEGATIVE,
        makes=[Cadence],
    )
    num_keep_ckpts: int = option(5, "checkpoints kept", within=POSITIVE, makes=[(NoStore, "keep")])
    avg_ckpts: bool = option(
        False,
        "in training, evaluate the mean of the checkpoints kept, too; it is in out_dir/avg_checkpoints",
        makes=[(NoStore, "averages")],
    )

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What translations are scored by, in the order given."""
        return _names(self.metrics)

    @property
    def external_eval_interval(self) -> int:
        """Steps between translations of the development text."""
        return self.steps_per_external_eval or 50 * self.steps_per_stats

    def look_contradictions(self) -> Iterator[str]:
        """What goes by evaluations, where none comes, or too few, before the end."""
        interval, end = self.external_eval_interval, f"before --num_train_steps={self.num_train_steps}"
        patience, plateau = self.early_stopping_patience, self.decay_scheme == PLATEAU
        if patience and patience * interval >= self.num_train_steps:
            yield (
                f"--early_stopping_patience={patience} would have no effect: so many times the {interval} steps "
                f"between evaluations are not over {end}: lower it or --steps_per_external_eval"
            )
        if plateau and self.plateau_metric == "score" and not self.evaluate_epochs and interval >= self.num_train_steps:
            yield (
                f"--decay_scheme=plateau would have no effect: with --noevaluate_epochs and an evaluation every "
                f"{interval} steps none comes {end}: lower --steps_per_external_eval"
            )
        interval = PERPLEXITY_INTERVAL * self.steps_per_stats
        if plateau and self.plateau_metric == "perplexity" and interval >= self.num_train_steps:
            yield (
                f"--decay_scheme=plateau would have no effect: with a perplexity every {interval} steps "
                f"({PERPLEXITY_INTERVAL} x steps_per_stats) none comes {end}: lower --steps_per_stats"
            )

    def plateau_contradictions(self, before: Mapping[str, Any]) -> Iterator[str]:
        """A plateau of another figure than that of the run that is continued, or of one that has none."""
        if self.decay_scheme != PLATEAU:
            return
        if before["decay_scheme"] != PLATEAU:
            yield (
                f"--decay_scheme=plateau contradicts --decay_scheme={before['decay_scheme']} of the run that is "
                "continued, which has not kept what its evaluations found: leave it out, or choose another out_dir"
            )
        first = _names(before["metrics"])[0]
        if self.plateau_metric == "score" and first != self.metric_names[0]:
            yield (
                f"--metrics={self.metrics} does not begin with {first}, which --decay_scheme=plateau has compared so "
                f"far: begin with {first}, or choose another out_dir"
            )


_OF_LSTMS = ("small", "iwslt", "wmt")
PRESETS = ("", *_OF_LSTMS, "transformer_tiny", "transformer_base", "transformer_big", "convs2s_small")  # nmt/presets


@dataclass(frozen=True)
class ConfigurationOptions(ReportOptions):
    """Where options come from, beside the command line."""

    title: ClassVar[str] = "configuration"

    preset: str = option(
        "",
        "values for texts of a size, where neither flags nor the run that is continued say otherwise",
        allowed=PRESETS,
        fixed=True,
    )
    hparams_path: str | None = option(None, "JSON file of options, before all flags", saved=False)
    override_loaded_hparams: bool = option(
        False, "continue a run by flags and defaults, not by its hparams file", saved=False
    )
