"""Negotiation: the ranks of a process set find each other's operations by name, in whatever order each begins them.

A thread of each rank meets those of the others as long as this rank has something under way: in each round it says what
is new here, and what all ranks have is carried out, in an order that follows from what was said. Ranks that begin the
same, as in all steps of most programs, see so by one number. Nothing is carried out before all have been seen to bring
the same: what does not fit is an error of that operation, on all ranks, and the next one works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfdist.core.log import announce
from tfdist.horovod.named.array_functions import carry_out
from tfdist.horovod.named.requests import Mismatch, Request, check
from tfdist.horovod.named.underway import DuplicateName, Outdated, Underway
from tfdist.transport import agreement
from tfdist.transport.interfaces import Channel, Group, PeerError

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1e-4, 0.02  # between rounds in which nothing is new
_NO_OTHER_SECONDS = 8.0  # threads that all wait for what they have begun themselves will not begin anything else
_GIVEN_UP = Request("given up", "given up")


class _Failed(NamedTuple):
    """What all ranks have begun, and cannot be carried out; this rank's, unless it has joined."""

    own: Underway | None
    error: Exception
    in_graph: bool


class Negotiation:
    """Of a process set. Collective: its ranks.

    Args:
      group: its ranks.
      words: what it is called.
      stall_seconds: after which ranks that wait for different operations say so.
      abort_seconds: after which they give up.
      count: is called when an operation is begun.

    Attributes:
      failures: of operations of graphs, as many on all ranks.
    """

    def __init__(
        self,
        group: Group,
        words: str,
        stall_seconds: float,
        abort_seconds: float,
        count: Callable[[], None] = lambda: None,
    ) -> None:
        self._group = group
        self._count = count
        self._words = words
        # Not by the thread: communicators are made in the same order on all ranks.
        self._channel = group.channel(f"Horovod operations of {words}")
        self._channel.background = True
        self.failures = 0
        self._stall_seconds, self._abort_seconds = stall_seconds, abort_seconds
        self._changed = threading.Condition()
        self._new: list[Underway] = []
        self._own: dict[str, Underway] = {}
        # Alike on all ranks between rounds: what some have begun, and who has joined, in that order.
        self._known: dict[str, dict[int, Request]] = {}
        self._joined: list[int] = []
        self._rounds = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(self, request: Request, arrays: Sequence[np.ndarray] = (), failures: int | None = None) -> Underway:
        """Begin an operation; all ranks must, sooner or later.

        Args:
          request: what it is.
          arrays: memory of its own, which nobody else changes.
          failures: how many there were when the run of its graph began; None: it is of no graph.

        Raises:
          Outdated: there have been more since, of operations of this run.
          DuplicateName: another of this name is under way here.
          RuntimeError: the process set was removed.
          PeerError: a rank is missing since an earlier one.
        """
        one = Underway(request, arrays)
        self._count()
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise RuntimeError(f"{request}: {self._words} is not in use any more")
            if failures is not None and failures != self.failures:
                raise Outdated(f"{request}: another operation of this run has failed")
            if request.name in self._own:
                raise DuplicateName(
                    f"{request}: another operation of this name is under way; give each of those that may be under "
                    "way at the same time a name of its own"
                )
            self._own[request.name] = one
            self._new.append(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"tfdist {self._words}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return one

    def close(self) -> None:
        """Nothing more is begun; not collective. What is under way ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._thread is None:
                self._channel.give_back()

    def _serve(self) -> None:
        channel = self._channel
        try:
            while self._wait_for_own():
                self._meet(channel)
        except BaseException as error:
            if isinstance(error, PeerError):
                channel.give_up(error)
            with self._changed:
                self._failure = error
                for one in self._own.values():
                    said = PeerError(f"{one.request}: {error}") if isinstance(error, PeerError) else error
                    one.complete([], said)
                self._own, self._new = {}, []
        else:
            channel.give_back()

    def _wait_for_own(self) -> bool:
        """Wait until this rank has something under way; False: there will be nothing."""
        with self._changed:
            while not self._own and not self._closed:
                self._changed.wait()
            return bool(self._own)

    def _meet(self, channel: Channel) -> None:
        """Rounds, until nothing of this rank's is under way."""
        pause, idle_since, told, gives_up = _SHORTEST_PAUSE, time.monotonic(), False, False
        while self._own:
            # One that has no more data has nothing to say, and all the time that the others take.
            channel.patient = self._only_join()
            news = self._round(channel, gives_up)
            gives_up = False
            if news:
                pause, idle_since = _SHORTEST_PAUSE, time.monotonic()
                continue
            # All ranks wait for something that another has not begun. (They see so in the same rounds.)
            waited = time.monotonic() - idle_since
            if waited > self._stall_seconds and not told:
                told = True
                if channel.rank == 0:
                    announce(f"for {waited:.0f} s {self._missing()}")
            at_once = not any(one.in_graph for of_ranks in self._known.values() for one in of_ranks.values())
            if waited > (min(_NO_OTHER_SECONDS, self._abort_seconds) if at_once else self._abort_seconds):
                gives_up = True
            with self._changed:
                if not self._new:
                    self._changed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _only_join(self) -> bool:
        with self._changed:
            return all(one.request.kind == "join" for one in self._own.values())

    def _round(self, channel: Channel, gives_up: bool) -> bool:
        """Tell the others what is new here, and carry out what all have; whether there was anything new.

        Collective: the group's ranks.

        Args:
          channel: of the group.
          gives_up: this rank has waited long enough for what others have not begun.
        """
        with self._changed:
            new, self._new = [*([_GIVEN_UP] if gives_up else []), *(one.request for one in self._new)], []
        self._rounds += 1
        place = f"round {self._rounds} of Horovod operations of {self._words}"
        said = channel.arrive(place, agreement.number([repr(request) for request in new]))
        everyone = [new] * channel.size
        if len(set(said)) > 1:
            channel.done()
            everyone = channel.all_gather_object(new, place)
        waiting = set(self._known)
        for rank, requests in enumerate(everyone):
            for asked in requests:
                if asked == _GIVEN_UP:
                    continue
                if asked.kind == "join":
                    self._joined.append(rank)
                else:
                    self._known.setdefault(asked.name, {})[rank] = asked
        failed: list[_Failed] = []
        for name in [name for name, of_ranks in self._known.items() if self._complete(of_ranks, channel.size)]:
            failed += self._end(channel, name)
        in_graph = [str(one.error) for one in failed if one.in_graph]
        if in_graph:
            self._end_runs(in_graph[0])  # before the run that it fails can end, and the next begin
        for one in failed:
            if one.own is not None:
                one.own.complete([], one.error)
        if any(_GIVEN_UP in requests for requests in everyone):
            self._fail_all(Mismatch(self._missing()), lambda one: one.name in waiting)
        self._end_joins(channel.size)
        channel.done()
        return any(everyone)

    def _complete(self, of_ranks: dict[int, Request], size: int) -> bool:
        return all(rank in of_ranks or rank in self._joined for rank in range(size))

    def _end(self, channel: Channel, name: str) -> list[_Failed]:
        """Carry out what all ranks have begun; what has failed instead."""
        of_ranks = dict(sorted(self._known.pop(name).items()))
        own = self._own.get(name) if channel.rank in of_ranks else None
        if own is not None:
            self._forget(own)
        try:
            absent = [rank for rank in self._joined if rank not in of_ranks]
            check(of_ranks, self._group.ranks, absent)
            one = next(iter(of_ranks.values())) if own is None else own.request
            results = carry_out(one, channel, None if own is None else own.arrays)
        except PeerError as error:
            if own is not None:
                own.complete([], error)
            raise
        except Exception as error:
            return [_Failed(own, error, any(one.in_graph for one in of_ranks.values()))]
        if own is not None:
            own.complete(results)
        return []

    def _end_runs(self, failed: str) -> None:
        """The graphs' runs in which something has failed end, on all ranks, and what they have begun with them: it must
        not meet what the next runs begin under the same names."""
        with self._changed:
            self.failures += 1
            # What is new here was begun before this rank knew.
            late = [one for one in self._new if one.request.in_graph]
            self._new = [one for one in self._new if not one.request.in_graph]
        error = Mismatch(f"given up, since another operation of the same run has failed: {failed}")
        for one in late:
            self._forget(one)
            one.complete([], error)
        self._fail_all(error, lambda one: one.in_graph)

    def _fail_all(self, error: Exception, which: Callable[[Request], bool]) -> None:
        """End what some ranks have begun, on those that have."""
        for name in [n for n, of_ranks in self._known.items() if any(which(one) for one in of_ranks.values())]:
            del self._known[name]
            own = self._own.get(name)
            if own is not None:
                self._forget(own)
                own.complete([], error)

    def _end_joins(self, size: int) -> None:
        if len(self._joined) == size:
            last = self._joined[-1]
            self._joined = []
            with self._changed:
                joins = [one for one in self._own.values() if one.request.kind == "join"]
            for own in joins:
                self._forget(own)
                own.complete([np.array(last, np.int32)])

    def _forget(self, own: Underway) -> None:
        with self._changed:
            del self._own[own.request.name]

    def _missing(self) -> str:
        """Who waits for what."""
        waiting = {
            name: [self._group.ranks[r] for r in range(self._group.size) if r not in of and r not in self._joined]
            for name, of in self._known.items()
        }
        said = "; ".join(
            f"{next(iter(self._known[name].values()))} has not been begun by rank {', '.join(map(str, ranks))}"
            for name, ranks in list(waiting.items())[:4]
            if ranks
        )
        return (
            f"the ranks of {self._words} wait for different operations: {said}. Each rank must begin all of them: look "
            "for a call that depends on the rank, or for names that differ"
        )
