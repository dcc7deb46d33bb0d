"""Adapted layers: compares Keras preprocessing layers that each rank has adapted, perhaps to its own share of data.

Their means, vocabularies and boundaries are constants of the training step and of the input. They are not variables
that could get rank 0's values. Ranks with different vocabularies would train one embedding for different words.
"""

from __future__ import annotations

import hashlib
import weakref
from typing import Any

import numpy as np

from tfdist.graph.markers import numberless
from tfdist.transport.errors import DisagreementError
from tfdist.transport.interfaces import Channel

_PLACE = "the comparison of layers that were adapted to data"
_STATE = ("mean", "variance", "bin_boundaries", "idf_weights")
_ROUNDING = 1e-5
State = list[str] | list[float]


class AdaptedLayers:
    """Adapted layers of this process, in the order in which they were adapted."""

    def __init__(self) -> None:
        self._new: list[weakref.ref[Any]] = []

    def adapted(self, layer: Any) -> None:
        """Note that a layer has been adapted."""
        self._new = [known for known in self._new if known() is not layer] + [weakref.ref(layer)]

    def compare(self, channel: Channel) -> None:
        """Check that all ranks have adapted a layer to the same data. Layers that a rank has not adapted are skipped.

        Collective: all ranks, when a training begins.

        Raises:
          DisagreementError: the states of a layer differ.
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
                    "all ranks. Or adapt it on rank 0, and send its state by tfdist.broadcast"
                )


def _state(layer: Any) -> list[State]:
    """Return a layer's state: its vocabulary, and its numbers."""
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
    """Return whether two states are the same except for rounding, which may differ between processors."""
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
