"""Arrival: the ranks meet before other operations combine their tensors, for example on a device.

Ranks exchange their flags of a step here: who has no data, whose variables were set, who wants to stop. Missing ranks
are detected here, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdist.engine.engines import Bucket
from tfdist.engine.exchange import ExchangeContext


class Arrival:
    """See ``exchange.Exchange``. The results are this rank's weight in the sum, a float64, and a key, an int32.

    The key identifies the exchange, and is the same on all ranks.

    Args:
      bucket: the tensors and the operation, a sum or a mean.
      lines: descriptions of the tensors, compared between the ranks.
      by: name of what combines the tensors, the same on all ranks.

    Attributes:
      by: as given.
      size_bytes: bytes of the tensors, which the ranks compare; set for each call if the shapes are unknown.
    """

    tuned_tensors = addresses = 0

    def __init__(self, bucket: Bucket, lines: Sequence[str], by: str) -> None:
        self._bucket, self.by, self.size_bytes = bucket, by, bucket.size_bytes
        self.what = bucket.what
        self.lines: Sequence[str] = [*lines, f"{bucket.what}: {bucket.op} of {bucket.dtype.name} by {by}"]
        self._counts, self._key = np.float64(0), np.int32(0)

    def open(self, context: ExchangeContext) -> None:
        """Take the key."""
        self._key = np.int32(context.key)

    def load(self, arrays: Sequence[np.ndarray]) -> None:
        """Do nothing: other operations get the tensors."""

    def load_nothing(self) -> None:
        """Raise RuntimeError: a rank without data cannot run the operations. (``join.check`` reports this before.)"""
        raise RuntimeError(f"{self.what} is combined by {self.by}, which a rank without data does not run")

    def communicate(self, context: ExchangeContext) -> None:
        """Wait for all ranks."""
        with context.span("wait", self.what):
            context.arrive(self.what, self.size_bytes)
        divisor = len(context.present) if self._bucket.op == "mean" else 1
        self._counts = np.float64(1 / divisor if context.contributes else 0)

    def results(self) -> list[np.ndarray]:
        """Return this rank's weight, and the key."""
        return [np.array(self._counts), np.array(self._key)]
