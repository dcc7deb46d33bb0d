"""Translates standard input, or the file --input, to standard output, line by line.

    echo "A dog runs." | python -m nmt.translate --model=OUT_DIR [--format=text|tokens|json] [--n_best=K] [--scores]
        [--alignment] [--input=FILE]

OUT_DIR is the out_dir of a training, or a directory best_* in it. Text is prepared as the training text was, and the
translations are text again. Each line has a translation, or K, in the order of the input; a blank line has blank ones.
Lines that arrive together are translated together, and a line that arrives alone is translated at once.

Columns are separated by tabs: the translation, with --scores its score, and with --alignment pairs of numbers of words,
"0-0 1-2", source and target. JSON has one object for each line. With mpirun -n N the ranks share the lines; give
--input then, because launchers lose long standard input.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import numpy as np

from nmt.core.errors import InputError, reason_of
from nmt.core.ranks import call_on_root, together
from nmt.core.standard_output import as_json, check_open, write_lines
from nmt.options.config import Config
from nmt.options.option import POSITIVE, option
from nmt.options.search_options import SearchOptions
from nmt.runs.program import run_on_ranks
from nmt.runs.tfdist_ranks import Processes
from nmt.runs.trained_model import find, preparation_of
from nmt.runs.translation_run import open_model
from nmt.search.translation_model import Hypothesis, TranslationModel, shared, tell_cut
from nmt.search.word_alignment import aligned_words, word_numbers
from nmt.text.lines import LOOKED_AT_BYTES, MARK, check_kind, decoded, unreadable
from nmt.text.preparation import Preparation
from nmt.text.tokens import join, split

FORMATS = ("text", "tokens", "json")
_LINES_PER_RANK = 1_000  # that are translated together if they have arrived
_MOST_TOKENS = 1_000  # of a line: a file without line ends must not take all memory
_INPUT = "standard input"
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class TranslateOptions(SearchOptions):
    """Command-line options of `nmt.translate`."""

    title: ClassVar[str] = "input and output"

    input: str | None = option(None, "File to translate; unset: standard input.")
    format: str = option(
        "text",
        "text: raw text; json: raw text in, an object for each line out; tokens: prepared text in, tokens out.",
        allowed=FORMATS,
    )
    scores: bool = option(False, "Also write the score by which beam search ranks a translation.")
    alignment: bool = option(False, "Also write the source word that each target word attends to most.")
    shortlist: str | None = option(None, "As for nmt.nmt.")
    src_max_len_infer: int | None = option(
        None, f"Tokens that a line is cut to, with a warning; unset: the run's, or {_MOST_TOKENS}.", within=POSITIVE
    )

    def configured(self) -> tuple[Config, dict[str, Any]]:
        """Return the options of the model's run with these, and the contents of its `hparams` file."""
        run, _ = find(str(self.model), {"precision": self.precision})
        most = _MOST_TOKENS if run.most_positions is None else min(_MOST_TOKENS, run.most_positions - 1)
        given: dict[str, Any] = {"shortlist": self.shortlist}
        given["src_max_len_infer"] = self.src_max_len_infer or run.src_max_len_infer or most
        return find(str(self.model), self.search(run, self.scores) | given)


def translate(options: TranslateOptions, ranks: Processes) -> None:
    """Translate the input until it ends, or until nobody reads standard output.

    Collective: every rank calls, with equal options.

    Raises:
        CollectiveError: on every rank, for a user's mistake.
    """
    source = Lines(_LINES_PER_RANK * ranks.size, options.input)
    call_on_root(ranks, check_open)
    call_on_root(ranks, source.open)
    config, saved = call_on_root(ranks, options.configured)
    with together(ranks):
        writer = Writer(options, config, None if options.format == "tokens" else preparation_of(config))
    model = open_model(config, saved, ranks)
    work = functools.partial(writer.outputs, model)
    call_on_root(ranks, source.tell_ready)

    def read() -> list[tuple[int, str]]:
        with ranks.alone("waiting for lines of the input"):
            return source.read()

    while lines := call_on_root(ranks, read):
        outputs = shared(work, lines, [line for _, line in lines], ranks)
        if not call_on_root(ranks, functools.partial(write_lines, outputs)):
            return


