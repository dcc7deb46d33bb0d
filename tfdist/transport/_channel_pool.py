"""Channel pool: communicators are few and cannot be given back one by one, so that channels are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tfdist.transport.interfaces import Channel, NodeMemory

Make = Callable[[NodeMemory | None], Channel]


class ChannelPool:
    """The channels of one group.

    A rank gives back what it needs no more, when its garbage is collected, say. Another may not be done with it: the
    ranks compare what they have before they use one again.

    Args:
      control: of the group.
      make: a new channel that uses this of a node; collective.
    """

    def __init__(self, control: Channel, make: Make) -> None:
        self._control = control
        self._make = make
        self._made: list[tuple[Channel, NodeMemory | None]] = []  # in the same order on all ranks
        self._returned: deque[Channel] = deque()  # from any thread, at any time
        self._free: set[int] = set()

    @property
    def size(self) -> int:
        """How many there are, free ones included."""
        return len(self._made)

    def take(self, place: str, sharing: NodeMemory | None) -> Channel:
        """A free channel, or a new one. Collective: the group's ranks, in the same order."""
        while self._returned:
            channel = self._returned.popleft()
            self._free.add(next(n for n, (made, _) in enumerate(self._made) if made is channel))
        fitting = [n for n in sorted(self._free) if self._made[n][1] == sharing]
        where = f"the opening of a channel for {place}"
        if all(self._control.arrive(where, int(bool(fitting)))):
            ranks: list[list[int]] = self._control.all_gather_object(fitting, where)
            common = set(fitting).intersection(*ranks)
            if common:
                self._free.discard(min(common))
                return self._made[min(common)][0]
        self._made.append((self._make(sharing), sharing))
        return self._made[-1][0]

    def give_back(self, channel: Channel) -> None:
        """This rank needs it no more. Not collective."""
        self._returned.append(channel)
