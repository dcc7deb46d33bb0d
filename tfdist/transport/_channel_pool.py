"""Channel pool: communicators are few and cannot be given back one by one, so that channels are used again."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable

from tfdist.transport.interfaces import Channel, NodeMemory

_GARBAGE = 32  # each time that so many more are needed, what holds some may only wait to be collected
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
        number = self._free_on_all_ranks(place, sharing)
        if number is None and self._made and len(self._made) % _GARBAGE == 0:
            gc.collect()
            number = self._free_on_all_ranks(place, sharing)
        if number is None:
            self._made.append((self._make(sharing), sharing))
            number = len(self._made) - 1
        self._free.discard(number)
        return self._made[number][0]

    def _free_on_all_ranks(self, place: str, sharing: NodeMemory | None) -> int | None:
        while self._returned:
            channel = self._returned.popleft()
            self._free.add(next(n for n, (made, _) in enumerate(self._made) if made is channel))
        fitting = [n for n in sorted(self._free) if self._made[n][1] == sharing]
        where = f"the opening of a channel for {place}"
        if not all(self._control.arrive(where, int(bool(fitting)))):
            return None
        ranks: list[list[int]] = self._control.all_gather_object(fitting, where)
        return min(set(fitting).intersection(*ranks), default=None)

    def give_back(self, channel: Channel) -> None:
        """This rank needs it no more. Not collective."""
        self._returned.append(channel)
