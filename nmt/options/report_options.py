"""Options of evaluation and reports: when, by whom, by which metrics, and which checkpoints are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nmt.keeping.run_directory import NoStore
from nmt.options.option import NOT_NEGATIVE, POSITIVE, Condition, option
from nmt.options.processor_options import ProcessorOptions
from nmt.scoring.metrics import METRICS
from nmt.train.loop import Cadence


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
    avg_ckpts: bool = option(False, "evaluate the mean of the checkpoints kept, too", makes=[(NoStore, "averages")])

    @property
    def metric_names(self) -> tuple[str, ...]:
        """What translations are scored by, in the order given."""
        return _names(self.metrics)

    @property
    def external_eval_interval(self) -> int:
        """Steps between translations of the development text."""
        return self.steps_per_external_eval or 50 * self.steps_per_stats
