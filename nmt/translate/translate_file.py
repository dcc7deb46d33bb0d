"""File translation: a text file into a file of translations, all its lines or those on a list, which are drawn, too."""

from __future__ import annotations

from collections.abc import Sequence

from nmt.core.errors import InputError
from nmt.core.files import check_writable, replace_atomically
from nmt.core.ranks import ONE_PROCESS, Ranks, from_root
from nmt.reporting.heatmap import heatmap
from nmt.text.lines import TextFile
from nmt.translate.translation_model import TranslationModel, translate_shared


def translate_file(
    model: TranslationModel,
    input_path: str,
    output_path: str,
    ranks: Ranks = ONE_PROCESS,
    inference_list: str | None = None,
) -> int:
    """Translates a text file line by line into another, which appears when it is complete.

    Rank 0 alone reads and writes; the translations of a line stand in consecutive lines.

    Collective: every rank calls, with equal weights in its model.

    Args:
        model: what translates.
        input_path: the source text.
        output_path: where the translations go.
        ranks: who translates; each does a share.
        inference_list: the numbers of the lines wanted, from 0, with commas between them; None for all. They are
            translated in the order of the list, each as it would be in the whole file.

    Returns:
        the number of source lines translated.

    Raises:
        AgreedError: on every rank: the input cannot be read or is not UTF-8, the list names what is no line of it, or
            the output cannot be written.
    """

    def read() -> tuple[list[int], list[str]]:
        check_writable(output_path)  # now, and not when all the work has been done
        return picked_lines(input_path, inference_list)

    def write() -> None:
        with replace_atomically(output_path) as output:
            output.writelines(line + "\n" for found in translations for line in found)

    numbers, lines = from_root(ranks, read)
    translations = translate_shared(model, lines, ranks, numbers)
    from_root(ranks, write)
    return len(lines)


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
    numbers = list(range(len(text))) if inference_list is None else parse_list(inference_list)
    for number in numbers:
        if number >= len(text):
            raise InputError(
                f"--inference_list: {path} has no line {number}; it has {len(text)}, numbered 0 to {len(text) - 1}"
            )
    return numbers, [text.line(number) for number in numbers]


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
