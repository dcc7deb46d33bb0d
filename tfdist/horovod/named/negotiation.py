"""Negotiation: the ranks of a process set match their operations by name, in any order in which ranks begin them.

A thread of each rank exchanges rounds with the other ranks' threads while this rank has an operation under way. In each
round the ranks exchange their new requests. Operations that all ranks have begun are executed, in an order that follows
from the requests. Ranks with equal requests, as in all steps of most programs, see it by one number. The requests are
compared before execution: if they differ, the operation fails on all ranks, and the next operation works.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tfdist.core.log import announce
from tfdist.horovod.named.array_functions import carry_out
from tfdist.horovod.named.pending import DuplicateName, PendingOperation, RunFailed
from tfdist.horovod.named.requests import Mismatch, Request, check
from tfdist.transport import agreement
from tfdist.transport.errors import PeerError
from tfdist.transport.interfaces import Channel, Group

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1e-4, 0.02  # between rounds without new requests
_NO_OTHER_SECONDS = 8.0  # for eager operations: threads that wait for their own operations begin no other
_GIVEN_UP = Request("given up", "given up")


class _Failed(NamedTuple):
    """An operation that all ranks have begun, and that has failed. ``own`` is None if this rank has joined."""

    own: PendingOperation | None
    error: Exception
    in_graph: bool


class Negotiation:
    """Negotiation of one process set. Collective: the process set's ranks.

    Args:
      group: the group of its ranks.
      words: name of the process set for messages.
      stall_seconds: seconds after which rank 0 logs that the ranks wait for different operations.
      abort_seconds: seconds after which these operations fail.
      count: function to call when an operation begins.

    Attributes:
      failures: number of graph runs that have failed; the same on all ranks.
    """

    def __init__(
        self,
        group: Group,
        words: str,
        stall_seconds: float,
        abort_seconds: float,
        count: Callable[[], object] = lambda: None,
    ) -> None:
        self._group = group
        self._count = count
        self._words = words
        # Opened here and not by the thread, since all ranks must make communicators in the same order.
        self._channel = group.channel(f"Horovod operations of {words}")
        self._channel.background = True
        self.failures = 0
        self._stall_seconds, self._abort_seconds = stall_seconds, abort_seconds
        self._changed = threading.Condition()
        self._new: list[PendingOperation] = []
        self._own: dict[str, PendingOperation] = {}
        # The same on all ranks between rounds: requests that some ranks have begun, and joined ranks in order.
        self._known: dict[str, dict[int, Request]] = {}
        self._joined: list[int] = []
        self._rounds = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def begin(
        self, request: Request, arrays: Sequence[np.ndarray] = (), failures: int | None = None
    ) -> PendingOperation:
        """Begin an operation, which all ranks must begin at some time.

        Args:
          request: the request of the operation.
          arrays: arrays that no other code changes.
          failures: value of ``failures`` when the run of its graph began; None if it is in no graph.

        Raises:
          RunFailed: another operation of this run has failed.
          DuplicateName: another operation of this name is under way here.
          RuntimeError: the process set was removed.
          PeerError: a rank was missing in an earlier operation.
        """
        one = PendingOperation(request, arrays)
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise RuntimeError(f"{request}: {self._words} is not in use any more")
            if failures is not None and failures != self.failures:
                raise RunFailed(f"{request}: another operation of this run has failed")
            if request.name in self._own:
                raise DuplicateName(
                    f"{request}: another operation of this name is under way; give operations that overlap different "
                    "names"
                )
            self._count()
            self._own[request.name] = one
            self._new.append(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"tfdist {self._words}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return one

    def close(self) -> None:
        """Refuse new operations; those under way still end. Not collective."""
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
        """Wait until this rank has an operation under way; return False if the negotiation is closed without one."""
        with self._changed:
            while not self._own and not self._closed:
                self._changed.wait()
            return bool(self._own)

    def _meet(self, channel: Channel) -> None:
        """Exchange rounds until this rank has no operation under way."""
        pause, idle_since, told, gives_up = _SHORTEST_PAUSE, time.monotonic(), False, False
        while self._own:
            # A rank that has joined waits without a deadline, as long as the others train.
            channel.patient = self._only_join()
            news = self._round(channel, gives_up)
            gives_up = False
            if news:
                pause, idle_since = _SHORTEST_PAUSE, time.monotonic()
                continue
            # All ranks wait for operations that another rank has not begun. All ranks see this in the same rounds.
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
        """Exchange new requests, execute what all ranks have begun, and return whether any request was new.

        Collective: the group's ranks.

        Args:
          channel: channel of the group.
          gives_up: whether this rank's waiting time for operations that others have not begun is over.
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
            self._end_runs(in_graph[0])  # before the failed run can end and the next run begins
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
        """Execute an operation that all ranks have begun; return the failure, if any."""
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
        """End all operations of the graphs' runs, on all ranks, after one has failed.

        They must not be matched with operations that the next runs begin under the same names.
        """
        with self._changed:
            self.failures += 1
            # These operations began before this rank learned of the failure.
            late = [one for one in self._new if one.request.in_graph]
            self._new = [one for one in self._new if not one.request.in_graph]
        error = Mismatch(f"given up, since another operation of the same run has failed: {failed}")
        for one in late:
            self._forget(one)
            one.complete([], error)
        self._fail_all(error, lambda one: one.in_graph)

    def _fail_all(self, error: Exception, which: Callable[[Request], bool]) -> None:
        """Fail operations that only some ranks have begun, on those ranks."""
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

    def _forget(self, own: PendingOperation) -> None:
        with self._changed:
            del self._own[own.request.name]

    def _missing(self) -> str:
        """Return a message with the operations that wait, and the ranks that have not begun them."""
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
            f"the ranks of {self._words} wait for different operations: {said}. Each rank must begin all operations; "
            "look for a call that depends on the rank, or for names that differ"
        )
