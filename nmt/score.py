"""Scores pairs of sentences by a model, or a file of translations by references.

    python -m nmt.score --model=OUT_DIR --source=FILE --target=FILE [--tokens] [--format=text|tokens|json]

writes for each pair the logarithm of the target's probability (nats), and its number of tokens, the end mark counted.
With --tokens also each token and its logarithm. The last line, on standard error, has the perplexity. Text is prepared
as the training text was; with --format=tokens it is prepared already. With mpirun -n N the ranks share the pairs.

    python -m nmt.score --hypotheses=FILE --references=FILE[,FILE] [--language=de] [--format=text|json]

writes the metrics of translations: sacreBLEU's BLEU, chrF and TER of text, with their signatures and intervals that
hold 95 % of a thousand resampled texts. After them come the metrics of nmt.nmt, of tokens that spaces separate.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from nmt.core.errors import InputError
from nmt.core.parallel import pieces
from nmt.core.ranks import call_on_root, together
from nmt.core.standard_output import as_json, check_open, write_lines
from nmt.options.option import POSITIVE, option
from nmt.runs.program import run_on_ranks
from nmt.runs.tfdist_ranks import Processes
from nmt.runs.trained_model import find, preparation_of
from nmt.runs.translation_run import open_model
from nmt.scoring.perplexity import perplexity
from nmt.scoring.score import Figure, figures
from nmt.scoring.tokenisation import remarks
from nmt.search.translation_model import shared, tell_cut
from nmt.text.corpus import open_parallel
from nmt.text.lines import TextFile
from nmt.text.tokens import split

FORMATS = ("text", "tokens", "json")
_PAIRS_PER_RANK = 2_000  # that are scored together
_MODEL, _FILES = ("source", "target"), ("hypotheses", "references")


@dataclass(frozen=True)
class ScoreOptions:
    """Command-line options of `nmt.score`."""

    title: ClassVar[str] = "options"
    SPELT: ClassVar[dict[str, str]] = {"ckpt": "model"}

    model: str | None = option(None, "Directory of the run, or checkpoint; several form an ensemble.")
    source: str | None = option(None, "Source sentences, for a model.")
    target: str | None = option(None, "Target sentences, for a model.")
    tokens: bool = option(False, "Also write each token of the target with the logarithm of its probability.")
    hypotheses: str | None = option(None, "Translations, for metrics.")
    references: str | None = option(None, "Reference translations, for metrics; several files are separated by commas.")
    language: str = option(
        "", "Code of the translations' language. Of one without spaces (zh, ja, ko, th) sacreBLEU makes the words."
    )
    format: str = option("text", "text: columns; tokens: columns, for prepared text; json: objects.", allowed=FORMATS)
    infer_batch_size: int | None = option(None, "Sentences in a batch; unset: the run's.", within=POSITIVE)
    precision: str | None = option(None, "Format of matrix products, as for nmt.nmt; unset: the run's.")

    def check(self) -> None:
        """Check that the options ask for one of the two kinds of scores.

        Raises:
            InputError: they ask for both, or for none, or a file is missing.
        """
        for_model = [name for name in ("model", *_MODEL) if getattr(self, name)]
        for_files = [name for name in _FILES if getattr(self, name)]
        if for_model and for_files:
            raise InputError(
                f"--{for_model[0]} and --{for_files[0]}: a model scores --source and --target, and metrics compare "
                "--hypotheses with --references; ask for one of both"
            )
        if for_files and (self.tokens or self.format == "tokens"):
            said = "--tokens" if self.tokens else "--format=tokens"
            raise InputError(f"{said} is for a model, and metrics of --hypotheses have no such output: leave it out")
        needed = _FILES if for_files else ("model", *_MODEL)
        missing = [f"--{name}" for name in needed if not str(getattr(self, name) or "").strip(", ")]
        if missing:
            raise InputError(f"Missing {', '.join(missing)}; --help lists the flags")


def score(options: ScoreOptions, ranks: Processes) -> None:
    """Score pairs by a model, or translations by references.

    Collective: every rank calls, with equal options.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
    """
    call_on_root(ranks, options.check)
    call_on_root(ranks, check_open)
    if options.model:
        _by_model(options, ranks)
    else:
        call_on_root(ranks, functools.partial(_by_references, options, ranks))


def _by_model(options: ScoreOptions, ranks: Processes) -> None:
    given: dict[str, Any] = {"infer_batch_size": options.infer_batch_size, "precision": options.precision}
    given |= {"beam_width": 0, "infer_mode": "greedy", "num_translations_per_input": 1}  # nothing is searched for
    config, saved = call_on_root(ranks, lambda: find(str(options.model), given))
    with together(ranks):
        preparation = None if options.format == "tokens" else preparation_of(config)
        corpus = open_parallel(str(options.source), str(options.target))
    model = open_model(config, saved, ranks)
    total = words = 0.0

    def scored(part: Sequence[int]) -> list[tuple[list[str], np.ndarray | None]]:
        sources, targets = [corpus.src.line(i) for i in part], [corpus.tgt.line(i) for i in part]
        if preparation:
            sources = [preparation.tokens(line, str(config.src)) for line in sources]
            targets = [preparation.tokens(line, str(config.tgt)) for line in targets]
        for number, line in zip(part, sources, strict=True):
            tell_cut("score", corpus.src.path, number + 1, line, config.src_max_len_infer, "the run's ")
        found = model.log_probabilities(sources, targets)
        return [([*split(line), config.eos], one) for line, one in zip(targets, found, strict=True)]

    for part in pieces(range(len(corpus)), _PAIRS_PER_RANK * ranks.size):
        results = shared(scored, part, [corpus.src.line(i) for i in part], ranks)
        rows = itertools.starmap(functools.partial(_pair, options), results)
        if not call_on_root(ranks, functools.partial(write_lines, rows)):
            return
        known = [one for _, one in results if one is not None]
        total += sum(float(one.sum(dtype=np.float64)) for one in known)
        words += sum(map(len, known))
    told = f"# {len(corpus)} pairs, {words:.0f} tokens, perplexity {perplexity(-total, words):.4f}"
    call_on_root(ranks, lambda: print(told, file=sys.stderr, flush=True))


def _pair(options: ScoreOptions, tokens: Sequence[str], logarithms: np.ndarray | None) -> str:
    """Return the output of one pair; a blank source has no probability."""
    found = None if logarithms is None else [float(one) for one in logarithms]
    total = math.nan if found is None else math.fsum(found)
    if options.format == "json":
        one: dict[str, Any] = {"log_probability": None if found is None else total, "tokens": len(tokens)}
        if options.tokens and found is not None:
            one["each"] = [[token, round(value, 6)] for token, value in zip(tokens, found, strict=True)]
        return as_json(one)
    columns = [f"{total:.4f}", str(len(tokens))]
    if options.tokens:
        columns += [" ".join(f"{token}:{value:.4f}" for token, value in zip(tokens, found or (), strict=False))]
    return "\t".join(columns)


def _by_references(options: ScoreOptions, ranks: Processes) -> None:
    """Print the metrics of translations. Only one rank calls."""
    with ranks.alone("scores"):
        hypotheses = TextFile(str(options.hypotheses))
        references = [TextFile(path.strip()) for path in str(options.references).split(",") if path.strip()]
        for reference in references:
            if len(reference) != len(hypotheses):
                raise InputError(
                    f"{hypotheses.path} has {len(hypotheses)} lines and its reference {reference.path} has "
                    f"{len(reference)}; score translations with the reference of the text they translate"
                )
        found = figures(list(hypotheses), list(map(list, references)), options.language)
    if options.format == "json":
        write_lines([as_json([dataclasses.asdict(one) for one in found])])
    else:
        write_lines(map(_row, found))
    for line in remarks(options.language):
        print(line, file=sys.stderr, flush=True)


def _row(figure: Figure) -> str:
    low, high = figure.interval if figure.interval else (None, None)
    interval = "" if low is None else f"[{low:.2f}, {high:.2f}]"
    return f"{figure.name:24} {figure.score:6.2f}  {interval:16}  {figure.signature}".rstrip()


def main(argv: Sequence[str]) -> int:
    """Run the command on this rank; return its exit code."""
    return run_on_ranks(score, ScoreOptions, __doc__, argv, "score")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
