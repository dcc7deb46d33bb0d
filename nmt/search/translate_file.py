"""File translation: translates all or some lines of a text file, and draws attention weights for some lines."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from nmt.core.errors import InputError
from nmt.core.files import remove_unfinished, replace_atomically
from nmt.core.lock import hold
from nmt.core.ranks import ONE_PROCESS, Ranks, call_on_root
from nmt.reporting.heatmap import heatmap
from nmt.reporting.progress import progress
from nmt.search.translation_model import TranslationModel, translate_shared
from nmt.text.lines import TextFile

LINES_PER_RANK = 4_000  # of a piece; with few lines, sentences of a batch would differ much in length


def translate_file(
    model: TranslationModel,
    input_path: str,
    output_path: str,
    ranks: Ranks = ONE_PROCESS,
    inference_list: str | None = None,
    finish: Callable[[str], str] = str,
) -> int:
    """Translate a text file line by line into another file, which appears when it is complete.

    Rank 0 alone reads and writes; the translations of a line are consecutive lines. A long text is translated in
    pieces, so the memory does not grow with its length.

    Collective: every rank calls, with equal weights in its model.

    Args:
        model: the model that translates.
        input_path: path of the source text.
        output_path: path of the translations; the directory is made if missing.
        ranks: the ranks that share the lines.
        inference_list: line numbers from 0, separated by commas; None for all lines. Lines are translated in the order
            of the list, each with the same result as in the whole file.
        finish: function that makes text of a translation.

    Returns:
        the number of source lines translated.

    Raises:
        CollectiveError: on every rank: the input cannot be read or is not UTF-8, a listed line does not exist, or the
            output cannot be written.
    """
    with contextlib.ExitStack() as opened:
        files, done = _Files(opened, input_path, output_path, inference_list), 0
        total = call_on_root(ranks, files.open)
        while done < total:
            lines = call_on_root(ranks, functools.partial(files.read, done, LINES_PER_RANK * ranks.size))
            translations = translate_shared(model, lines, ranks)
            done += len(lines)
            finished = [[finish(one) for one in found] for found in translations]
            call_on_root(ranks, functools.partial(files.write, finished, done))
        call_on_root(ranks, opened.close)  # the output gets its name
    return total


class _Files:
    """The input and output file of a translation; only rank 0 opens them, until `opened` is closed."""

    def __init__(
        self, opened: contextlib.ExitStack, input_path: str, output_path: str, inference_list: str | None
    ) -> None:
        self._opened, self._paths, self._list = opened, (input_path, output_path), inference_list

    def open(self) -> int:
        """Open both files; return the number of lines to translate."""
        self._text = TextFile(self._paths[0])
        self._numbers = picked_numbers(self._text, self._list)
        if os.path.isfile(self._paths[1]) or not os.path.exists(self._paths[1]):
            target = Path(os.path.realpath(self._paths[1]))
            lock = target.with_name(f"{target.name}.lock")
            self._opened.enter_context(hold(lock, self._paths[1], "choose another file"))
            remove_unfinished(target.parent, target.name)
        self._output = self._opened.enter_context(replace_atomically(self._paths[1]))
        self._started = time.perf_counter()
        self._shown = progress(0, len(self._numbers), unit="line")
        self._opened.callback(self._shown.close)
        return len(self._numbers)

    def read(self, start: int, most: int) -> list[str]:
        """Return at most `most` lines from index `start` on."""
        return [self._text.line(number) for number in self._numbers[start : start + most]]

    def write(self, translations: list[list[str]], done: int) -> None:
        """Write the translations of some lines; `done` is the number of lines done, these included."""
        self._output.writelines(line + "\n" for found in translations for line in found)
        self._output.flush()  # a pipe's reader waits for it
        pace = done / (time.perf_counter() - self._started)
        self._shown.advance(done, {"lines/s": f"{pace:.1f}"})


def draw_attention(model: TranslationModel, input_path: str, output_path: str, inference_list: str) -> list[str]:
    """Draw the model's attention for each line of a list, as `<output_path><number>.png`.

    Arguments as for `translate_file`. Only one rank calls.

    Returns:
        paths of the pictures. There are none for blank lines, for a model without attention, and without matplotlib.

    Raises:
        InputError: the input or the list cannot be used, or a picture cannot be written.
    """
    paths = []
    for number, line in zip(*picked_lines(input_path, inference_list), strict=True):
        alignment = model.align(line)
        picture = heatmap(*alignment) if alignment else None
        if picture:
            paths.append(f"{output_path}{number}.png")
            with replace_atomically(paths[-1], "wb") as file:
                file.write(picture)
    return paths


def picked_lines(path: str, inference_list: str | None) -> tuple[list[int], list[str]]:
    """Return the numbers and the texts of the lines of a file that are on the list; None lists all lines.

    Raises:
        InputError: the file cannot be used, or the list names a line that the file does not have.
    """
    text = TextFile(path)
    numbers = list(picked_numbers(text, inference_list))
    return numbers, [text.line(number) for number in numbers]


def picked_numbers(text: TextFile, inference_list: str | None) -> Sequence[int]:
    """Return the numbers of the lines on the list, as `picked_lines`."""
    numbers = range(len(text)) if inference_list is None else parse_list(inference_list)
    for number in [] if inference_list is None else numbers:
        if number >= len(text):
            raise InputError(
                f"--inference_list: {text.path} has no line {number}; it has {len(text)}, numbered 0 to {len(text) - 1}"
            )
    return numbers


def parse_list(inference_list: str) -> list[int]:
    """Return the numbers of a list such as "3,0,17", in its order.

    Raises:
        InputError: an entry is not a line number.
    """
    entries: Sequence[str] = [entry.strip(" ") for entry in inference_list.split(",")]
    for entry in entries:
        if not (entry.isascii() and entry.isdigit()):
            raise InputError(
                f"--inference_list={inference_list}: {entry!r} is no line number; give numbers from 0, separated "
                "by commas"
            )
    return [int(entry) for entry in entries]
