"""What a rank holds: the variables that all ranks must have alike, wherever they are, and how they are read and set."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfdist.core.checksum import checksum
from tfdist.transport import agreement

TRAINED, READ = "trained", "read"  # kinds; and of an optimizer, by its class
DIGEST_BITS = 48


class Held(NamedTuple):
    """A variable.

    Attributes:
      name: of it, for messages: Keras's depend on what else a rank has built.
      kind: ``trained``; ``read`` by the loss; or ``of`` an optimizer of this class.
      variable: of TensorFlow.
      described: its dtype and shape.
    """

    name: str
    kind: str
    variable: Any
    described: str

    @property
    def line(self) -> str:
        """What all ranks must have alike."""
        return f"{self.kind} {self.described}"


class Holder(Protocol):
    """Where variables are: in a session, or outside of all.

    Attributes:
      complete: all that it was made for is still there.
      identity: of a training: of the same variables.
    """

    @property
    def identity(self) -> Hashable: ...  # noqa: D102

    @property
    def complete(self) -> bool: ...  # noqa: D102

    def held(self) -> list[Held]:
        """All of them that are there, in an order that is the same on all ranks."""

    def read(self, held: Sequence[Held]) -> Iterator[np.ndarray]:
        """Their values."""

    def load(self, held: Held, value: np.ndarray) -> None:
        """Set one."""

    def given(self, held: Held) -> bool:
        """Whether this rank's script has set one, which the loss reads, to something of its own between steps."""

    def keep_own(self, held: Held) -> None:
        """It is each rank's own from now on."""


def digest(holder: Holder) -> int:
    """A number from 1 to 2^48 - 1 that tells whether two ranks hold the same."""
    held = holder.held()
    lines = agreement.number([one.line for one in held])
    return (checksum(list(holder.read(held)), lines) & ((1 << DIGEST_BITS) - 1)) or 1
