"""A program that runs on all ranks: its options, its messages, and its exit code."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from nmt.core.ranks import call_on_root
from nmt.options.command import exit_code
from nmt.options.config import FIELDS
from nmt.options.flags import asks_for_help, help_text, parse
from nmt.options.option import check_each, options_of
from nmt.runs.tfdist_ranks import Processes

Options = TypeVar("Options")


def start() -> Processes:
    """Set TensorFlow up for the programs of this package, and return the ranks. Collective: every rank calls."""
    tf.compat.v1.disable_control_flow_v2()  # loops of small cells take less processor time in version 1
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)  # else a log line for each restored checkpoint
    ranks = Processes()
    ranks.take_cores()
    return ranks


def spelled(message: str, options: Any) -> str:
    """Return a message that names options of `nmt.nmt` as a program with other options spells them.

    An option that the program has not is one of the run, which a training has saved. A remedy that sets it is left out.
    Flags in a command stay.

    Args:
        message: text with options as `--name`.
        options: dataclass of the program's options. Its `SPELT` has names that are others here, and None for a name
            with another meaning here.
    """
    names: dict[str, str | None] = {name: name for name in options_of(options)} | getattr(options, "SPELT", {})

    def of_run(flag: str | None) -> bool:
        return flag is not None and bool({flag, flag.removeprefix("no")} & FIELDS.keys()) and not names.get(flag)

    def flag(found: re.Match[str]) -> str:
        return (
            f"the run's {found[1]}"
            if of_run(found[1])
            else f"--{names.get(found[1], found[1])}"
            if found[1]
            else found[0]
        )

    def remedy(found: re.Match[str]) -> str:
        return "" if of_run(found[1]) else found[0]

    message = re.sub(r", or (?:give|set|leave|allow it with) [^,;.]*?(?<![\w/-])--(\w+)[^,;.]*", remedy, message)
    return re.sub(r"nmt\.\w+(?: --[\w=]+)+|(?<![\w/-])--(\w+)", flag, message)


def run_on_ranks(
    command: Callable[[Options, Processes], None],
    options: Callable[..., Options],
    usage: str | None,
    argv: Sequence[str],
    speaker: str,
) -> int:
    """Run a command with the options of rank 0's command line on this rank, and return its exit code.

    Collective: every rank calls.

    Args:
        command: function that takes the options, after the value of each has been checked, and the ranks.
        options: dataclass of options, see `nmt.options.option`.
        usage: the first lines of the --help text.
        argv: the program's name and its arguments.
        speaker: name of the program, for its messages.
    """
    ranks = start()
    kind: Any = options

    def chosen() -> Options | None:
        if asks_for_help(argv[1:]):
            print(help_text((usage or "").strip(), kind), end="")
            return None
        made = options(**parse(kind, argv[1:]))
        check_each(made)
        return made

    def work() -> None:
        made = call_on_root(ranks, chosen)
        if made is not None:
            command(made, ranks)

    return exit_code(work, ranks, ranks.abort, f"{speaker}: ", functools.partial(spelled, options=kind))
