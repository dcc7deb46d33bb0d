"""Data shard of a script: which examples rank r of n reads, the same number for every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from tfdist.compat import datasets
from tfdist.core.checksum import checksum
from tfdist.core.log import announce

_INFINITE, _UNKNOWN = -1, -2  # tensorflow/core/framework/dataset.h
Remainder = Literal["drop", "pad"]
_LOOKED_AT_ROWS = 32
# What gives all of its input, in whatever order (tensorflow/python/data/ops): nobody's share is cut out by these.
_KEEPING = {
    *("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_ShuffleDataset", "_RepeatDataset"),
    *("_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "CacheDataset", "_OptionsDataset"),
}
_TOLD_SHARE = 0.01  # of the elements: a file of five, and not a row of thousands


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
    if not isinstance(remainder, str):
        raise ValueError(
            f"the second argument of shard is what becomes of a remainder, 'drop' or 'pad', and not "
            f"{type(remainder).__name__}: share several arrays one by one, or as a tuple: x, y = tfdist.shard((x, y))"
        )
    if remainder not in ("drop", "pad"):
        raise ValueError(f"remainder={remainder!r}; it is 'drop' or 'pad'")
    _check_kind(data)
    if size == 1:
        return data
    if hasattr(data, "cardinality") and hasattr(data, "flat_map"):
        return _shard_dataset(data, rank, size, remainder)
    if _is_structure(data):
        _check_equal(lengths_of(data))
        return _mapped(data, lambda part: shard(part, rank, size, remainder))
    length = _rows(data)
    _check_enough(length, size)
    rows = getattr(data, "iloc", data)  # of pandas, by position
    if remainder == "pad":
        return _padded(data, rows, length, size, rank)
    _tell_dropped(length, size)
    return rows[rank : length // size * size : size]


def _rows(data: Any) -> int:
    """How many there are; SciPy's sparse matrices and ragged tensors have no length."""
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) and shape[0] is not None else len(data)


def _check_kind(data: Any) -> None:
    """Raise if it cannot be shared, with what can be."""
    kind = type(data).__name__
    if hasattr(data, "dense_shape"):
        raise ValueError(
            f"a {kind} cannot be sliced: share tf.data.Dataset.from_tensor_slices(x), whose elements are its rows"
        )
    if hasattr(data, "on_epoch_end") or isinstance(data, Iterator):
        raise ValueError(
            f"a {kind} makes its elements by itself, on each rank: share what it reads (its files, rows or indices, "
            "tfdist.shard(files), say), or make a tf.data.Dataset of it, and share that"
        )
    if not hasattr(data, "__getitem__") and not hasattr(data, "cardinality"):
        raise ValueError(
            f"a {kind} cannot be sliced: give a list, an array, a tf.data.Dataset, or a dict or tuple of arrays"
        )


@functools.cache  # once: a script may share each batch
def _tell_dropped(length: int, size: int) -> None:
    left = length % size
    if left > _TOLD_SHARE * length:
        rest = f"the last {left} of {length} elements are" if left > 1 else f"the last of {length} elements is"
        announce(
            f"tfdist.shard: {rest} left out, so that all {size} ranks have as many: remainder='pad' gives some twice"
        )


def digest(data: Any) -> int:
    """A number from 1 to 2^60 - 1, the same on ranks that have the same data, in whatever order they take them.

    Of arrays and tensors, lists of numbers or names, structures of these, and datasets made of them, which Keras and
    TensorFlow may shuffle; 0 of others, and of a share that was cut out of a dataset.
    """
    try:
        return _digest(data)
    except Exception:  # of a graph, say, or no rows
        return 0


def _digest(data: Any) -> int:
    while type(data).__name__ in _KEEPING:
        data = datasets.made_of(data)[0]
    tensors = datasets.in_memory(data)
    data = data if tensors is None else tensors
    if _is_structure(data):
        parts = data.values() if isinstance(data, Mapping) else data
        found = [digest(part) for part in parts if part is not None]
        return checksum([np.array(found, np.int64)]) if all(found) else 0
    first = getattr(data, "iloc", data)[:_LOOKED_AT_ROWS]
    plain = hasattr(data, "dtype") or all(isinstance(x, str | bytes | int | float) for x in first)
    rows = np.asarray(first)
    return checksum([np.array(_rows(data)), rows]) if plain and not rows.dtype.hasobject else 0


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
            found[f"{place}[{key!r}]"] = _rows(part)
    return found


def _check_equal(lengths: Mapping[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        raise ValueError(
            "the parts of what is to be shared have unequal lengths: "
            + ", ".join(f"{place} has {length}" for place, length in lengths.items())
        )


def _padded(data: Any, rows: Any, length: int, size: int, rank: int) -> Any:
    """This rank's of as many elements as fill the last round, the first ones again."""
    own = rows[rank::size]
    if rank < length % size or not length % size:
        return own
    first = rows[rank - length % size : rank - length % size + 1]  # (there are enough: no rank is without)
    if isinstance(data, list | tuple | str):
        return own + first
    if hasattr(data, "iloc"):
        import pandas

        return pandas.concat([own, first])
    return np.concatenate([own, first])


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
            _tell_dropped(length, size)
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
