"""The learning curve: stores its points in a file, and draws it.

`history.jsonl` holds one JSON object per line: "step", and figures of this step such as "train_ppl" or "dev_bleu". A
run that continues drops the points after its checkpoint, so the curve does not overlap itself.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nmt.core.errors import InputError
from nmt.core.files import append, replace_atomically

Points = list[tuple[int, float]]


class History:
    """The figures of a run by step, stored in a file.

    Args:
        path: path of the file; made if missing.
        first_step: the step that the run starts from; points of later steps are dropped from the file.

    Raises:
        InputError: the file cannot be read or written.
    """

    def __init__(self, path: str | os.PathLike[str], first_step: int) -> None:
        self._path = Path(path)
        self._entries = [entry for entry in read_history(self._path) if entry["step"] <= first_step]
        with replace_atomically(self._path) as file:
            file.writelines(json.dumps(entry) + "\n" for entry in self._entries)

    @classmethod
    def of(cls, entries: list[dict[str, Any]]) -> History:
        """Return a history of these entries, which has no file to record in."""
        history = cls.__new__(cls)
        history._entries = entries
        return history

    def names(self) -> list[str]:
        """Return the names of all figures, in the order in which they were first recorded."""
        return list(dict.fromkeys(name for entry in self._entries for name in entry if name != "step"))

    def record(self, step: int, figures: Mapping[str, Any]) -> None:
        """Add the figures of a step.

        Raises:
            InputError: the disk is full.
        """
        entry = {"step": step, **figures}
        self._entries.append(entry)
        append(self._path, json.dumps(entry) + "\n")

    def points(self, name: str) -> Points:
        """Return the (step, value) pairs of a figure; for a step that was recorded twice, the later value."""
        return sorted({entry["step"]: entry[name] for entry in self._entries if name in entry}.items())


def draw(history: History, metrics: Sequence[str] = ("bleu",)) -> bytes | None:
    """Draw perplexities (log scale) and dev scores over the steps; return a PNG, or None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(8, 5), layout="constrained")
    left = figure.add_subplot()
    right = left.twinx()
    colors = iter(("tab:gray", "tab:blue", "tab:red", "tab:orange", "tab:green", "tab:purple"))
    scores = [f"dev_{metric}" for metric in metrics]
    for axes, names, style in ((left, ("train_ppl", "dev_ppl"), "-"), (right, scores, "--")):
        for name, color in zip(names, colors, strict=False):
            points = history.points(name)
            axes.plot(
                [step for step, _ in points],
                [value for _, value in points],
                style,
                color=color,
                marker=".",
                label=name,
            )
    left.set(xlabel="step", ylabel="perplexity", yscale="log")
    right.set(ylabel="BLEU" if scores == ["dev_bleu"] else "score", ylim=(0, 100))
    lines = [*left.get_lines(), *right.get_lines()]
    left.legend(
        lines,
        [str(line.get_label()) for line in lines],
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=3,
    )
    left.grid(alpha=0.3)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a history; [] without the file.

    Raises:
        InputError: the file cannot be read.
    """
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
        except ValueError:  # a run that was killed may leave an incomplete last line
            continue
        if isinstance(entry, dict) and isinstance(entry.get("step"), int):
            entries.append(entry)
    return entries
