"""Sequence-level distillation: the commands of nmt/docs/training.md, with small models."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

README = Path(__file__).parents[3] / "nmt/docs/training.md"


def commands() -> dict[str, list[list[str]]]:
    """Return the arguments of the commands, by program."""
    section = README.read_text().split("\n### Distillation\n")[1].split("\n## ")[0]
    found: dict[str, list[list[str]]] = {"nmt": [], "prepare": []}
    for program, flags in re.findall(r"python -m nmt\.(nmt|prepare) (--.+?)\n", section.replace("\\\n", " ")):
        found[program].append(shlex.split(flags))
    return found
