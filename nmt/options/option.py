"""One option: a flag with its default and help, its check, and the setting that it makes.

A dataclass whose fields are options is a group: the command line, the help text, the file `hparams`, the checks and the
settings that other rooms take all come from these fields.

    batch_size: int = option(128, "sentences a step on each rank", within=POSITIVE, makes=[FeedSettings])

is the flag --batch_size, refuses 0, and becomes `FeedSettings.batch_size`.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from nmt.core.errors import InputError

Made = TypeVar("Made")

# What takes an option's value: a class or function with an argument of the option's name, or with one of another name.
Setting = Callable[..., Any] | tuple[Callable[..., Any], str]


class Condition(NamedTuple):
    """What a value, or all options together, must fulfil: in words, and as a test."""

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
    makes: Sequence[Setting] = (),
    required: bool = False,
    fixed: bool = False,
    saved: bool = True,
) -> Any:
    """A field that is an option.

    Args:
        default: None for unset.
        text: the help, with the unit.
        allowed: the only values; looked at when a value is checked, so that it may grow.
        within: what a value must fulfil.
        needs: what all options together must fulfil for this one to have an effect.
        makes: the settings that it becomes, see `make`.
        required: whether a command refuses to start without it.
        fixed: whether it stays as it is once a run has begun.
        saved: whether it is kept in `hparams`.
    """
    details = {
        "help": text,
        "allowed": allowed,
        "within": within,
        "needs": needs,
        "makes": [one if isinstance(one, tuple) else (one, "") for one in makes],
        "required": required,
        "fixed": fixed,
        "saved": saved,
    }
    return dataclasses.field(default=default, metadata=details)


def options_of(group: Any) -> dict[str, dataclasses.Field[Any]]:
    """The options of a dataclass, or of an instance of one, by name."""
    return {field.name: field for field in dataclasses.fields(group)}


@functools.cache
def types_of(group: type) -> dict[str, type]:
    """The type of each option's value; `int | None` counts as int."""
    hints = typing.get_type_hints(group)
    return {name: (typing.get_args(hints[name]) or (hints[name],))[0] for name in options_of(group)}


def check_each(chosen: Any) -> None:
    """Checks each option's value by itself.

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


def make(setting: Callable[..., Made], chosen: Any, **more: Any) -> Made:
    """The setting, made of all options that say so and of `more`, which comes first.

    An option that makes a class also makes those derived from it.
    """
    arguments = {}
    for name, field in options_of(chosen).items():
        for made, argument in field.metadata["makes"]:
            if setting is made or (isinstance(setting, type) and isinstance(made, type) and issubclass(setting, made)):
                arguments[argument or name] = getattr(chosen, name)
    return setting(**(arguments | more))
