"""Data comparison: ranks that train on the same data gain nothing by each other; and what they share must be the same.

That their data are the same shows by what ``fit`` is given, or by the gradients of a training's first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.transport.interfaces import Channel

_PLACE = "the comparison of first gradients, and of what was shared"
_SAME_DATA = (
    "all ranks {}, and so train on the same data, it seems, as one process would by itself: give each rank its own, by "
    "tfdist.shard(arrays) or tfdist.shard(dataset) before it is shuffled and batched; or, for model.fit, set "
    "TFDIST_AUTOSHARD=1"
)
_OTHER_DATA = (
    "tfdist.shard was given other data on each rank, so that some examples may come twice and others never: seed what "
    "makes, orders or splits the data, the same on all ranks"
)
_MOST_SHARED = 16  # a script may share each batch


class DataComparison:
    """Of this process with the others. What is wrong is told, and not refused: it may be meant so."""

    def __init__(self) -> None:
        self._digest = 0  # none yet, but for zeros
        self._compared = False
        self._told: set[int] = set()  # digests of data
        self._told_of_gradients = self._told_of_shared = self._known = False
        self._shared: list[int] = []

    def shared(self, digest: Callable[[], int]) -> None:
        """``tfdist.shard`` was called: ``digest``, of the first calls, gives a number for the data; 0: unknown."""
        if len(self._shared) < _MOST_SHARED:
            self._shared.append(digest())

    def fit_begins(self, digest: int) -> None:
        """``fit`` was called: a number that stands for data that are the same on all ranks; 0: they may not be."""
        self._known = bool(digest)
        if digest and digest not in self._told:
            self._told.add(digest)
            announce(_SAME_DATA.format("feed model.fit the same data, in whatever order"))

    def begin(self) -> None:
        """A training begins."""
        self._digest, self._compared, self._known = 0, self._known, False

    def bring(self, arrays: Sequence[np.ndarray]) -> None:
        """This rank's own gradients, of a step, before they are averaged."""
        if not self._digest and not self._compared and any(array.any() for array in arrays):
            self._digest = checksum(arrays)

    def compare(self, control: Channel) -> None:
        """Collective, the first time in a training: all ranks, when they have averaged gradients."""
        if self._compared:
            return
        self._compared = True
        own = (self._shared, self._digest)
        shared, digests = zip(*control.all_gather_object(own, _PLACE), strict=True)
        # What one rank alone has shared the others need not know.
        if not self._told_of_shared and len(set(map(len, shared))) == 1 and any(one != shared[0] for one in shared):
            self._told_of_shared = True
            announce(_OTHER_DATA)
        if len(digests) > 1 and len(set(digests)) == 1 and self._digest and not self._told_of_gradients:
            self._told_of_gradients = True
            announce(_SAME_DATA.format("have computed the same gradients in their first step"))
