"""The command line of every command: flags, as absl reads them, from a dataclass of options.

Each command keeps its own set of flags instead of absl's global one, so that importing two commands into one process
never makes their options collide.
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
    """Whether the help text is wanted, and nothing else."""
    return bool({"--help", "-h"} & set(arguments))


def parse(options: type, arguments: Sequence[str]) -> dict[str, Any]:
    """The options given on the command line, `--name=value` each, by name.

    Raises:
        InputError: an unknown flag (with the nearest name), a value of a wrong type or no UTF-8, a stray word, or a
            required option that is missing.
    """
    fields, types = options_of(options), types_of(options)
    for word in arguments:
        try:
            word.encode("utf-8")
        except UnicodeEncodeError:
            shown = word.encode("ascii", "backslashreplace").decode()
            raise InputError(
                f"{shown}: is no UTF-8, or Python reads names as ASCII here, and TensorFlow cannot open such files: "
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
    """The usage, and all flags with their defaults and allowed values, by group.

    A class is a group of its own if it has a `title`; the groups it is derived from come first.
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
