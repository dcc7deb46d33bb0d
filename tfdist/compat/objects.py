"""Objects: all subclasses of a class, and all objects of some classes that exist in this process."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any


def with_subclasses(cls: Any) -> Iterator[Any]:
    """Yield a class and all its subclasses."""
    yield cls
    for subclass in cls.__subclasses__():
        yield from with_subclasses(subclass)


def existing(*classes: Any) -> list[Any]:
    """Return all objects of classes and of their subclasses."""
    kinds = {kind for cls in classes for kind in with_subclasses(cls)}
    # Not isinstance: it takes long for so many objects, imports some lazy modules, and fails for dead proxies.
    return [one for one in gc.get_objects() if type(one) in kinds]
