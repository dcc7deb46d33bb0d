"""File translation: a text file into a file of translations, all its lines or those on a list, which are drawn, too."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Sequence

from nmt.core.errors import InputError
from nmt.core.files import replace_atomically
from nmt.core.partial_file import partial_file
from nmt.core.ranks import ONE_PROCESS, Ranks, from_root
from nmt.reporting.heatmap import heatmap
from nmt.reporting.progress import progress
from nmt.text.lines import TextFile
from nmt.translate.translation_model import TranslationModel, translate_shared

LINES_PER_RANK = 4_000  # of a piece: the batches of a piece are of similar length only if there are many


def translate_file(
    model: TranslationModel,
    input_path: str,
    output_path: str,
    ranks: Ranks = ONE_PROCESS,
    inference_list: str | None = None,
    work: str = "",
) -> int:
    """Translates a text file line by line into another, which appears when it is complete.

    Rank 0 alone reads and writes; the translations of a line stand in consecutive lines. A long text is translated in
    pieces, so that memory does not grow with it; what a process that was killed has done of the same text, with the
    same model and options, is not done again.

    Collective: every rank calls, with equal weights in its model.

    Args:
        model: what translates.
        input_path: the source text.
        output_path: where the translations go; the directory is made if missing.
        ranks: who translates; each does a share.
        inference_list: the numbers of the lines wanted, from 0, with commas between them; None for all. They are
            translated in the order of the list, each as it would be in the whole file.
        work: what tells this model with these options from others.

    Returns:
        the number of source lines translated.

    Raises:
        AgreedError: on every rank: the input cannot be read or is not UTF-8, the list names what is no line of it, or
            the output cannot be written.
    """
    with contextlib.closing(_Files(input_path, output_path, inference_list, work)) as files:
        done, total = from_root(ranks, files.open)
        while done < total:
            numbers, lines = from_root(ranks, functools.partial(files.read, done, LINES_PER_RANK * ranks.size))
            translations = translate_shared(model, lines, ranks, numbers)
            done += len(lines)
            from_root(ranks, functools.partial(files.write, translations, done))
        from_root(ranks, files.complete)
    return total


class _Files:
    """What rank 0 reads and writes in a translation; on the others nothing is ever opened."""

    def __init__(self, input_path: str, output_path: str, inference_list: str | None, work: str) -> None:
        self._paths, self._list, self._work = (input_path, output_path), inference_list, work
        self._opened = contextlib.ExitStack()

    def open(self) -> tuple[int, int]:
        """Opens both files; returns how many lines are done, and how many are wanted."""
        self._text = TextFile(self._paths[0])
        self._numbers = picked_numbers(self._text, self._list)
        work = f"{self._work} {self._text.checksum:08x} {self._list}"
        self._output = self._opened.enter_context(partial_file(self._paths[1], work))
        self._first, self._started = self._output.done, time.perf_counter()
        self._shown = progress(self._first, len(self._numbers), unit="line")
        self._opened.callback(self._shown.close)
        if self._output.notice:
            self._shown.say(f"# {self._output.notice}: {self._first} of {len(self._numbers)} lines")
        return self._first, len(self._numbers)

    def read(self, start: int, most: int) -> tuple[list[int], list[str]]:
        """The numbers of the next lines, and their texts."""
        numbers = list(self._numbers[start : start + most])
        return numbers, [self._text.line(number) for number in numbers]

    def write(self, translations: list[list[str]], done: int) -> None:
        """Adds the translations of the lines read; with them, so many are done."""
        self._output.add("".join(line + "\n" for found in translations for line in found), done)
        pace = (done - self._first) / (time.perf_counter() - self._started)
        self._shown.advance(done, {"lines/s": f"{pace:.1f}"})

    def complete(self) -> None:
        """The output appears."""
        self._output.complete()

    def close(self) -> None:
        """Closes what is open; what is done stays for the next time."""
        self._opened.close()


def draw_attention(model: TranslationModel, input_path: str, output_path: str, inference_list: str) -> list[str]:
    """Draws where the model looks while it translates the lines of a list, `<output_path><number>.png` for each.

    Arguments as for `translate_file`. For one rank.

    Returns:
        the pictures' paths: none by a model without attention, or without matplotlib; a blank line has none.

    Raises:
        InputError: the input or the list cannot be used, or a picture cannot be written.
    """
    paths = []
    for number, line in zip(*picked_lines(input_path, inference_list), strict=True):
        alignment = model.align(line, number)
        picture = heatmap(*alignment) if alignment else None
        if picture:
            paths.append(f"{output_path}{number}.png")
            with replace_atomically(paths[-1], "wb") as file:
                file.write(picture)
    return paths


def picked_lines(path: str, inference_list: str | None) -> tuple[list[int], list[str]]:
    """The numbers and the texts of the lines of a file that are on the list; of all its lines without a list.

    Raises:
        InputError: the file cannot be used, or the list names what is no line of it.
    """
    text = TextFile(path)
    numbers = list(picked_numbers(text, inference_list))
    return numbers, [text.line(number) for number in numbers]


def picked_numbers(text: TextFile, inference_list: str | None) -> Sequence[int]:
    """The same without the texts."""
    numbers = range(len(text)) if inference_list is None else parse_list(inference_list)
    for number in [] if inference_list is None else numbers:
        if number >= len(text):
            raise InputError(
                f"--inference_list: {text.path} has no line {number}; it has {len(text)}, numbered 0 to {len(text) - 1}"
            )
    return numbers


def parse_list(inference_list: str) -> list[int]:
    """The numbers of a list such as "3,0,17", in its order.

    Raises:
        InputError: something between the commas is no number of a line.
    """
    entries: Sequence[str] = [entry.strip(" ") for entry in inference_list.split(",")]
    for entry in entries:
        if not (entry.isascii() and entry.isdigit()):
            raise InputError(
                f"--inference_list={inference_list}: {entry!r} is no line number; give numbers from 0 with commas "
                "between them"
            )
    return [int(entry) for entry in entries]
