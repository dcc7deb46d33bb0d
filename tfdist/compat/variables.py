"""Variables outside sessions: what identifies one, which is TensorFlow's, and those that exist."""

from __future__ import annotations

import gc
from collections.abc import Hashable
from typing import Any

from tensorflow.python.ops import resource_variable_ops

from tfdist.compat.graphs import is_symbolic


def handle_number(handle: Any) -> int:
    """The number of a handle that has a value: no other tensor of this process has it."""
    return int(handle._id)


def key_of_handle(handle: Any) -> Hashable:
    """What identifies the variable of a handle that has a value."""
    return "handle", handle_number(handle)


def key(variable: Any) -> Hashable:
    """What identifies a variable that exists, and does not stand in a graph."""
    return key_of_handle(variable.handle)


def name(variable: Any) -> str:
    """One that no other variable of this process has, as opposed to ``variable.name``
    (tensorflow/python/ops/resource_variable_ops.py)."""
    return str(variable._unique_id)


def has_name(variable: Any) -> bool:
    """Whether it is of the kind that has one: not a reference of TensorFlow 1."""
    return hasattr(variable, "_unique_id")


def native(variable: Any) -> Any:
    """A variable of Keras 3 (keras/src/backend/common/variables.py), which has a path, as TensorFlow's."""
    return variable.value if hasattr(variable, "path") else variable


def existing() -> list[Any]:
    """All that exist, in the order in which they were made."""
    kinds: set[type] = set()
    new = [resource_variable_ops.BaseResourceVariable]
    while new:
        kinds.update(new)
        new = [below for kind in new for below in kind.__subclasses__()]
    # Not isinstance, which takes long for so many, and some lazy modules are imported when asked for their class.
    found = [o for o in gc.get_objects() if type(o) in kinds]
    # Those of graphs are not of this process.
    found = [o for o in found if (handle := getattr(o, "_handle", None)) is not None and not is_symbolic(handle)]
    return sorted(found, key=lambda v: int(name(v).rpartition("_")[2]))
