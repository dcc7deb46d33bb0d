"""A command of the package, and the exit code of every command: 0, 1 for what a user can mend, 130 after Ctrl-C.

A mistake is told in one message on standard error, without a traceback; anything else is a fault of the program, and
keeps its traceback.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from nmt.core import interruption
from nmt.core.errors import InputError
from nmt.core.files import DISK_FULL, unwritable
from nmt.core.ranks import ONE_PROCESS, AgreedError, Ranks
from nmt.options.flags import asks_for_help, help_text, parse
from nmt.options.option import check_each, option

Options = TypeVar("Options")
INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True)
class TrainingText:
    """Options of commands that read the training text."""

    title: ClassVar[str] = "options"

    train_prefix: str | None = option(
        None, "Training text is <train_prefix>.<src> and <train_prefix>.<tgt>.", required=True
    )
    src: str | None = option(None, "Suffix of the source files.", required=True)
    tgt: str | None = option(None, "Suffix of the target files.", required=True)


def run(command: Callable[[Options], None], options: type[Options], usage: str, argv: Sequence[str]) -> int:
    """Does what a command line asks for, in one process, and returns the exit code.

    Args:
        command: is given the options, each checked by itself.
        options: a dataclass, see `nmt.options.option`.
        usage: what --help begins with.
        argv: the program's name, and its arguments.
    """

    def work() -> None:
        if asks_for_help(argv[1:]):
            print(help_text(usage.strip(), options), end="")
            return
        chosen = options(**parse(options, argv[1:]))
        check_each(chosen)
        command(chosen)

    return exit_code(work)


def exit_code(
    work: Callable[[], None],
    ranks: Ranks = ONE_PROCESS,
    abort: Callable[[str], Any] | None = None,
    speaker: str = "",
) -> int:
    """Does the work and returns the exit code of this rank.

    Args:
        work: raises AgreedError on all ranks for a mistake they agree on, InputError or OSError on one.
        ranks: who works together.
        abort: ends all ranks with a message; wanted if there are several.
        speaker: what messages begin with.
    """

    def tell(message: str) -> int:
        print(message, file=sys.stderr, flush=True)
        return 1

    for stream in (sys.stdout, sys.stderr):  # may be ASCII, by PYTHONIOENCODING say, and names not
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    interruption.is_raised()
    try:
        work()
    except KeyboardInterrupt:  # all ranks have got it
        if ranks.rank == 0:
            tell(f"{speaker}interrupted: nothing is lost that was saved before, and the same command goes on from it")
        return INTERRUPTED
    except AgreedError as error:
        if error.is_mine:
            tell(f"{speaker}{error}")
        ranks.barrier()  # a launcher may kill the others as soon as one exits with an error
        return 1
    except (InputError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            message = unwritable(error.filename or "standard output or a file of --out_dir", error)
        # On this rank alone, as it writes: the others wait, and must be ended.
        if ranks.size > 1 and abort is not None:
            abort(f"{speaker}{message}")
        return tell(f"{speaker}{message}")
    return 0
