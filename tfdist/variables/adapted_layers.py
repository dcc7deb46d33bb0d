"""Adapted layers: preprocessing layers of Keras whose state was made of data, each rank's share of it perhaps.

Their means, vocabularies and boundaries are constants of the training step and of the input: no variable that could be
given rank 0's value. Ranks that have adapted them to their own shares would train one embedding for different words.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import numpy as np

from tfdist.graph.markers import numberless
from tfdist.transport.interfaces import Channel, DisagreementError

_PLACE = "the comparison of layers that were adapted to data"
_STATE = ("mean", "variance", "bin_boundaries", "idf_weights")
_ROUNDING = 1e-5
State = list[str] | list[float]


class AdaptedLayers:
    """Those of this process, in the order in which they were adapted."""

    def __init__(self) -> None:
        self._new: list[weakref.ref[Any]] = []

    def adapted(self, layer: Any) -> None:
        """A layer has been adapted."""
        self._new = [known for known in self._new if known() is not layer] + [weakref.ref(layer)]

    def compare(self, channel: Channel) -> None:
        """All ranks have adapted theirs to the same data, or one rank alone has.

        Collective: all ranks, where something begins to train.

        Raises:
          DisagreementError: their states differ.
        """
        layers, self._new = [layer for known in self._new if (layer := known()) is not None], []
        own: dict[str, tuple[str, list[State]]] = {}
        for layer in layers:
            kind = f"{type(layer).__name__} {numberless(layer.name)}"
            number = sum(other.startswith(f"{kind} ") for other in own)
            own[f"{kind} {number}"] = layer.name, _state(layer)
        number = int.from_bytes(hashlib.sha256(repr(sorted(own.items())).encode()).digest()[:6], "big") if own else 0
        if len(set(channel.arrive(_PLACE, number))) == 1:
            return
        ranks: list[dict[str, tuple[str, list[State]]]] = channel.all_gather_object(own, _PLACE)
        for key in own.keys() & set.intersection(*(set(rank) for rank in ranks)):
            name, first = ranks[0][key]
            other = next((r for r, rank in enumerate(ranks) if not _alike(first, rank[key][1])), None)
            if other is not None:
                raise DisagreementError(
                    f"the layer {name} ({key.split()[0]}) was adapted to other data on each rank: rank 0 has "
                    f"{_shown(first)}, and rank {other} {_shown(ranks[other][key][1])}. Adapt it to all of the data on "
                    "all ranks; or on rank 0, and hand its state on (tfdist.broadcast)"
                )


def _state(layer: Any) -> list[State]:
    """Of a layer: its vocabulary, and its numbers."""
    parts: list[State] = []
    vocabulary = getattr(layer, "get_vocabulary", None)
    if callable(vocabulary):
        parts.append(list(map(str, vocabulary())))
    for name in _STATE:
        value = getattr(layer, name, None)
        if value is not None and not callable(value):
            parts.append(np.asarray(value, np.float64).ravel().tolist())
    return parts


def _alike(first: list[State], other: list[State]) -> bool:
    """The same but for rounding, which may differ between processors."""
    if [len(part) for part in first] != [len(part) for part in other]:
        return False
    return all(
        a == b or (isinstance(a[0], float) and np.allclose(a, b, rtol=_ROUNDING, atol=_ROUNDING * np.abs(a).max()))
        for a, b in zip(first, other, strict=True)
    )


def _shown(state: list[State]) -> str:
    first = state[0] if state else []
    shown = ", ".join(f"{x:.9g}" if isinstance(x, float) else x for x in first[:6])
    return f"[{shown}{', …' * (len(first) > 6)}]"
