"""Array functions: execution of a request on a rank's arrays, after all ranks have agreed on the request."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfdist.core import reduce_ops
from tfdist.core.reduce_ops import Op
from tfdist.engine import other_exchanges
from tfdist.horovod.named.adasum import adasum
from tfdist.horovod.named.requests import Request
from tfdist.transport.interfaces import Channel

_OPS: dict[str, Op] = {"Sum": "sum", "Min": "min", "Max": "max", "Product": "product"}


def carry_out(
    request: Request, channel: Channel, ranks: Sequence[int], arrays: Sequence[np.ndarray] | None
) -> list[np.ndarray]:
    """Execute a request, and return this rank's results.

    Collective: the channel's ranks, which have arrived with equal requests.

    Args:
      request: this rank's request; another rank's if this rank has joined.
      channel: channel of the process set.
      ranks: the process set's ranks in the job.
      arrays: this rank's arrays, which may be overwritten; None if this rank has joined and has no data.
    """
    if arrays is None:
        arrays = [np.zeros([s or 0 for s in shape], np.dtype(dtype)) for dtype, shape in request.tensors]
    if request.op == "Adasum":
        return adasum(channel, arrays)
    if request.op == "Average":  # a sum of narrow integers may overflow their dtype, although the average fits
        dtypes = [array.dtype for array in arrays]
        wide = [array.astype(np.int64) if array.dtype.kind in "iu" else array for array in arrays]
        sums = carry_out(dataclasses.replace(request, op="Sum"), channel, ranks, wide)
        return [_divided(s, channel.size).astype(d, copy=False) for s, d in zip(sums, dtypes, strict=True)]
    if request.kind == "allreduce":
        return _all_reduce(_OPS[request.op], channel, arrays)
    if request.kind == "reducescatter":
        return [other_exchanges.reduce_scatter(_OPS[request.op], channel, [array])[0] for array in arrays]
    if request.kind == "allgather":
        return [other_exchanges.all_gather(channel, [array])[0] for array in arrays]
    if request.kind == "broadcast":
        root = ranks.index(request.root)
        return [other_exchanges.broadcast(root, channel, [array])[0] for array in arrays]
    return other_exchanges.all_to_all(channel, arrays) if request.kind == "alltoall" else [np.array(0, np.int32)]


def _all_reduce(op: Op, channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Reduce arrays over the ranks, in one all-reduce for each dtype."""
    results = list(arrays)
    for dtype in dict.fromkeys(array.dtype for array in arrays):
        chosen = [i for i, array in enumerate(arrays) if array.dtype == dtype]
        flat = np.concatenate([arrays[i].reshape(-1) for i in chosen])
        channel.all_reduce(flat, op)
        parts = np.split(flat, np.cumsum([arrays[i].size for i in chosen])[:-1])
        for i, part in zip(chosen, parts, strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return results


def _divided(array: np.ndarray, size: int) -> np.ndarray:
    """Return an array divided by the number of ranks; integers are rounded towards zero."""
    if array.dtype.kind in "iu":
        return np.asarray(np.sign(array) * (np.abs(array) // size))
    reduce_ops.scale(array.reshape(-1), size)
    return array
