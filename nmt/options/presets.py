"""Presets: values of options for texts of a size, which stand where nothing else is said.

`nmt/presets/<name>.json` is one: the format of --hparams_path, and the other rank: what is given comes first, then what
the run that is continued has, then a preset, then the defaults. Of a preset's options those that would have no effect
beside what is given keep their defaults.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from nmt.options.config import Config
from nmt.options.configuration_options import PRESETS
from nmt.options.hparams_file import read_file
from nmt.train.schedule import NOAM


def preset(name: str) -> dict[str, Any]:
    """The options of a preset; none if the name is empty or is no preset's, as the check of options then tells."""
    return read_file(str(Path(__file__).parents[1] / "presets" / f"{name}.json")) if name and name in PRESETS else {}


def suited(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What a preset sets beside what is given: its learning rate is its optimizer's, and no factor of noam's."""
    fresh = {option: value for option, value in values.items() if option not in given}
    other = given.get("optimizer", values.get("optimizer")) != values.get("optimizer")
    if other or given.get("decay_scheme") == NOAM:
        fresh.pop("learning_rate", None)
    return fresh


def preset_lines(config: Config) -> list[str]:
    """What a run says of its preset: what that has set, and what was said otherwise."""
    values = preset(config.preset)
    kept = {name: value for name, value in sorted(values.items()) if getattr(config, name) == value}
    others = [f"{name}={getattr(config, name)} (not {value})" for name, value in values.items() if name not in kept]
    lines = [f"# --preset={config.preset} sets {', '.join(f'{name}={value}' for name, value in kept.items())}"]
    lines += [f"# other than in --preset={config.preset}: {', '.join(sorted(others))}"] if others else []
    return lines if values else []


def blamed(message: str, name: str, values: Mapping[str, Any], given: Collection[str]) -> str:
    """A message of a contradiction, with the options in it that a preset has set.

    Args:
        message: names options as --option.
        name: of the preset.
        values: of it, those that count.
        given: options that were given, which the preset has not set.
    """
    named = [f"--{one}={value}" for one, value in values.items() if one not in given and _names(message, one)]
    if not named:
        return message
    return f"{message} (--preset={name} sets {', '.join(named)}: give another value, too, or leave the preset out)"


def _names(message: str, option: str) -> bool:
    return re.search(rf"--{option}\b", message) is not None
