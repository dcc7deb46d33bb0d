"""Suggestions: the name that a user probably meant by a misspelt setting or attribute of the package."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

_NEAR = 0.8  # difflib's ratio: loss_scaling is near loss_scale; nodes, a name of other programs, is not near node_size


def normalised(name: str) -> str:
    """Return a name without capitals, underscores and hyphens."""
    return name.replace("_", "").replace("-", "").casefold()


def meant(name: str, names: Iterable[str]) -> str:
    """Return which of ``names`` a name resembles, without regard to capitals and underscores; empty if none."""
    ours = {normalised(other).removeprefix("tfdist"): other for other in names}
    near = difflib.get_close_matches(normalised(name).removeprefix("tfdist"), ours, 1, _NEAR)
    return ours[near[0]] if near else ""


def no_attribute(name: str, names: Sequence[str]) -> str:
    """Return the error message for an attribute that the package does not have.

    Args:
      name: name of the missing attribute.
      names: names of the attributes that the package has.
    """
    near = meant(name, names)
    told = f"is {near} meant?" if near else "Horovod's names are in tfdist.horovod and tfdist.horovod.keras"
    return f"module 'tfdist' has no attribute {name!r}: {told}"
