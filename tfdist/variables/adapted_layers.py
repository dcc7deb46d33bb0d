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
        own: dict[str, tuple[str, str, str]] = {}
        for layer in layers:
            kind = f"{type(layer).__name__} {numberless(layer.name)}"
            number = sum(other.startswith(f"{kind} ") for other in own)
            own[f"{kind} {number}"] = (layer.name, *_state(layer))
        number = int.from_bytes(hashlib.sha256(repr(sorted(own.items())).encode()).digest()[:6], "big") if own else 0
        if len(set(channel.arrive(_PLACE, number))) == 1:
            return
        ranks: list[dict[str, tuple[str, str, str]]] = channel.all_gather_object(own, _PLACE)
        for key in own.keys() & set.intersection(*(set(rank) for rank in ranks)):
            other = next((r for r, rank in enumerate(ranks) if rank[key][1] != ranks[0][key][1]), None)
            if other is not None:
                raise DisagreementError(
                    f"the layer {ranks[0][key][0]} ({key.split()[0]}) was adapted to other data on each rank: rank 0 "
                    f"has {ranks[0][key][2]}, and rank {other} {ranks[other][key][2]}. Adapt it to all of the data on "
                    "all ranks; or on rank 0, and hand its state on (tfdist.broadcast)"
                )


def _state(layer: Any) -> tuple[str, str]:
    """What stands for a layer's state, and the beginning of it in words."""
    parts: list[Any] = []
    vocabulary = getattr(layer, "get_vocabulary", None)
    if callable(vocabulary):
        parts.append(list(map(str, vocabulary())))
    for name in _STATE:
        value = getattr(layer, name, None)
        if value is not None and not callable(value):
            parts.append(np.asarray(value).ravel().tolist())
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    first = parts[0] if parts else []
    shown = ", ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in first[:6])
    return digest, f"[{shown}{', …' * (len(first) > 6)}]"
