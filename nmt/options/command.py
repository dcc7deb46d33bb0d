"""A command of the package: options, the user's errors, the exit code.

Options are absl's, but each command keeps its own set instead of absl's global one, so that importing two commands
into one process never makes their options collide.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from absl import flags

from nmt.core.errors import InputError


def run(
    command: Callable[[flags.FlagValues], None],
    options: flags.FlagValues,
    usage: str,
    argv: Sequence[str],
    required: Sequence[str] = (),
) -> int:
    """Parse `argv`, whose first item is the program's name, call `command` with the options, return the exit code.

    The code is 0, 1 if the command raised InputError, or 2 for wrong or missing options. Errors go to standard error
    as one message; `--help` prints `usage` and the options.
    """
    # absl's own check of required flags would refuse a lone --help.
    flags.DEFINE_bool("help", False, "Show this text.", flag_values=options)
    try:
        surplus = options(list(argv))[1:]
    except flags.Error as error:
        return _wrong_options(str(error))
    if options["help"].value:
        print(f"{usage.strip()}\n{options.get_help()}")
        return 0
    if surplus:
        return _wrong_options(f"Unexpected argument {surplus[0]!r}; options look like --name=value")
    missing = [f"--{name}" for name in required if options[name].value in (None, "")]
    if missing:
        return _wrong_options(f"Missing {', '.join(missing)}")
    try:
        command(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _wrong_options(message: str) -> int:
    print(f"{message} (--help lists the options)", file=sys.stderr)
    return 2
