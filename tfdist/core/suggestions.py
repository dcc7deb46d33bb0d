"""Near names: which one is meant by a name that is none, a setting's or one of the package's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

_NEAR = 0.8  # difflib's ratio: loss_scaling is to loss_scale; nodes, of other programs, is less to node_size
_HOROVOD = Path(__file__).parents[1] / "horovod"
_HOROVODS_NAMES = {
    "tfdist.horovod": (_HOROVOD / "__init__.py", _HOROVOD / "mpi_ops.py", _HOROVOD / "basics.py"),
    "tfdist.horovod.keras": (_HOROVOD / "keras" / "__init__.py",),
}


def normalised(name: str) -> str:
    """Of a name, without capitals, underscores and hyphens."""
    return name.replace("_", "").replace("-", "").casefold()


def meant(name: str, names: Iterable[str]) -> str:
    """Which of these names one is nearly, or but for capitals and underscores; empty if it is like none."""
    ours = {normalised(other).removeprefix("tfdist"): other for other in names}
    near = difflib.get_close_matches(normalised(name).removeprefix("tfdist"), ours, 1, _NEAR)
    return ours[near[0]] if near else ""


def no_attribute(name: str, names: Sequence[str]) -> str:
    """What to say of an attribute that the package has not.

    Args:
      name: of the attribute.
      names: that it has.
    """
    told = f"module 'tfdist' has no attribute {name!r}"
    for module, files in _HOROVODS_NAMES.items():
        # (Read as text: to import it takes seconds.)
        if re.search(rf'^    "{re.escape(name)}",$', "\n".join(file.read_text() for file in files), re.MULTILINE):
            return f"{told}: {module} has it (import {module} as hvd)"
    near = meant(name, names)
    return f"{told}: is {near} meant?" if near else told
