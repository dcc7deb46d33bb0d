"""Facts of a run, read from the files in its directory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nmt.core.errors import InputError
from nmt.reporting.curve import History, Points, read_history
from nmt.text.lines import TextFile

HISTORY, SAMPLED = "history.jsonl", "output_dev"
_TEXT = "batch"  # the one entry of a history that is no number


@dataclasses.dataclass(frozen=True)
class Start:
    """One start of a run.

    Attributes:
        step: number of steps done before.
        time: Unix time of the start in seconds.
        ranks: number of ranks.
        batch: number of sentences, or of tokens, of a step on all ranks.
        last_step: last step with statistics.
        seconds: seconds from the start to the last statistics.
        stood_still: seconds in which training stood still, for evaluations and saves.
        words_per_second: mean of the statistics.
    """

    step: int
    time: float
    ranks: int
    batch: str
    last_step: int
    seconds: float
    stood_still: float
    words_per_second: float


@dataclasses.dataclass(frozen=True)
class Sample:
    """One sentence of the development text, its reference and its last translation, with the sentence's chrF."""

    number: int
    source: str
    reference: str
    translation: str
    chrf: float


@dataclasses.dataclass(frozen=True)
class RunFacts:
    """What a run's directory tells.

    Attributes:
        name: path of the directory as it was given.
        settings: contents of `hparams`.
        history: figures by step.
        starts: the starts of the run, in order.
        samples: all sentences of the development text, worst translation first; empty if they are not there any more.
    """

    name: str
    settings: dict[str, Any]
    history: History
    starts: Sequence[Start]
    samples: Sequence[Sample] = ()

    def points(self, figure: str) -> Points:
        """Return pairs of step and value of a figure."""
        return self.history.points(figure)


def starts_of(entries: Sequence[dict[str, Any]]) -> list[Start]:
    """Return the starts that a history has noted."""
    found: list[Start] = []
    paces: list[float] = []
    for entry in entries:
        if "started" in entry:
            paces = []
            batch, begun = str(entry.get("batch", "")), float(entry["started"])
            found.append(Start(entry["step"], begun, int(entry.get("ranks", 1)), batch, entry["step"], 0.0, 0.0, 0.0))
        elif found:
            last = found[-1]
            if "words_per_second" in entry:
                paces.append(float(entry["words_per_second"]))
                pace = sum(paces) / len(paces)
                last = dataclasses.replace(last, last_step=entry["step"], words_per_second=pace)
            if "time" in entry:
                last = dataclasses.replace(last, seconds=max(last.seconds, float(entry["time"]) - last.time))
            still = last.stood_still + float(entry.get("stood_still", 0.0))
            found[-1] = dataclasses.replace(last, stood_still=still)
    return found


def read_run(directory: str, settings: dict[str, Any]) -> RunFacts:
    """Read the facts of a run, but for the samples (see `read_samples`).

    Args:
        directory: directory of the run.
        settings: contents of its `hparams`.

    Raises:
        InputError: the run has no history, or a figure in it is no number.
    """
    path = Path(directory) / HISTORY
    entries = read_history(path)
    if not entries:
        raise InputError(f"{path} has no figures of a training: give the out_dir of a run")
    for entry in entries:
        for name, value in entry.items():
            if name != _TEXT and not isinstance(value, int | float):
                raise InputError(
                    f"{path}: {name} is {value!r} in step {entry['step']}, and no number: correct or remove the line"
                )
    return RunFacts(directory, settings, History.of(entries), starts_of(entries))


def read_samples(directory: str, sources: Sequence[str], references: Sequence[str]) -> list[Sample]:
    """Return all sentences of the development text with a run's last translations.

    Args:
        directory: directory of the run.
        sources: the sentences, as text.
        references: their references.

    Raises:
        InputError: the translations cannot be read, or are not those of the sentences.
    """
    translations = TextFile(os.path.join(directory, SAMPLED))
    if not len(translations) == len(sources) == len(references):
        raise InputError(
            f"{translations.path} has {len(translations)} lines, and the development text has {len(sources)} and "
            f"{len(references)}: restore the text that the run has translated"
        )
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    found = []
    for number, (source, wanted, translation) in enumerate(zip(sources, references, translations, strict=True)):
        score = metric.sentence_score(translation, [wanted]).score
        found.append(Sample(number, source, wanted, translation, score))
    return sorted(found, key=lambda sample: (sample.chrf, sample.number))
