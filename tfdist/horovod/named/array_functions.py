"""Array functions: what a request does with a rank's arrays, once all ranks have agreed on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.engine import other_exchanges
from tfdist.horovod.named.adasum import adasum
from tfdist.horovod.named.requests import Request
from tfdist.transport.interfaces import Channel

_OPS: dict[str, Op] = {"Average": "sum", "Sum": "sum", "Min": "min", "Max": "max", "Product": "product"}


def carry_out(request: Request, channel: Channel, arrays: Sequence[np.ndarray] | None) -> list[np.ndarray]:
    """The results of one rank.

    Collective: the channel's ranks, which have arrived with equal requests.

    Args:
      request: this rank's, or another's if it has joined.
      channel: of the process set.
      arrays: its own memory, which may be written to; None: it has joined, and brings nothing.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # infinities are values, as TensorFlow has it
        if arrays is None:
            arrays = [np.zeros([s or 0 for s in shape], np.dtype(dtype)) for dtype, shape in request.tensors]
        if request.kind == "allreduce":
            return _all_reduce(request, channel, arrays)
        if request.kind == "reducescatter":
            return [_reduce_scatter(request, channel, array) for array in arrays]
        if request.kind == "allgather":
            return [other_exchanges.all_gather(channel, [array])[0] for array in arrays]
        if request.kind == "broadcast":
            return [other_exchanges.broadcast(request.root, channel, [array])[0] for array in arrays]
        if request.kind == "alltoall":
            return other_exchanges.all_to_all(channel, arrays)
        return []


def _all_reduce(request: Request, channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    before, after = request.scales
    arrays = [_scaled(array, before) for array in arrays]
    dtypes = [array.dtype for array in arrays]
    if request.op == "Average":  # a sum of narrow integers may not be one of them where the average is
        arrays = [a.astype(np.int64) if a.dtype.kind in "iu" else a for a in arrays]
    if request.op == "Adasum":
        results = adasum(channel, arrays)
    else:
        results = arrays
        for dtype in dict.fromkeys(a.dtype for a in arrays):  # all of a dtype at once
            chosen = [i for i, a in enumerate(arrays) if a.dtype == dtype]
            flat = np.concatenate([arrays[i].reshape(-1) for i in chosen])
            channel.all_reduce(flat, _OPS[request.op])
            parts = np.split(flat, np.cumsum([arrays[i].size for i in chosen])[:-1])
            for i, part in zip(chosen, parts, strict=True):
                results[i] = part.reshape(arrays[i].shape)
    averaged = [_averaged(r, request, channel.size) for r in results]
    return [_scaled(r.astype(dtype, copy=False), after) for r, dtype in zip(averaged, dtypes, strict=True)]


def _reduce_scatter(request: Request, channel: Channel, array: np.ndarray) -> np.ndarray:
    before, after = request.scales
    (own,) = other_exchanges.reduce_scatter(_OPS[request.op], channel, [_scaled(array, before)])
    return _scaled(_averaged(own, request, channel.size), after)


def _averaged(array: np.ndarray, request: Request, size: int) -> np.ndarray:
    """Divided, if it is to be; integers towards zero."""
    if request.op != "Average":
        return array
    if array.dtype.kind in "iu":
        return np.asarray(np.sign(array) * (np.abs(array) // size)).astype(array.dtype)
    reduce_ops.scale(array.reshape(-1), size)
    return array


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """In its dtype; integers rounded towards zero, narrow numbers multiplied in float32."""
    if factor == 1:
        return array
    wide = np.float32 if reduce_ops.is_narrow(array.dtype) else np.float64 if array.dtype.kind in "iub" else array.dtype
    return np.asarray(array.astype(wide) * np.dtype(wide).type(factor)).astype(array.dtype)
