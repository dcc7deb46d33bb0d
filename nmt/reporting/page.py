"""One self-contained HTML page of one or several runs: no scripts, no other files."""

from __future__ import annotations

import html
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nmt.reporting.charts import Series, chart
from nmt.reporting.run_facts import RunFacts, Sample

_STYLE = (Path(__file__).parent / "page.css").read_text("utf-8")
_SHOWN = 5  # samples of each kind
_NO_CHARTS = "No curve: there are no figures yet, or matplotlib is not installed (pip install matplotlib)"


class Attention(NamedTuple):
    """The attention of one translation: its words, and weights [target, source], 0 to 1."""

    source: Sequence[str]
    target: Sequence[str]
    weights: np.ndarray


def page(runs: Sequence[RunFacts], defaults: Mapping[str, Any], attentions: Sequence[Attention], seed: int) -> str:
    """Return the page.

    Args:
        runs: the runs; with several, they stand next to each other.
        defaults: default values of the options of a run.
        attentions: attention of some translations of the first run.
        seed: seed of the choice of sentences.
    """
    title = "Training of " + ", ".join(run.name for run in runs)
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>Made {time.strftime('%Y-%m-%d %H:%M')}.</p>",
        "<h2>Scores</h2>",
        _scores(runs),
        "<h2>Curves</h2>",
        f"<div class=charts>{''.join(_charts(runs)) or _NO_CHARTS}</div>",
        "<h2>Ranks and time</h2>",
        _times(runs),
        *_samples(runs, seed),
        *(["<h2>Attention</h2>", *map(_attention, attentions)] if attentions else []),
        "<h2>Settings</h2>",
        _settings(runs, defaults),
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><link rel="icon" href="data:,">'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head><body>\n' + "\n".join(
        [*parts, "</body></html>\n"]
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    for row in rows:
        cells = (
            f"<td{' class=number' if cell.replace('.', '').isdigit() else ''}>{html.escape(cell)}</td>" for cell in row
        )
        lines.append("<tr>" + "".join(cells) + "</tr>")
    return f"<table>{''.join(lines)}</table>"


def _figures(runs: Sequence[RunFacts]) -> list[str]:
    """Return the names of the figures of any run."""
    return list(dict.fromkeys(name for run in runs for name in run.history.names()))


def _scores(runs: Sequence[RunFacts]) -> str:
    """Return a table of the best and the last value of each figure."""
    names = [name for name in _figures(runs) if name.startswith(("dev_", "test_", "avg_"))]
    rows = []
    for name in names:
        least = name.endswith("_ppl")
        for run in runs:
            points = [(step, value) for step, value in run.points(name) if math.isfinite(value)]
            if points:
                best = (min if least else max)(points, key=lambda point: point[1])
                last = points[-1]
                of = [run.name] if len(runs) > 1 else []
                rows.append([name, *of, f"{best[1]:.2f}", str(best[0]), f"{last[1]:.2f}", str(last[0])])
    return _table(["figure", *(["run"] * (len(runs) > 1)), "best", "at step", "last", "at step"], rows)


def _charts(runs: Sequence[RunFacts]) -> Iterable[str]:
    scores = [n for n in _figures(runs) if n.startswith(("dev_", "avg_dev_")) and not n.endswith("_ppl")]
    for title, names, log in (
        ("perplexity", ["train_ppl", "dev_ppl"], True),
        *((f"{name}", [name], False) for name in scores),
        ("learning rate", ["learning_rate"], False),
        ("norm of the gradients", ["grad_norm"], True),
        ("words per second", ["words_per_second"], False),
    ):
        series = []
        for number, run in enumerate(runs):
            for place, name in enumerate(names):
                label = f"{run.name} {name}" if len(runs) > 1 else name
                dashed = len(runs) > 1 and place > 0
                series.append(Series(label, run.points(name), number if len(runs) > 1 else place, dashed))
        yield chart(title, series, log)


def _times(runs: Sequence[RunFacts]) -> str:
    rows = []
    for run in runs:
        for start in run.starts:
            begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(start.time))
            share = f"{100 * start.stood_still / start.seconds:.0f} %" if start.seconds else ""
            rows.append(
                [
                    run.name, begun, str(start.ranks), start.batch, f"{start.step} to {start.last_step}",
                    f"{start.seconds / 60:.1f}", f"{start.stood_still:.0f}", share, f"{start.words_per_second:.0f}",
                ]
            )  # fmt: skip
    head = [
        "run",
        "started",
        "ranks",
        "global batch",
        "steps",
        "minutes",
        "seconds without training",
        "share",
        "words/s",
    ]
    return _table(head, rows) if rows else "<p>This run was made by a version that did not note its starts.</p>"


def _samples(runs: Sequence[RunFacts], seed: int) -> Iterable[str]:
    """Yield the sections of sentences; with several runs, the same sentences of all, chosen by the first."""
    yield "<h2>Translations</h2>"
    if not runs[0].samples:
        yield "<p>The development text or its translations are not where the run had them.</p>"
        return
    order = [sample.number for sample in runs[0].samples]
    chosen = np.random.Generator(np.random.PCG64(seed)).choice(len(order), min(_SHOWN, len(order)), replace=False)
    kinds = {"worst": order[:_SHOWN], "best": order[::-1][:_SHOWN], "at random": [order[k] for k in sorted(chosen)]}
    by_number = [{sample.number: sample for sample in run.samples} for run in runs]
    for kind, numbers in kinds.items():
        yield f"<details open><summary>{kind}, by chrF of the sentence</summary>"
        for number in numbers:
            yield _sample(
                [(run.name, samples[number]) for run, samples in zip(runs, by_number, strict=True) if number in samples]
            )
        yield "</details>"


def _sample(found: Sequence[tuple[str, Sample]]) -> str:
    first = found[0][1]
    lines = [(f"source {first.number}", first.source), ("reference", first.reference)]
    lines += [
        (f"chrF {one.chrf:.1f}", one.translation if len(found) == 1 else f"{one.translation}  [{name}]")
        for name, one in found
    ]
    shown = "<br>".join(f"<b>{html.escape(label)}</b> {html.escape(text)}" for label, text in lines)
    return f'<div class=sample dir="auto">{shown}</div>'


def _attention(one: Attention) -> str:
    head = "".join(f"<th>{html.escape(word)}</th>" for word in one.source)
    rows = []
    for word, weights in zip(one.target, one.weights, strict=True):
        cells = "".join(
            f'<td style="background:rgba(31,119,180,{weight:.2f})" title="{weight:.2f}"></td>' for weight in weights
        )
        rows.append(f"<tr><th>{html.escape(word)}</th>{cells}</tr>")
    return f"<table class=attention><thead><tr><th></th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _settings(runs: Sequence[RunFacts], defaults: Mapping[str, Any]) -> str:
    """Return a table of the options that differ from their defaults, and that differ between runs."""
    names = sorted(name for name in defaults if any(run.settings.get(name) != defaults[name] for run in runs))
    rows = [[name, *(str(run.settings.get(name)) for run in runs), str(defaults[name])] for name in names]
    differing = [row for row in rows if len(set(row[1:-1])) > 1]
    head = ["option", *(run.name for run in runs), "default"]
    if len(runs) == 1:
        return _table(head, rows)
    others = f"<details><summary>all that are no defaults</summary>{_table(head, rows)}</details>"
    return f"<h3>Where the runs differ</h3>{_table(head, differing)}{others}"