class Writer:
    """Makes the output of lines.

    Args:
        options: options of the command.
        config: options of the run.
        preparation: how the text was prepared; None if the input is prepared already.
    """

    def __init__(self, options: TranslateOptions, config: Config, preparation: Preparation | None) -> None:
        self._options, self._preparation = options, preparation
        self._src, self._tgt, self._subwords = str(config.src), str(config.tgt), config.subword_option
        self._most, self._input = int(config.src_max_len_infer or 0), options.input or _INPUT

    def outputs(self, model: TranslationModel, numbered: Sequence[tuple[int, str]]) -> list[str]:
        """Return the output of each line, without its last line end; lines have their numbers from 1."""
        prepare: Callable[[str], str] = str
        if self._preparation:
            prepare = functools.partial(self._preparation.tokens, language=self._src)
        lines = [line for _, line in numbered]
        sources = list(map(prepare, lines))
        for (number, _), source in zip(numbered, sources, strict=True):
            tell_cut("translate", self._input, number, source, self._most)
        found = model.search(sources)
        aligned = [self._aligned(model, sources, [each[k] for each in found]) for k in range(len(found[0]))]
        make = self._json if self._options.format == "json" else self._columns
        return [make(*given) for given in zip(lines, sources, found, zip(*aligned, strict=True), strict=True)]

    def _aligned(
        self, model: TranslationModel, sources: Sequence[str], found: Sequence[Hypothesis]
    ) -> list[list[tuple[int, int]]]:
        """Return pairs of numbers of words for one translation of each line; none if they are not asked for."""
        if not self._options.alignment:
            return [[] for _ in sources]
        forced = model.forced(sources, [one.tokens for one in found])
        return [
            []
            if one is None or one.weights is None
            else aligned_words(one.weights, split(source), hypothesis.tokens, self._subwords)
            for one, source, hypothesis in zip(forced, sources, found, strict=True)
        ]

    def _text(self, hypothesis: Hypothesis) -> str:
        if self._preparation is None:
            return " ".join(hypothesis.tokens)
        return self._preparation.text(join(hypothesis.tokens, self._subwords, ""), self._tgt)

    def _columns(self, _: str, __: str, found: Sequence[Hypothesis], aligned: Sequence[Any]) -> str:
        lines = []
        for hypothesis, pairs in zip(found, aligned, strict=True):
            columns = [self._text(hypothesis)]
            columns += [_shown(hypothesis.score)] * self._options.scores
            columns += [" ".join(f"{source}-{target}" for source, target in pairs)] * self._options.alignment
            lines.append("\t".join(columns))
        return "\n".join(lines)

    def _json(self, line: str, source: str, found: Sequence[Hypothesis], aligned: Sequence[Any]) -> str:
        translations = []
        for hypothesis, pairs in zip(found, aligned, strict=True):
            one: dict[str, Any] = {"text": self._text(hypothesis), "score": hypothesis.score}
            if self._options.alignment:
                one |= {"words": self._words(hypothesis.tokens), "alignment": pairs}
            translations.append({name: value for name, value in one.items() if value is not None})
        contents: dict[str, Any] = {"source": line}
        if self._options.alignment:
            contents["words"] = self._words(split(source))
        return as_json(contents | {"translations": translations})

    def _words(self, tokens: Sequence[str]) -> list[str]:
        """Return the words that the numbers of an alignment mean."""
        words: dict[int, list[str]] = {}
        for token, number in zip(tokens, word_numbers(tokens, self._subwords), strict=True):
            words.setdefault(number, []).append(token)
        joined = (join(part, self._subwords, "") for part in words.values())
        return [self._preparation.cased(word) if self._preparation else word for word in joined]


class Lines:
    """Lines of the input, as they arrive.

    Args:
        most: most lines that are returned together.
        path: file to read; None for standard input.
    """

    def __init__(self, most: int, path: str | None = None) -> None:
        self._path, self._name, self._most = path, path or _INPUT, most
        self._arrived: deque[bytes] = deque()
        self._begun, self._number = bytearray(), 0  # a line whose end has not arrived, and the lines returned before
        self._ended = False

    def open(self) -> None:
        """Open the input; only the rank that reads calls.

        Raises:
            InputError: the file cannot be opened, or the program was started without a standard input.
        """
        if self._path is None and sys.stdin is None:
            raise InputError(f"{_INPUT} is closed: redirect a file or a pipe to it, or give --input=FILE")
        try:
            self._file: IO[bytes] = sys.stdin.buffer if self._path is None else open(self._path, "rb")  # noqa: SIM115
        except OSError as error:
            raise unreadable(self._name, error) from error

    def tell_ready(self) -> None:
        """Tell a user at a terminal to type; only the rank that reads calls."""
        if self._file.isatty():
            print("translate: ready: type a line and Enter; Ctrl-D ends", file=sys.stderr, flush=True)

    def read(self) -> list[tuple[int, str]]:
        """Return the lines that have arrived, with their numbers from 1, at least one; [] at the end of the input.

        Raises:
            InputError: the first of them cannot be read.
        """
        while not self._arrived and not self._ended:
            self._wait()
        lines: list[tuple[int, str]] = []
        while self._arrived and len(lines) < self._most:
            number = self._number + 1
            try:
                lines.append((number, decoded(self._name, number, self._arrived[0])))
            except InputError:
                if not lines:
                    raise
                break  # it is told when those before it are translated
            self._number = number
            self._arrived.popleft()
        return lines

    def _wait(self) -> None:
        """Wait until something arrives, or the input ends. A thread would still wait when Ctrl-C ends the program."""
        try:
            part: bytes = self._file.read1(_READ_BYTES)  # type: ignore[attr-defined]
        except (OSError, ValueError) as error:
            raise InputError(f"{self._name} cannot be read ({reason_of(error)}): give another input") from error
        if not self._number and not self._begun:
            check_kind(self._name, part[:LOOKED_AT_BYTES])
        self._begun += part
        if b"\n" in part:
            *lines, self._begun = self._begun.split(b"\n")
            self._arrived.extend(map(bytes, lines))
        elif not part:
            self._ended = True
            self._arrived.extend([bytes(self._begun)] if self._begun not in (b"", MARK) else [])


def _shown(score: float | None) -> str:
    return "" if score is None else f"{np.float32(score):.4f}"


def main(argv: Sequence[str]) -> int:
    """Run the command on this rank; return its exit code."""
    return run_on_ranks(translate, TranslateOptions, __doc__, argv, "translate")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
