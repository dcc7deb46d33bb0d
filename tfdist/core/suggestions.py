"""Suggestions: the name that a user probably meant by a misspelt setting or attribute of the package."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_NEAR = 0.8  # difflib's ratio: loss_scaling is near loss_scale; nodes, a name of other programs, is not near node_size
_HOROVOD = Path(__file__).parents[1] / "horovod"
_HOROVODS_NAMES = {
    "tfdist.horovod": (_HOROVOD / "__init__.py", _HOROVOD / "mpi_ops.py", _HOROVOD / "basics.py"),
    "tfdist.horovod.keras": (_HOROVOD / "keras" / "__init__.py",),
}


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
    told = f"module 'tfdist' has no attribute {name!r}"
    for module, files in _HOROVODS_NAMES.items():
        # Read as text, because the import takes seconds.
        if re.search(rf'^    "{re.escape(name)}",$', "\n".join(file.read_text() for file in files), re.MULTILINE):
            return f"{told}: {module} has it (import {module} as hvd)"
    near = meant(name, names)
    return f"{told}: is {near} meant?" if near else told
