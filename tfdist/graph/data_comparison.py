"""Data comparison: finds ranks that all train on the same data, and ranks that share different data.

Ranks with the same data learn nothing from each other. The comparison uses the data that ``fit`` is given, or the
gradients of a training's first step. Data that ``tfdist.shard`` divides among the ranks must be the same on all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.core.log import announce
from tfdist.transport.interfaces import Channel

_PLACE = "the comparison of first gradients, and of what was shared"
_SAME_DATA = (
    "all ranks {}, and so train on the same data, it seems. One process would learn as much. Give each rank its own "
    "data by tfdist.shard(arrays), or by tfdist.shard(dataset) before the dataset is shuffled and batched. For "
    "model.fit you can set TFDIST_AUTOSHARD=1"
)
_OTHER_DATA = (
    "tfdist.shard was given other data on each rank, so that some examples may come twice and others never. Use the "
    "same seed on all ranks where the data are made, ordered or split"
)
_FIRST = 2  # an eager exchange may serve a derivative, and the update that is made of its average
_MOST_SHARED = 16  # calls that are compared; a script may share each batch


class DataComparison:
    """Comparison of this rank's data with the others'. A problem is logged, not raised: the script may intend it."""

    def __init__(self) -> None:
        self._digests: dict[str, list[int]] = {}  # of what each exchange was brought first, by its name; not of zeros
        self._compared = False
        self._told: set[tuple[str, int]] = set()  # log lines, with the digests of the data that they are about
        self._known = False
        self._shared: list[int] = []

    def shared(self, digest: Callable[[], int]) -> None:
        """Note a call of ``tfdist.shard``. ``digest`` returns a number for the data, or 0; only first calls use it."""
        if len(self._shared) < _MOST_SHARED:
            self._shared.append(digest())

    def fit_begins(self, digest: int) -> None:
        """Log that all ranks give ``fit`` the same data. ``digest``: a number for these data; 0: they may differ."""
        self._known = bool(digest)
        if digest:
            self._tell(_SAME_DATA.format("feed model.fit the same data, in any order"), digest)

    def begin(self) -> None:
        """Forget the gradients of an earlier training, as a new training begins."""
        self._digests, self._compared, self._known = {}, self._known, False

    def bring(self, exchange: str, arrays: Sequence[np.ndarray]) -> None:
        """Compute digests of what this rank brings first to each exchange in a training, before it is averaged.

        One exchange may be brought averages of another one, which are the same on all ranks.
        """
        first = self._digests.setdefault(exchange, [])
        if not self._compared and len(first) < _FIRST and any(array.any() for array in arrays):
            first.append(checksum(arrays))

    def compare(self, control: Channel) -> None:
        """Compare the ranks once in a training, after gradients were averaged. Collective: all ranks."""
        if self._compared:
            return
        self._compared = True
        own = (self._shared, sum(itertools.chain.from_iterable(self._digests.values())))
        shared, digests = zip(*control.all_gather_object(own, _PLACE), strict=True)
        # Ranks that have called tfdist.shard more often than others are not compared.
        if len(set(map(len, shared))) == 1 and any(one != shared[0] for one in shared):
            self._tell(_OTHER_DATA)
        if len(digests) > 1 and len(set(digests)) == 1 and digests[0]:
            self._tell(_SAME_DATA.format("have computed the same gradients in their first step"))

    def _tell(self, line: str, digest: int = 0) -> None:
        if (line, digest) not in self._told:
            self._told.add((line, digest))
            announce(line)
