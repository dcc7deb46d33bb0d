"""Data shard: the examples that rank r of n reads, equally many on every rank."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import numpy as np

from tfdist.compat import datasets
from tfdist.core.checksum import checksum
from tfdist.core.log import announce

_INFINITE, _UNKNOWN = -1, -2  # tensorflow/core/framework/dataset.h
Remainder = Literal["drop", "pad"]
_LOOKED_AT_ROWS = 32
# Datasets that return all elements of their input, in any order (tensorflow/python/data/ops). They cut out no shard.
_KEEPING = {
    *("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_ShuffleDataset", "_RepeatDataset"),
    *("_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "CacheDataset", "_OptionsDataset"),
}
_TOLD_SHARE = 0.01  # of the elements: log that a file of five is left out, but not a row of thousands


def shard(data: Any, rank: int, size: int, remainder: Remainder = "drop") -> Any:
    """Return the shard of ``data`` of one rank: elements rank, rank + size, rank + 2 size, …

    Args:
      data: a ``tf.data.Dataset``, a sequence (list, tuple, str, NumPy array, tensor), which is sliced along its first
        axis, or a structure as for Keras's ``fit``. A structure is a dict, or a tuple or list of arrays, tensors,
        dicts or None. Each part of a structure is sharded, and has at least one axis.
      rank: rank of the shard, from 0.
      size: number of shards.
      remainder: ``drop`` leaves out the elements that do not fill a last round. ``pad`` fills the round with elements
        from the beginning. In both cases all shards have the same length.

    Returns:
      A shard of the same type as ``data``.

    Raises:
      ValueError: there are fewer elements than ranks, or ``remainder`` is unknown. Or a dataset of unknown length is to
        be padded, the parts have unequal lengths, or a tuple or list contains arrays and other things.
    """
    if not isinstance(remainder, str):
        raise ValueError(
            f"the second argument of shard is the remainder, 'drop' or 'pad', not a {type(remainder).__name__}. "
            "To share several arrays, call shard for each, or with a tuple: x, y = tfdist.shard((x, y))"
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
    rows = getattr(data, "iloc", data)  # pandas selects rows by position with iloc
    if remainder == "pad":
        return _padded(data, rows, length, size, rank)
    _tell_dropped(length, size)
    return rows[rank : length // size * size : size]


def _rows(data: Any) -> int:
    """Return the number of rows. SciPy's sparse matrices and ragged tensors have a shape but no ``len``."""
    shape = getattr(data, "shape", None)
    return int(shape[0]) if shape is not None and len(shape) and shape[0] is not None else len(data)


def _check_kind(data: Any) -> None:
    """Raise an error for data that cannot be sharded; the message names data that can be."""
    kind = type(data).__name__
    if hasattr(data, "dense_shape"):
        raise ValueError(
            f"a {kind} cannot be sliced: share tf.data.Dataset.from_tensor_slices(x), whose elements are its rows"
        )
    if hasattr(data, "on_epoch_end") or isinstance(data, Iterator):
        raise ValueError(
            f"a {kind} makes its elements by itself, on each rank. Share its inputs (files, rows or indices), for "
            "example tfdist.shard(files), or make a tf.data.Dataset of it and share the dataset"
        )
    if not hasattr(data, "__getitem__") and not hasattr(data, "cardinality"):
        raise ValueError(
            f"a {kind} cannot be sliced: give a list, an array, a tf.data.Dataset, or a dict or tuple of arrays"
        )


@functools.cache  # log once, because a script may shard each batch
def _tell_dropped(length: int, size: int) -> None:
    left = length % size
    if length == _UNKNOWN:
        announce(
            "tfdist.shard: the length of a dataset is not known. Elements at its end that are not enough for all ranks "
            "are left out. If you know the length, give it: dataset.apply(tf.data.experimental.assert_cardinality(n))"
        )
    elif left > _TOLD_SHARE * length:
        rest = f"the last {left} of {length} elements are" if left > 1 else f"the last of {length} elements is"
        announce(
            f"tfdist.shard: {rest} left out, so that all {size} ranks have as many. With remainder='pad' some elements "
            "are used twice instead"
        )


def digest(data: Any) -> int:
    """Return a number from 1 to 2^60 - 1 that is equal on ranks with the same data, also if a dataset shuffles them.

    It works for arrays and tensors, lists of numbers or names, structures of these, and datasets made of them. For
    other data, and for a shard of a dataset, it returns 0.
    """
    try:
        return _digest(data)
    except Exception:  # for example graph tensors, or data without rows
        return 0


def digest_of_all(parts: Iterable[Any]) -> int:
    """Return a number as ``digest`` does for several data that belong together, without those that are None."""
    found = [digest(part) for part in parts if part is not None]
    return checksum([np.array(found, np.int64)]) if all(found) else 0


def _digest(data: Any) -> int:
    while type(data).__name__ in _KEEPING:
        data = datasets.made_of(data)[0]
    tensors = datasets.in_memory(data)
    data = data if tensors is None else tensors
    if _is_structure(data):
        return digest_of_all(data.values() if isinstance(data, Mapping) else data)
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
            f"a {type(data).__name__} that contains arrays and {type(others[0]).__name__} cannot be shared. Make all "
            "of its elements arrays (np.asarray), or share each element separately"
        )
    return arrays > 0


def _is_part(x: Any) -> bool:
    """Return whether x is a dataset or an array with an axis. (A list of NumPy scalars is a sequence of numbers.)"""
    return len(getattr(x, "shape", None) or ()) > 0 or hasattr(x, "cardinality")


def _mapped(data: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to each part of a structure, and return a structure of the same type."""
    if isinstance(data, Mapping):
        return {name: function(part) for name, part in data.items()}
    parts = [None if part is None else function(part) for part in data]
    return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)


def lengths_of(data: Any, place: str = "data") -> dict[str, int]:
    """Return the lengths of a structure's parts, by their places, such as ``data['x']`` or ``data[0]``."""
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
            "the parts of the data to be shared have unequal lengths: "
            + ", ".join(f"{place} has {length}" for place, length in lengths.items())
        )


def _padded(data: Any, rows: Any, length: int, size: int, rank: int) -> Any:
    """Return this rank's elements, and one of the first elements again if the last round is incomplete."""
    own = rows[rank::size]
    if rank < length % size or not length % size:
        return own
    first = rows[rank - length % size : rank - length % size + 1]  # exists, because length >= size
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
    _tell_dropped(length, size)  # only whole rounds of `size` elements count
    rounds = dataset.window(size, drop_remainder=True)
    return rounds.flat_map(lambda *window: _element_of(window, dataset.element_spec, rank))


def _length(dataset: Any) -> int:
    """Return the number of elements, ``_INFINITE`` or ``_UNKNOWN``."""
    import tensorflow as tf

    length = dataset.cardinality()
    if tf.executing_eagerly():
        return int(length)
    try:
        with tf.compat.v1.Session(graph=length.graph) as session:
            return int(session.run(length))
    except tf.errors.OpError:
        return _UNKNOWN  # the length depends on a variable or placeholder that has no value yet


def _element_of(window: Any, structure: Any, rank: int) -> Any:
    """Return a dataset of this rank's element of a window, whose parts are datasets."""
    import tensorflow as tf

    parts = tf.nest.pack_sequence_as(structure, tf.nest.flatten(window))
    return tf.data.Dataset.zip(parts).skip(rank).take(1)
