"""Adasum: a sum of gradients that averages their parallel parts and adds their orthogonal parts.

Maleki et al., "Scaling Distributed Training with Adaptive Summation" (arXiv:2006.02924), equation 1 and section 3.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from tfdist.core import reduce_ops
from tfdist.transport.interfaces import Channel


def adasum(channel: Channel, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Combine each array over the ranks, pair by pair, and return the results.

    Each rank has one part of the elements of all ranks, and computes its part of the scalar products. It sends as many
    bytes as an all-reduce, and three numbers for each pair of ranks.

    Collective: the channel's ranks, with the same shapes and dtypes.

    Args:
      channel: channel of ``2**k`` ranks.
      arrays: floating-point arrays; each one has its own scalar products.
    """
    return [_of_one(channel, array) for array in arrays]


def _of_one(channel: Channel, array: np.ndarray) -> np.ndarray:
    flat = array.reshape(-1)
    parts = reduce_ops.slices(flat.size, channel.size, flat.itemsize)
    sent = [np.ascontiguousarray(flat[part]).view(np.uint8) for part in parts]
    wide = np.float64 if array.dtype.itemsize == 8 else np.float32
    found = [np.frombuffer(p.tobytes(), array.dtype).astype(wide) for p in channel.all_to_all(sent)]
    while len(found) > 1:
        pairs = list(zip(found[::2], found[1::2], strict=True))
        products = np.array(
            [[np.multiply(a, b).sum(), np.square(a).sum(), np.square(b).sum()] for a, b in pairs], np.float64
        )
        channel.all_reduce(products.reshape(-1))
        found = [_pair(a, b, *numbers) for (a, b), numbers in zip(pairs, products, strict=True)]
    own = found[0].astype(array.dtype)
    gathered = channel.all_gather(own.view(np.uint8))
    whole = np.frombuffer(b"".join(p.tobytes() for p in gathered), array.dtype)
    return whole.reshape(array.shape)


def _pair(a: np.ndarray, b: np.ndarray, dot: float, square_a: float, square_b: float) -> np.ndarray:
    of_a = 1 - dot / (2 * square_a) if square_a else 1.0
    of_b = 1 - dot / (2 * square_b) if square_b else 1.0
    return cast("np.ndarray", a.dtype.type(of_a) * a + b.dtype.type(of_b) * b)
