"""Commands of the package and their exit codes: 0 for success, 1 for a user's mistake, 130 after Ctrl-C.

A user's mistake is reported in one message on standard error, without a traceback. Any other exception is a fault of
the program and keeps its traceback.
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
from nmt.core.ranks import ONE_PROCESS, CollectiveError, Ranks
from nmt.options.flags import asks_for_help, help_text, parse
from nmt.options.option import check_each, option

Options = TypeVar("Options")
INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True)
class TrainingText:
    """Options of the commands that read the training text."""

    title: ClassVar[str] = "options"

    train_prefix: str | None = option(
        None, "prefix of the training text's files: <train_prefix>.<src> and <train_prefix>.<tgt>", required=True
    )
    src: str | None = option(None, "suffix of the source files, such as en", required=True)
    tgt: str | None = option(None, "suffix of the target files, such as de", required=True)


def run(command: Callable[[Options], None], options: type[Options], usage: str, argv: Sequence[str]) -> int:
    """Run a command of one process with the options of its command line, and return the exit code.

    Args:
        command: function that takes the options, after the value of each has been checked.
        options: dataclass of options, see `nmt.options.option`.
        usage: the first lines of the --help text.
        argv: the program's name and its arguments.
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
    spell: Callable[[str], str] = str,
) -> int:
    """Call `work`, report a user's mistake, and return the exit code of this rank.

    Args:
        work: function that raises CollectiveError on all ranks for a user's mistake, InputError or OSError on one
            rank. A KeyboardInterrupt may have a text, which says what becomes of the work.
        ranks: the ranks that run `work` together.
        abort: function that ends all ranks with a message; None only for one rank.
        speaker: prefix of the messages.
        spell: function that makes a message for this program.
    """

    def tell(message: str) -> int:
        print(message, file=sys.stderr, flush=True)
        return 1

    for stream in (sys.stdout, sys.stderr):  # text is UTF-8, as in files, whatever PYTHONIOENCODING or the locale says
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no UTF-8
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        with interruption.is_raised():
            work()
    except KeyboardInterrupt as error:  # every rank has received the signal
        if ranks.rank == 0:
            tell(f"{speaker}interrupted{error}")
        return INTERRUPTED
    except CollectiveError as error:
        if error.is_mine:
            tell(spell(f"{speaker}{error}"))
        ranks.barrier()  # a launcher may kill the other ranks as soon as one rank exits with an error
        return 1
    except (InputError, OSError) as error:
        message = spell(str(error))
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            message = unwritable(error.filename or "standard output", error)
        # The error is on this rank alone. The other ranks wait for it in a collective and must be ended.
        if ranks.size > 1 and abort is not None:
            abort(f"{speaker}{message}")
        return tell(f"{speaker}{message}")
    return 0
