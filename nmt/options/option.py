"""One option: a flag with its default, its help text and its check.

A group of options is a dataclass, and each field is an option. The command line, the help text, the file `hparams` and
the checks come from these fields. Other packages read `config.batch_size`.

    batch_size: int = option(128, "sentence pairs of a rank's batch", within=POSITIVE)

defines the flag --batch_size, and refuses 0.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from nmt.core.errors import InputError


class Condition(NamedTuple):
    """A condition on one value, or on all options together: `text` for messages, and the test `holds`."""

    text: str
    holds: Callable[[Any], bool]


POSITIVE = Condition("it must be more than 0, and finite", lambda value: 0 < value < float("inf"))
NOT_NEGATIVE = Condition("it must be 0 or more, and finite", lambda value: 0 <= value < float("inf"))
BELOW_ONE = Condition("it must be at least 0 and less than 1", lambda value: 0 <= value < 1)
BETWEEN_0_AND_1 = Condition("it must be more than 0 and less than 1", lambda value: 0 < value < 1)
SHARE = Condition("it must be from 0 to 1", lambda value: 0 <= value <= 1)
FINITE = Condition("it must be a finite number", lambda value: abs(value) < float("inf"))


def option(
    default: Any,
    text: str,
    *,
    allowed: Collection[str] = (),
    within: Condition | None = None,
    needs: Condition | None = None,
    families: Sequence[str] = (),
    required: bool = False,
    fixed: bool = False,
    saved: bool = True,
) -> Any:
    """Return a dataclass field that defines an option.

    Args:
        default: the default value; None for unset.
        text: the help text, with the unit.
        allowed: the allowed values; empty for any. They are read when a value is checked, so more may be added later.
        within: condition on the value; None for none.
        needs: condition on all options together, without which this option has no effect; None for none.
        families: families of models that the option is for; empty for all.
        required: True if a command refuses to start without the option.
        fixed: True if a continued run cannot change the option.
        saved: True if the option is saved in `hparams`.
    """
    details = {
        "help": text,
        "allowed": allowed,
        "within": within,
        "needs": needs,
        "families": families,
        "required": required,
        "fixed": fixed,
        "saved": saved,
    }
    return dataclasses.field(default=default, metadata=details)


def options_of(group: Any) -> dict[str, dataclasses.Field[Any]]:
    """Return the options (fields) of a dataclass, or of an instance of a dataclass, by name."""
    return {field.name: field for field in dataclasses.fields(group)}


@functools.cache
def types_of(group: type) -> dict[str, type]:
    """Return the type of each option's value by option name; int for `int | None`."""
    hints = typing.get_type_hints(group)
    return {name: (typing.get_args(hints[name]) or (hints[name],))[0] for name in options_of(group)}


def check_each(chosen: Any) -> None:
    """Check each option's value on its own.

    Raises:
        InputError: a value is not allowed.
    """
    for name, field in options_of(chosen).items():
        value, allowed, within = getattr(chosen, name), field.metadata["allowed"], field.metadata["within"]
        if value is None:
            continue
        if allowed and value not in allowed:
            raise InputError(
                f"--{name}={value} is not allowed: choose one of {', '.join(repr(one) for one in allowed)}"
            )
        if within and not within.holds(value):
            raise InputError(f"--{name}={value} is not allowed: {within.text}")
