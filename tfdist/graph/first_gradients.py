"""First gradients: ranks that compute the same ones are given the same data, and then gain nothing by each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.transport.interfaces import Channel

_PLACE = "the comparison of the first gradients"
SAME_DATA = (
    "all ranks {}, and so train on the same data, it seems, as one process would by itself: give each rank its own, by "
    "tfdist.shard(arrays) or tfdist.shard(dataset) before it is shuffled and batched"
)


class FirstGradients:
    """Tells once if all ranks have the same ones.

    Attributes:
      told: that all ranks have the same data has been said.
    """

    def __init__(self) -> None:
        self.told = False
        self._digest = 0  # none yet, but for zeros
        self._compared = False

    def bring(self, arrays: Sequence[np.ndarray]) -> None:
        """This rank's own gradients, of a step, before they are averaged."""
        if not self._digest and not self._compared and any(array.any() for array in arrays):
            self._digest = checksum(arrays)

    def compare(self, control: Channel) -> None:
        """Collective, the first time: all ranks, when they have averaged gradients."""
        if self._compared:
            return
        self._compared = True
        digests = control.arrive(_PLACE, self._digest)
        if len(digests) > 1 and len(set(digests)) == 1 and self._digest:
            self.tell("have computed the same gradients in their first step")

    def tell(self, what: str) -> None:
        """Say that all ranks have the same data, once.

        Args:
          what: they have done.
        """
        if not self.told:
            self.told = True
            announce(SAME_DATA.format(what))
