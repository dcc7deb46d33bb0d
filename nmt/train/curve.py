"""The learning curve: its points in a file that outlives a run, and its picture.

`history.jsonl` holds one JSON object a line: "step", and figures of that step such as "train_ppl" or
"dev_bleu". A run that continues drops what was recorded after the checkpoint it starts from, so that the
curve stays one line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from nmt.errors import InputError
from nmt.files import append, replace_atomically

Points = list[tuple[int, float]]


class History:
    """The figures of a run by step, in a file.

    Args:
        path: made if missing.
        first_step: the step that the run starts from; later ones in the file are dropped.

    Raises:
        InputError: the file cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str], first_step: int) -> None:
        self._path = Path(path)
        self._entries = [entry for entry in _read(self._path) if entry["step"] <= first_step]
        with replace_atomically(self._path) as file:
            file.writelines(json.dumps(entry) + "\n" for entry in self._entries)

    def record(self, step: int, figures: dict[str, float]) -> None:
        """Adds the figures of a step.

        Raises:
            InputError: the disk is full.
        """
        entry = {"step": step} | figures
        self._entries.append(entry)
        append(self._path, json.dumps(entry) + "\n")

    def points(self, name: str) -> Points:
        """A figure over the steps; of a step recorded twice, the later value."""
        return sorted({entry["step"]: entry[name] for entry in self._entries if name in entry}.items())


def draw(history: History, path: str | os.PathLike[str]) -> bool:
    """Draws perplexities (logarithmic) and BLEU over the steps, as PNG; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 5), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    for axes, names, style in ((left, ("train_ppl", "dev_ppl"), "-"), (right, ("dev_bleu",), "--")):
        for name in names:
            points = history.points(name)
            color = {"train_ppl": "tab:gray", "dev_ppl": "tab:blue", "dev_bleu": "tab:red"}[name]
            axes.plot(
                [step for step, _ in points],
                [value for _, value in points],
                style,
                color=color,
                marker=".",
                label=name,
            )
    left.set(xlabel="step", ylabel="perplexity", yscale="log")
    right.set(ylabel="BLEU", ylim=(0, 100))
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(
        lines,
        [str(line.get_label()) for line in lines],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
    )
    left.grid(alpha=0.3)
    with replace_atomically(path, "wb") as file:
        figure.savefig(file, format="png", dpi=120)
    return True


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}): move it away") from None
    entries = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # the last line of a run that was killed
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries
