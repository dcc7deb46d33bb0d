"""Options of the processors: GPUs and threads of a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nmt.model.session import session_config
from nmt.options.option import NOT_NEGATIVE, option
from nmt.options.training_options import TrainingOptions


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
