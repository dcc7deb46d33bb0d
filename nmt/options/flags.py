"""Command-line flags: absl parses them as a dataclass of options defines them.

Each command has its own `FlagValues` instead of absl's global object. So two commands can be imported into one process
without a conflict of flag names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from absl import flags

from nmt.core.errors import InputError
from nmt.options.option import options_of, types_of

_DEFINE: dict[type, Any] = {
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    bool: flags.DEFINE_boolean,
}


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Return True if the arguments ask for the help text."""
    return bool({"--help", "-h"} & set(arguments))


def parse(options: type, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options given on the command line as `--name=value`, by name.

    Raises:
        InputError: a flag is unknown (the message suggests the nearest name) or its value has a wrong type. Or an
            argument is no flag or not UTF-8, or a required option is missing.
    """
    fields, types = options_of(options), types_of(options)
    for word in arguments:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            shown = word.encode("ascii", "backslashreplace").decode()
            raise InputError(
                f"{shown}: is no UTF-8, or Python reads names as ASCII here. TensorFlow cannot open such files: "
                "set LC_ALL=C.UTF-8 or PYTHONUTF8=1, or choose another name"
            ) from None
    values = flags.FlagValues()
    for name, field in fields.items():
        _DEFINE[types[name]](name, field.default, field.metadata["help"], flag_values=values)
    try:
        words = values(["nmt", *arguments])[1:]
    except flags.Error as error:
        raise InputError(f"{error}; --help lists the flags") from None
    if words:
        raise InputError(f"Unexpected argument {words[0]!r}: options are written --name=value")
    given = {name: values[name].value for name in fields if values[name].present}
    missing = [f"--{name}" for name, field in fields.items() if field.metadata["required"] and not given.get(name)]
    if missing:
        raise InputError(f"Missing {', '.join(missing)}; --help lists the flags")
    return given


def help_text(usage: str, options: type) -> str:
    """Return the usage and the list of all flags with their allowed values, types and defaults, by group.

    Each class with a `title` is a group. Base classes come first.
    """
    fields, types = options_of(options), types_of(options)
    lines = [usage, ""]
    for group in reversed(options.__mro__):
        if "title" not in vars(group):
            continue
        lines += ["", f"{vars(group)['title']}:"]
        for name in (name for name in fields if name in vars(group)["__annotations__"]):
            details, default = fields[name].metadata, fields[name].default
            allowed = f" ({', '.join(repr(value) for value in details['allowed'])})" if details["allowed"] else ""
            shown = "unset" if default is None else repr(default)
            lines.append(f"  --{name}: {details['help']}{allowed} [{types[name].__name__}, {shown}]")
    return "\n".join(lines) + "\n"
