"""Data shard of a script: which examples rank r of n reads, the same number for every rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

_INFINITE, _UNKNOWN = -1, -2  # tensorflow/core/framework/dataset.h
Remainder = Literal["drop", "pad"]


def shard(data: Any, rank: int, size: int, remainder: Remainder = "drop") -> Any:
    """Rank ``rank``'s share of ``data``: elements rank, rank + size, rank + 2 size, …

    Args:
      data: a ``tf.data.Dataset``; a sequence that can be sliced (list, tuple, str, NumPy array, tensor: along the first
        axis); or a structure, as Keras's ``fit`` takes it, of which each part is shared so: a dict, or a tuple or list
        of arrays and tensors (some may be dicts of them, or None), of at least one axis each.
      rank: from 0.
      size: number of shares.
      remainder: what happens to the elements that do not fill a last round. ``drop`` leaves them out, ``pad`` fills
        the round with elements from the beginning; either way all shares are equally long.

    Returns:
      The same kind of thing as ``data``.

    Raises:
      ValueError: no element for each rank, an unknown ``remainder``, or a dataset of unknown length to be padded; parts
        of unequal lengths, or a tuple or list of arrays and other things.
    """
    if remainder not in ("drop", "pad"):
        raise ValueError(f"remainder={remainder!r}; it is 'drop' or 'pad'")
    if size == 1:
        return data
    if hasattr(data, "cardinality") and hasattr(data, "flat_map"):
        return _shard_dataset(data, rank, size, remainder)
    if _is_structure(data):
        _check_equal(lengths_of(data))
        return _mapped(data, lambda part: shard(part, rank, size, remainder))
    _check_enough(len(data), size)
    return _padded(data, size)[rank::size] if remainder == "pad" else data[: len(data) // size * size][rank::size]


def _is_structure(data: Any) -> bool:
    if isinstance(data, Mapping):
        return True
    if not isinstance(data, list | tuple):
        return False
    arrays = sum(map(_is_part, data))
    others = [x for x in data if x is not None and not isinstance(x, Mapping) and not _is_part(x)]
    if others and arrays:
        raise ValueError(
            f"a {type(data).__name__} of arrays and of {type(others[0]).__name__} is neither a sequence of examples "
            "nor a structure of arrays: make them all arrays (np.asarray), or share each by itself"
        )
    return arrays > 0


def _is_part(x: Any) -> bool:
    """An array of at least one axis (a list of NumPy's scalars is a sequence of numbers), or a dataset."""
    return len(getattr(x, "shape", None) or ()) > 0 or hasattr(x, "cardinality")


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    """A structure of the same kind."""
    if isinstance(data, Mapping):
        return {name: function(part) for name, part in data.items()}
    parts = [None if part is None else function(part) for part in data]
    return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)


def lengths_of(data: Any, place: str = "data") -> dict[str, int]:
    """The lengths of a structure's parts by their places in it, such as ``data['x']`` or ``data[0]``."""
    found: dict[str, int] = {}
    for key, part in data.items() if isinstance(data, Mapping) else enumerate(data):
        if hasattr(part, "cardinality"):
            raise ValueError(f"{place}[{key!r}] is a dataset: share tf.data.Dataset.zip(...) of all of them")
        if part is not None and _is_structure(part):
            found.update(lengths_of(part, f"{place}[{key!r}]"))
        elif part is not None:
            found[f"{place}[{key!r}]"] = len(part)
    return found


def _check_equal(lengths: Mapping[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "the parts of what is to be shared have unequal lengths: "
            + ", ".join(f"{place} has {length}" for place, length in lengths.items())
        )


def _padded(data: Any, size: int) -> Any:
    missing = -len(data) % size
    if not missing:
        return data
    if isinstance(data, list | tuple | str):
        return data + data[:missing]  # type: ignore[operator]
    import numpy as np

    return np.concatenate([data, data[:missing]])


def _check_enough(length: int, size: int) -> None:
    if length < size:
        raise ValueError(f"{length} elements cannot be shared by {size} ranks; start at most {length} ranks")


def _shard_dataset(dataset: Any, rank: int, size: int, remainder: Remainder) -> Any:
    length = _length(dataset)
    if length == _INFINITE:
        return dataset.shard(size, rank)
    if length >= 0:
        _check_enough(length, size)
        if remainder == "drop":
            return dataset.take(length // size * size).shard(size, rank)
        return dataset.concatenate(dataset.take(-length % size)).shard(size, rank)
    if remainder == "pad":
        raise ValueError(
            "a dataset of unknown length cannot be padded; give its length with "
            "dataset.apply(tf.data.experimental.assert_cardinality(n)), or use remainder='drop'"
        )
    # Only whole rounds of `size` elements: the end is not known before it comes.
    return dataset.window(size, drop_remainder=True).flat_map(lambda *window: _element_of(window, rank))


def _length(dataset: Any) -> int:
    """The number of elements, or one of the two marks."""
    import tensorflow as tf

    length = dataset.cardinality()
    if tf.executing_eagerly():
        return int(length)
    try:
        with tf.compat.v1.Session(graph=length.graph) as session:
            return int(session.run(length))
    except tf.errors.OpError:
        return _UNKNOWN  # it depends on something that has no value yet


def _element_of(window: Any, rank: int) -> Any:
    import tensorflow as tf

    nested = window[0] if len(window) == 1 else window
    return tf.data.Dataset.zip(nested).skip(rank).take(1) if not hasattr(nested, "skip") else nested.skip(rank).take(1)
