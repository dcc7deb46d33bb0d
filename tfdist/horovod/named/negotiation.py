"""Negotiation: the ranks of a process set match their operations by name, in any order in which ranks begin them.

A thread of each rank exchanges rounds with the other ranks' threads while this rank has an operation under way. In each
round the ranks exchange their new requests. Operations that all ranks have begun are executed, in an order that follows
from the requests. Ranks with equal requests, as in all steps of most programs, see it by one number. The requests are
compared before execution: if they differ, the operation fails on all ranks, and the next operation works.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.core.log import announce
from tfdist.horovod.named.array_functions import carry_out
from tfdist.horovod.named.requests import Request, check
from tfdist.transport import agreement
from tfdist.transport.errors import PeerError
from tfdist.transport.interfaces import Group
from tfdist.transport.saves import Position

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1e-4, 0.02  # between rounds without new requests
_NO_OTHER_SECONDS = 8.0  # for eager operations: threads that wait for their own operations begin no other
_GIVEN_UP = Request("given up", "given up")

Results = Future[list[np.ndarray]]


class _Pending(NamedTuple):
    """An operation that this rank has begun, with arrays that no other code changes."""

    request: Request
    arrays: Sequence[np.ndarray]
    results: Results


def _failed(message: str) -> Exception:
    return tf.errors.FailedPreconditionError(None, None, message)  # type: ignore[no-any-return]


class Negotiation:
    """Negotiation of one process set. Collective: the process set's ranks.

    Args:
      group: the group of its ranks.
      words: name of the process set for messages.
      stall_seconds: seconds after which rank 0 logs that the ranks wait for different operations.
      abort_seconds: seconds after which these operations fail.
      position: the rank's position in the program, where operations are counted; None for a part of the ranks.

    Attributes:
      group: the group of its ranks.
    """

    def __init__(
        self,
        group: Group,
        words: str,
        stall_seconds: float,
        abort_seconds: float,
        position: Position | None = None,
    ) -> None:
        self.group = group
        self._position = position
        self._words = words
        # Opened here and not by the thread, since all ranks must make communicators in the same order.
        self._channel = group.channel(f"Horovod operations of {words}")
        self._channel.background = True
        self._calls: Counter[str] = Counter()
        self._failures = self._before_run = 0  # failed runs of graphs, the same on all ranks; those before the last run
        self._stall_seconds, self._abort_seconds = stall_seconds, abort_seconds
        self._changed = threading.Condition()
        self._new: list[Request] = []
        self._own: dict[str, _Pending] = {}
        # The same on all ranks between rounds: requests that some ranks have begun, and joined ranks in order.
        self._known: dict[str, dict[int, Request]] = {}
        self._joined: list[int] = []
        self._rounds = 0
        self._closed = False
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def next_name(self, kind: str) -> str:
        """Return a name for an eager operation without one: the n-th operation of each rank has the same name."""
        with self._changed:
            self._calls[kind] += 1
            return f"{kind}.noname.{self._calls[kind]}"

    def count_anew(self) -> None:
        """Restart the counts of operations, when all ranks are at one place after different numbers of operations."""
        with self._changed:
            self._calls.clear()
        if self._position is not None:
            self._position.count_anew()

    def run_begins(self) -> None:
        """Note that a graph is about to run: an operation that fails from now on ends this run."""
        with self._changed:
            failed, self._before_run = self._before_run != self._failures, self._failures
        if failed and self._position is not None:  # the ranks have begun different numbers of operations
            self._position.count_anew()

    def begin(self, request: Request, arrays: Sequence[np.ndarray] = ()) -> Results:
        """Begin an operation, which all ranks must begin at some time, and return its results to come.

        Args:
          request: the request of the operation.
          arrays: arrays that no other code changes.

        Raises:
          tf.errors.FailedPreconditionError: another operation of this run has failed.
          tf.errors.InvalidArgumentError: another operation of this name is under way here.
          RuntimeError: the process set was removed.
          PeerError: a rank was missing in an earlier operation.
        """
        one = _Pending(request, arrays, Future())
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise RuntimeError(f"{request}: {self._words} is not in use any more")
            if request.in_graph and self._before_run != self._failures:
                raise _failed(f"{request}: another operation of this run has failed")
            if request.name in self._own:
                said = f"{request}: another operation of this name is under way; use different names for the two"
                raise tf.errors.InvalidArgumentError(None, None, said)
            if self._position is not None:
                self._position.count()
            self._own[request.name] = one
            self._new.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"tfdist {self._words}", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return one.results

    def close(self) -> None:
        """Refuse new operations; those under way still end. Not collective."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._thread is None:
                self._channel.give_back()

    def _serve(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._own or self._closed)
                    if not self._own:
                        break
                with np.errstate(over="ignore", invalid="ignore"):  # infinities are values, as in TensorFlow
                    self._meet()
        except BaseException as error:
            if isinstance(error, PeerError):
                self._channel.give_up(error)
            with self._changed:
                self._failure = error
                ended, self._own, self._new = list(self._own.values()), {}, []
            for one in ended:
                missing = isinstance(error, PeerError)
                one.results.set_exception(PeerError(f"{one.request}: {error}") if missing else error)
        else:
            self._channel.give_back()

    def _meet(self) -> None:
        """Exchange rounds until this rank has no operation under way."""
        pause, idle_since, told, gives_up = _SHORTEST_PAUSE, time.monotonic(), False, False
        while self._own:
            with self._changed:
                # A rank that has joined waits without a deadline, as long as the others train.
                self._channel.patient = all(one.request.kind == "join" for one in self._own.values())
            if self._round(gives_up):
                pause, idle_since, gives_up = _SHORTEST_PAUSE, time.monotonic(), False
                continue
            # All ranks wait for operations that another rank has not begun. All ranks see this in the same rounds.
            waited = time.monotonic() - idle_since
            if waited > self._stall_seconds and not told:
                told = True
                if self._channel.rank == 0:
                    announce(f"for {waited:.0f} s {self._missing()}")
            at_once = not any(one.in_graph for of_ranks in self._known.values() for one in of_ranks.values())
            gives_up = waited > (min(_NO_OTHER_SECONDS, self._abort_seconds) if at_once else self._abort_seconds)
            with self._changed:
                if not self._new:
                    self._changed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _round(self, gives_up: bool) -> bool:
        """Exchange new requests, execute what all ranks have begun, and return whether any request was new.

        Collective: the group's ranks.

        Args:
          gives_up: whether this rank's waiting time for operations that others have not begun is over.
        """
        with self._changed:
            new, self._new = [*([_GIVEN_UP] if gives_up else []), *self._new], []
        self._rounds += 1
        place = f"round {self._rounds} of Horovod operations of {self._words}"
        channel = self._channel
        said = channel.arrive(place, agreement.number([repr(request) for request in new]))
        everyone = [new] * channel.size
        if len(set(said)) > 1:
            channel.done()
            everyone = channel.all_gather_object(new, place)
        waiting = set(self._known)
        for rank, requests in enumerate(everyone):
            for asked in requests:
                if asked.kind == "join":
                    self._joined.append(rank)
                elif asked != _GIVEN_UP:
                    self._known.setdefault(asked.name, {})[rank] = asked
        self._execute()
        if any(_GIVEN_UP in requests for requests in everyone):
            waiting &= self._known.keys()  # without those that were executed now, and whose names are free again
            self._fail(_failed(self._missing()), lambda one: one.name in waiting)
        if len(self._joined) == channel.size:
            last, self._joined = self._joined[-1], []
            for one in [one for one in self._own.values() if one.request.kind == "join"]:
                self._forget(one).set_result([np.array(last, np.int32)])
        channel.done()
        return any(everyone)

    def _execute(self) -> None:
        """Execute the operations that all ranks have begun. If one of a graph fails, its run fails on all ranks."""
        failed: list[tuple[Results, Exception]] = []
        ends_runs: Exception | None = None
        size, ranks = self._channel.size, self.group.ranks
        for name in [n for n, of in self._known.items() if all(r in of or r in self._joined for r in range(size))]:
            of_ranks = dict(sorted(self._known.pop(name).items()))
            own = self._own.get(name) if self._channel.rank in of_ranks else None
            try:
                check(of_ranks, ranks, [rank for rank in self._joined if rank not in of_ranks])
                arrays, asked = (None, next(iter(of_ranks.values()))) if own is None else (own.arrays, own.request)
                results = carry_out(asked, self._channel, ranks, arrays)
            except Exception as error:
                if isinstance(error, PeerError):
                    raise
                if own is not None:
                    failed.append((self._forget(own), error))
                if any(one.in_graph for one in of_ranks.values()):
                    ends_runs = ends_runs or error
            else:
                if own is not None:
                    self._forget(own).set_result(results)
        if ends_runs is not None:  # before the failed run can end and the next run begins
            # Its other operations must not be matched with those that the next run begins under the same names.
            said = f"given up, since another operation of the same run has failed: {ends_runs}"
            self._fail(_failed(said), lambda one: one.in_graph, failures=1)
        for to_come, failure in failed:
            to_come.set_exception(failure)

    def _fail(self, error: Exception, which: Callable[[Request], bool], failures: int = 0) -> None:
        """Fail operations that only some ranks have begun, on those ranks; also those that this rank will tell next."""
        names = {name for name, of_ranks in self._known.items() if any(map(which, of_ranks.values()))}
        with self._changed:
            self._failures += failures
            names |= {one.name for one in self._new if which(one)}
            self._new = [one for one in self._new if one.name not in names]
            ended = [self._own.pop(name) for name in names if name in self._own]
        for name in names:
            self._known.pop(name, None)
        for one in ended:
            one.results.set_exception(error)

    def _forget(self, own: _Pending) -> Results:
        with self._changed:
            del self._own[own.request.name]
        return own.results

    def _missing(self) -> str:
        """Return a message with the operations that wait, and the ranks that have not begun them."""
        waiting = {
            name: [self.group.ranks[r] for r in range(self.group.size) if r not in of and r not in self._joined]
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
