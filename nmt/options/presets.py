"""Presets: values of options that suit a text of some size, used where no other value is given.

A preset is a file `nmt/presets/<name>.json` in the format of --hparams_path. Given options and those of a continued run
override it; it overrides the defaults. A preset's option that would have no effect with the given options keeps its
default.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nmt.options.config import Config
from nmt.options.configuration_options import PRESETS
from nmt.options.hparams_file import read_file
from nmt.options.training_options import NOAM


def preset(name: str) -> dict[str, Any]:
    """Return the options of a preset; empty if the name is empty or unknown (the check of options reports that)."""
    return read_file(str(Path(__file__).parents[1] / "presets" / f"{name}.json")) if name and name in PRESETS else {}


def suited(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a preset that are not given.

    The preset's learning rate is left out with another optimizer, and with noam, where the rate is only a factor.
    """
    fresh = {option: value for option, value in values.items() if option not in given}
    other = given.get("optimizer", values.get("optimizer")) != values.get("optimizer")
    if other or given.get("decay_scheme") == NOAM:
        fresh.pop("learning_rate", None)
    return fresh


def preset_lines(config: Config) -> list[str]:
    """Return the log lines about a run's preset: the options that it has set, and those with another value."""
    values = preset(config.preset)
    kept = {name: value for name, value in sorted(values.items()) if getattr(config, name) == value}
    others = [f"{name}={getattr(config, name)} (not {value})" for name, value in values.items() if name not in kept]
    lines = [f"# --preset={config.preset} sets {', '.join(f'{name}={value}' for name, value in kept.items())}"]
    lines += [f"# other than in --preset={config.preset}: {', '.join(sorted(others))}"] if others else []
    return lines if values else []


def blamed(message: str, name: str, values: Mapping[str, Any], given: Collection[str]) -> str:
    """Return a contradiction's message, extended by the options in it that a preset has set.

    Args:
        message: text that names options as --option.
        name: name of the preset.
        values: options of the preset that are in use.
        given: names of the options that were given, and that the preset has therefore not set.
    """
    named = [f"--{one}={value}" for one, value in values.items() if one not in given and _names(message, one)]
    if not named:
        return message
    return f"{message} (--preset={name} sets {', '.join(named)}: give another value, too, or leave the preset out)"


def _names(message: str, option: str) -> bool:
    return re.search(rf"--{option}\b", message) is not None
