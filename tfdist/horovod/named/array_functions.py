"""Array functions: execution of a request on a rank's arrays, after all ranks have agreed on the request."""

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
    """Execute a request, and return this rank's results.

    Collective: the channel's ranks, which have arrived with equal requests.

    Args:
      request: this rank's request; another rank's if this rank has joined.
      channel: channel of the process set.
      arrays: this rank's arrays, which may be overwritten; None if this rank has joined and has no data.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # like TensorFlow: infinities are values, not errors
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
    if request.op == "Average":  # a sum of narrow integers may overflow their dtype, although the average fits
        arrays = [a.astype(np.int64) if a.dtype.kind in "iu" else a for a in arrays]
    if request.op == "Adasum":
        results = adasum(channel, arrays)
    else:
        results = arrays
        for dtype in dict.fromkeys(a.dtype for a in arrays):  # one all-reduce for each dtype
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
    """Return the sum divided by the number of ranks if the op is Average; integers are rounded towards zero."""
    if request.op != "Average":
        return array
    if array.dtype.kind in "iu":
        return np.asarray(np.sign(array) * (np.abs(array) // size)).astype(array.dtype)
    reduce_ops.scale(array.reshape(-1), size)
    return array


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Return the scaled array in its dtype. Integers are rounded towards zero; float16 is multiplied in float32."""
    if factor == 1:
        return array
    wide = np.float32 if reduce_ops.is_narrow(array.dtype) else np.float64 if array.dtype.kind in "iub" else array.dtype
    return np.asarray(array.astype(wide) * np.dtype(wide).type(factor)).astype(array.dtype)
