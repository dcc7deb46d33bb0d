"""Options about files of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from nmt.options.option import option
from nmt.options.report_options import ReportOptions

PRESETS = ("", "small", "iwslt", "wmt")  # files in nmt/presets


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
