"""Arrival: the ranks meet before operations that combine their tensors elsewhere, on a device say.

What ranks tell each other with every step (who has no data, whose variables were set, who wants to stop) they tell
here, and here it is seen who is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.engine.engines import Bucket
from tfdist.engine.exchange import ExchangeContext


class Arrival:
    """See ``exchange.Exchange``. Its results: what this rank's tensors count in the sum, a float64; and a number that
    stands for this exchange on all ranks, an int32.

    Args:
      bucket: what is combined, and how: a sum or a mean.
      lines: of its tensors.
      by: what combines them, the same on all ranks.

    Attributes:
      by: likewise.
      size_bytes: what must be the same on all ranks, as the sizes of the tensors are not known otherwise.
    """

    tuned_tensors = addresses = 0

    def __init__(self, bucket: Bucket, lines: Sequence[str], by: str) -> None:
        self._bucket, self.by, self.size_bytes = bucket, by, bucket.size_bytes
        self.what = bucket.what
        self.lines: Sequence[str] = [*lines, f"{bucket.what}: {bucket.op} of {bucket.dtype.name} by {by}"]
        self._counts, self._key = np.float64(0), np.int32(0)

    def open(self, context: ExchangeContext) -> None:
        """All ranks have come to it."""
        self._key = np.int32(context.key)

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """There are none here."""

    def load_nothing(self) -> None:
        """Impossible: this rank would have to run the operations, too (``join.check`` says so before)."""
        raise RuntimeError(f"{self.what} is combined by {self.by}, which a rank without data does not run")

    def communicate(self, context: ExchangeContext) -> None:
        """Arrive."""
        with context.span("wait", self.what):
            context.arrive(self.what, self.size_bytes)
        divisor = len(context.present) if self._bucket.op == "mean" else 1
        self._counts = np.float64(1 / divisor if context.contributes else 0)

    def results(self) -> list[np.ndarray]:
        """What this rank counts, and the number."""
        return [np.array(self._counts), np.array(self._key)]
