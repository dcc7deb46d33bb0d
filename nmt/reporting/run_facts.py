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

_SAMPLED = "output_dev"


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
    samples: Sequence[Sample]

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


def read_run(directory: str, settings: dict[str, Any], sources: Sequence[str], references: Sequence[str]) -> RunFacts:
    """Read the facts of a run.

    Args:
        directory: directory of the run.
        settings: contents of its `hparams`.
        sources: sentences of the development text, as text; empty if they are not there.
        references: their references.

    Raises:
        InputError: the run has no history.
    """
    path = Path(directory) / "history.jsonl"
    entries = read_history(path)
    if not entries:
        raise InputError(f"{path} has no figures of a training: give the out_dir of a run")
    return RunFacts(
        directory, settings, History.of(entries), starts_of(entries), _samples(directory, sources, references)
    )


def _samples(directory: str, sources: Sequence[str], references: Sequence[str]) -> list[Sample]:
    """Return the sentences with the run's last translations; [] if their numbers of lines differ."""
    output = os.path.join(directory, _SAMPLED)
    if not sources or not os.path.exists(output):
        return []
    translations = list(TextFile(output))
    if len(translations) != len(sources):
        return []
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    found = []
    for number, (source, wanted, translation) in enumerate(zip(sources, references, translations, strict=True)):
        score = metric.sentence_score(translation, [wanted]).score
        found.append(Sample(number, source, wanted, translation, score))
    return sorted(found, key=lambda sample: (sample.chrf, sample.number))
