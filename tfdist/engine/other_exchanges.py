"""All-gather, broadcast, all-to-all …: functions of a channel and arrays, and an exchange that calls one of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.engine.engines import Context
from tfdist.transport.interfaces import Channel


def holds_objects(dtype: np.dtype) -> bool:
    """Whether a dtype is of strings or objects, whose sizes may differ between ranks."""
    return dtype.kind in "OSU"


def own_copy(value: Any) -> np.ndarray:
    """Copy a value into an array; also a scalar string, which TensorFlow returns as plain bytes."""
    return np.array(value, object if isinstance(value, bytes | str) else None, copy=True, order="C")


class CollectiveCall:
    """See ``exchange.Exchange``. Calls a function of a channel and arrays after all ranks have arrived.

    Args:
      what: description for messages.
      lines: descriptions of the tensors, compared between the ranks.
      function: (channel, arrays) -> arrays; collective.
      same_size: True if all ranks must bring the same number of bytes.
    """

    shares_memory = False

    def __init__(
        self,
        what: str,
        lines: Sequence[str],
        function: Callable[[Channel, Sequence[np.ndarray]], list[np.ndarray]],
        same_size: bool,
    ) -> None:
        self.what = what
        self.lines = lines
        self._function = function
        self._same_size = same_size

    def open(self, context: Context) -> None:
        """Do nothing."""

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Copy the arguments."""
        self._arrays = [own_copy(a) for a in arrays]

    def load_nothing(self) -> None:
        """Raise RuntimeError: nothing can replace the arguments."""
        raise RuntimeError(f"{self.what}: tfdist.join cannot stand in for this rank; give all ranks equal data")

    def communicate(self, context: Context) -> None:
        """Wait for all ranks, and call the function."""
        with context.span("wait", self.what):
            sized = self._same_size and not holds_objects(self._arrays[0].dtype)
            context.arrive(self.what, self._arrays[0].nbytes if sized else 0)
        with context.span("reduce", self.what):
            self._arrays = self._function(context.channel, self._arrays)

    def results(self) -> list[np.ndarray]:
        """Return the function's results."""
        return self._arrays


def _pickled(like: np.ndarray) -> bool:
    """Whether to pickle: for objects, and rows without elements, the bytes do not give the number of rows."""
    return holds_objects(like.dtype) or 0 in like.shape[1:]


def _bytes(array: np.ndarray) -> np.ndarray:
    if _pickled(array):
        return np.frombuffer(pickle.dumps(array), np.uint8)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _rows(parts: Sequence[np.ndarray], like: np.ndarray) -> list[np.ndarray]:
    if _pickled(like):
        return [pickle.loads(p.tobytes()) for p in parts]
    return [np.frombuffer(p.tobytes(), like.dtype).reshape(-1, *like.shape[1:]) for p in parts]


def all_reduce(op: Op, channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Combine one array over the ranks; a scalar stays a scalar. Collective: the channel's ranks."""
    (array,) = arrays
    flat = array.reshape(-1)
    channel.all_reduce(flat, op, channel.size if op == "mean" else 1)
    return [flat.reshape(array.shape) if array.shape else flat[0]]


def broadcast(root: int, channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the root's array on all ranks. Collective: the channel's ranks."""
    if holds_objects(arrays[0].dtype):
        own = _bytes(arrays[0]) if channel.rank == root else np.empty(0, np.uint8)
        return [pickle.loads(channel.all_gather(own)[root].tobytes())]
    channel.broadcast(arrays[0].reshape(-1), root)
    return list(arrays)


def all_gather(channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the rows of all ranks' arrays, one rank after the other. Collective: the channel's ranks."""
    (array,) = arrays
    return [np.concatenate(_rows(channel.all_gather(_bytes(array)), array))]


def reduce_scatter(op: Op, channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return this rank's part of the rows, combined over the ranks. Collective: the channel's ranks."""
    (array,) = arrays
    received = _rows(channel.all_to_all([_bytes(p) for p in np.array_split(array, channel.size)]), array)
    own = np.empty_like(received[0])
    divisor = channel.size if op == "mean" else 1
    reduce_ops.combine(op, [r.reshape(-1) for r in received], own.reshape(-1), divisor)
    return [own]


def all_to_all(channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Send (rows, number of rows for each rank) and return the same as received. Collective: the channel's ranks.

    Raises:
      ValueError: the numbers do not add up to the rows.
    """
    array, splits = arrays
    if splits.shape != (channel.size,) or splits.sum() != len(array) or (splits < 0).any():
        raise ValueError(
            f"splits={splits.tolist()} must be {channel.size} counts, one per rank, and add up to {len(array)} rows"
        )
    received = _rows(channel.all_to_all([_bytes(p) for p in np.split(array, np.cumsum(splits)[:-1])]), array)
    return [np.concatenate(received), np.array([len(r) for r in received], np.int64)]
