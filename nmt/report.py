"""Writes a page about a run: settings, curves, scores, translations, attention, ranks, and time.

    python -m nmt.report OUT_DIR [OUT_DIR ...] [--output=FILE]

OUT_DIR is that of a training. The page is one HTML file without scripts, OUT_DIR/report.html if --output is not
given. Several runs stand next to each other. Sentences are those of the development text with the last translations.
Attention is computed with the last checkpoint; --noattention leaves it out.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nmt.core.errors import InputError
from nmt.core.files import check_no_input, replace_atomically
from nmt.core.ranks import CollectiveError, call_on_root
from nmt.core.standard_output import write_lines
from nmt.options.config import FIELDS
from nmt.options.hparams_file import HPARAMS, read_saved
from nmt.options.option import NOT_NEGATIVE, option
from nmt.reporting.page import Attention, page
from nmt.reporting.run_facts import HISTORY, SAMPLED, RunFacts, read_run, read_samples
from nmt.runs.configure import recorded_directory
from nmt.runs.program import run_on_ranks, spelled
from nmt.runs.tfdist_ranks import Processes
from nmt.runs.trained_model import find
from nmt.runs.translation_run import open_model
from nmt.scoring.finishing import Finishing
from nmt.text.lines import TextFile
from nmt.text.preparation import VOCABULARY, recorded

_PICTURES = 3  # translations whose attention is shown


@dataclass(frozen=True)
class ReportOptions:
    """Command-line options of `nmt.report`."""

    title: ClassVar[str] = "options"
    SPELT: ClassVar[dict[str, str | None]] = {"ckpt": "model", "out_dir": "model", "attention": None}

    model: str | None = option(None, "Directories of runs, separated by commas, or as arguments.", required=True)
    output: str | None = option(None, "File of the page; unset: report.html in the first run's directory.")
    attention: bool = option(True, "Show the attention of some translations, if the model has attention.")
    seed: int = option(1, "Seed of the choice of sentences.", within=NOT_NEGATIVE)

    @property
    def directories(self) -> list[str]:
        """The directories of the runs. InputError if there is none."""
        names = [os.path.normpath(name.strip()) for name in str(self.model).split(",") if name.strip()]
        if not names:
            raise InputError(f"--model={self.model} names no run: give the out_dir of a training")
        return names


def report(options: ReportOptions, ranks: Processes) -> None:
    """Write the page.

    Collective: every rank calls, with equal options; rank 0 reads and writes.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
    """
    runs = call_on_root(ranks, lambda: [_facts(directory) for directory in options.directories])
    attentions: list[Attention] = []
    if options.attention and runs[0].samples:
        try:
            attentions = _attentions(options, runs[0], ranks)
        except CollectiveError as error:
            if error.is_mine:
                _tell_left_out("pictures of attention", error)
    call_on_root(ranks, functools.partial(_write, options, runs, attentions))


def _facts(directory: str) -> RunFacts:
    """Return the facts of a run.

    Raises:
        InputError: the directory is no run's, or one of its files is damaged.
    """
    hparams = os.path.join(directory, HPARAMS)
    if not os.path.isfile(hparams):
        raise InputError(f"{hparams} does not exist: give the out_dir of a training")
    settings = read_saved(hparams)
    run = read_run(directory, settings)
    try:
        return dataclasses.replace(run, samples=read_samples(directory, *_sides(directory, settings)))
    except InputError as error:
        _tell_left_out(f"the translations of {directory}", error)
        return run


def _sides(directory: str, settings: Mapping[str, Any]) -> list[list[str]]:
    """Return the sentences of a run's development text, and their references, as text.

    Raises:
        InputError: a file cannot be used.
    """
    copied = recorded_directory(directory)
    preparation = recorded(copied / VOCABULARY if copied else _path(directory, settings, "vocab_prefix", "src"))
    subwords, sides = settings.get("subword_option", ""), []
    for side in ("src", "tgt"):
        language, prefix = settings.get(side, ""), _path(directory, settings, "dev_prefix", side)
        finishing = Finishing(language, subwords, preparation)
        sides.append(finishing.references(f"{prefix}.{language}", is_prepared=True))
    return sides


def _path(directory: str, settings: Mapping[str, Any], option: str, side: str) -> str:
    """Return a prefix of a run's files, which may be relative to the directory where the training was started."""
    prefix, language = str(settings.get(option)), settings.get(side)
    places = [Path(), *Path(directory).resolve().parents]
    paths = (os.fspath(place / prefix) for place in places)
    return next((path for path in paths if os.path.exists(f"{path}.{language}")), prefix)


def _tell_left_out(part: str, error: Exception) -> None:
    print(spelled(f"report: {part} are left out: {error}", ReportOptions), file=sys.stderr, flush=True)


def _attentions(options: ReportOptions, run: RunFacts, ranks: Processes) -> list[Attention]:
    """Return the attention of some translations; [] for a model without attention, and without short sentences."""
    config, saved = call_on_root(ranks, lambda: find(options.directories[0], {}))
    lines = call_on_root(ranks, lambda: _prepared(run))
    if not config.attends or not lines:
        return []
    model = open_model(config, saved, ranks)
    with ranks.alone("attention"):
        found = [model.align(line) for line in lines] if not ranks.rank else []
    return [Attention(*one) for one in found if one is not None]


def _prepared(run: RunFacts) -> list[str]:
    """Return prepared source lines of sentences in the middle of the scores, short enough for a picture."""
    text = TextFile(f"{_path(run.name, run.settings, 'dev_prefix', 'src')}.{run.settings['src']}")
    middle = run.samples[len(run.samples) // 2 :]
    short = [sample.number for sample in middle if 3 <= text.lengths[sample.number] <= 25]
    return [text.line(number) for number in short[:_PICTURES]]


def _write(options: ReportOptions, runs: Sequence[RunFacts], attentions: Sequence[Attention]) -> None:
    defaults: dict[str, Any] = {name: field.default for name, field in FIELDS.items() if field.metadata["saved"]}
    path = Path(options.output or os.path.join(options.directories[0], "report.html"))
    read = [os.path.join(name, file) for name in options.directories for file in (HPARAMS, HISTORY, SAMPLED)]
    check_no_input("output", path, read)
    with replace_atomically(path) as file:
        file.write(page(runs, defaults, attentions, options.seed))
    write_lines([f"# {path}"])


def main(argv: Sequence[str]) -> int:
    """Run the command on this rank; return its exit code."""
    runs = list(itertools.takewhile(lambda word: not word.startswith("-"), argv[1:]))
    named = [f"--model={','.join(runs)}"] if runs else []
    return run_on_ranks(report, ReportOptions, __doc__, [argv[0], *named, *argv[1 + len(runs) :]], "report")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
