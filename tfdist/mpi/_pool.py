"""Pool: reuses channels and groups, because communicators are few and no rank can free one alone."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tfdist.transport.interfaces import Channel

_GARBAGE = 32  # garbage is collected each time so many more are needed, because it may hold some of them
Thing = TypeVar("Thing")
Kind = TypeVar("Kind", bound=Hashable)


class Pool(Generic[Thing, Kind]):
    """Objects that some ranks have made together: channels of a group, or communicators of groups of these ranks.

    A rank gives an object back when it does not need it any more, for example when garbage is collected. Another rank
    may still use the object. So the ranks compare their free objects before they reuse one.

    Args:
      control: channel of these ranks.
      make: function (kind) -> a new object; collective.
      what: name of the objects for messages, for example ``"channel"``.
    """

    def __init__(self, control: Channel, make: Callable[[Kind], Thing], what: str) -> None:
        self._control = control
        self._make = make
        self._what = what
        self._made: dict[int, tuple[Thing, Kind]] = {}  # by number; the numbers are equal on all ranks
        self._count = 0
        self._returned: deque[Thing] = deque()  # from any thread, at any time
        self._free: set[int] = set()

    @property
    def things(self) -> list[Thing]:
        """All objects, with the free ones."""
        return [thing for thing, _ in self._made.values()]

    def take(self, place: str, kind: Kind) -> Thing:
        """Return a free or new object of a kind. Collective: these ranks, in the same order."""
        where = f"the opening of a {self._what} for {place}"
        number = self._free_on_all_ranks(where, kind)
        if number is None and self._made and len(self._made) % _GARBAGE == 0:
            gc.collect()
            number = self._free_on_all_ranks(where, kind)
        if number is None:
            number, self._count = self._count, self._count + 1
            self._made[number] = self._make(kind), kind
        self._free.discard(number)
        return self._made[number][0]

    def _free_on_all_ranks(self, where: str, kind: Kind) -> int | None:
        while self._returned:
            self._free.add(self._number(self._returned.popleft()))
        fitting = [n for n in sorted(self._free) if self._made[n][1] == kind]
        if not all(self._control.arrive(where, int(bool(fitting)))):
            return None
        ranks: list[list[int]] = self._control.all_gather_object(fitting, where)
        return min(set(fitting).intersection(*ranks), default=None)

    def _number(self, thing: Thing) -> int:
        return next(n for n, (made, _) in self._made.items() if made is thing)

    def give_back(self, thing: Thing) -> None:
        """Note that this rank does not need an object any more. Not collective."""
        self._returned.append(thing)

    def remove(self, thing: Thing) -> None:
        """Forget an object that no rank has any more."""
        del self._made[self._number(thing)]
