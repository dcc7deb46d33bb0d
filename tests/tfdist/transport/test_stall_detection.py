"""Waiting: deadlines, and reports of the missing ranks."""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref

import pytest

from tfdist.core.settings import Settings
from tfdist.processes.process_state import GONE, RUNS, STOPPED
from tfdist.transport import _long_wait, stall_detection
from tfdist.transport.awake import RunningSeconds
from tfdist.transport.callers import Callers
from tfdist.transport.errors import PeerError
from tfdist.transport.stall_detection import StallDetector
from tfdist.transport.state_line import Held, RankState, digest


class Pretended:
    """The states of other ranks, which the test sets."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.told: list[tuple[str, str]] = []
        self.held: list[Held | None] = []
        self.others = {other: RankState() for other in range(size) if other != rank}

    def tell(self, kind: str, what: str) -> None:
        self.told.append((kind, what))

    def tell_held(self, held: Held | None) -> None:
        self.held.append(held)

    def tell_saves(self, saves: bytes) -> None:
        pass

    def tell_position(self, position: int) -> None:
        pass

    def read(self, soon: bool = False) -> dict[int, RankState]:
        return self.others


class After:
    """A request that is complete after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def Test(self) -> bool:  # noqa: N802 (mpi4py's name)
        return time.monotonic() > self._until


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stall_detection, "_ANNOUNCE_SECONDS", 0.02)
    monkeypatch.setattr(_long_wait, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(_long_wait, "_CERTAIN_SECONDS", 0.2)


def rank_0(size: int = 3, stall: float = 0.1, abort: float = 0.3) -> tuple[StallDetector, Pretended]:
    states = Pretended(0, size)
    return StallDetector(states, Settings(stall_seconds=stall, stall_abort_seconds=abort)), states


def test_a_short_wait_tells_nobody() -> None:
    ranks, states = rank_0()
    ranks.wait(After(0.005), "step 1")
    assert states.told == []


def test_a_long_wait_tells_where_and_when_it_is_over() -> None:
    ranks, states = rank_0()
    ranks.wait(After(0.05), "step 1")
    assert states.told == [("waiting", "step 1"), ("running", "")]


def test_the_missing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    ranks, states = rank_0()
    states.others[2] = RankState("waiting", "step 1")
    with pytest.raises(PeerError, match=r"rank 0 has waited .* in step 1 for rank 1 \(rank 1 busy outside tfdist\)"):
        ranks.wait(After(9), "step 1")
    assert "ranks 0, 2 waited 0 s in step 1; missing: rank 1 busy outside tfdist" in capsys.readouterr().err


def test_who_waits_for_a_rank_that_waits_for_a_message_lets_it_speak_first() -> None:
    for kind, waited in (("moving", 0.37), ("running", 0.3)):
        ranks, states = rank_0(size=2)
        states.others[1] = RankState(kind, "step 1, between the machines")
        begun = time.monotonic()
        with pytest.raises(PeerError, match="has waited .* in step 1, copied, for rank 1"):
            ranks.wait(After(9), "step 1, copied,")
        assert time.monotonic() - begun > waited


def test_only_the_lowest_waiting_rank_reports(capsys: pytest.CaptureFixture[str]) -> None:
    states = Pretended(2, 3)
    ranks = StallDetector(states, Settings(stall_seconds=0.05, stall_abort_seconds=9))
    states.others[0] = RankState("waiting", "step 1")
    ranks.wait(After(0.2), "step 1")
    assert capsys.readouterr().err == ""


def test_work_alone_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    ranks, states = rank_0(size=2)
    states.others[1] = RankState("alone", "evaluation")
    ranks.wait(After(0.6), "step 1")
    assert "rank 1 alone with evaluation" in capsys.readouterr().err


def test_alone_tells_the_reason() -> None:
    ranks, states = rank_0()
    with ranks.alone("evaluation"):
        assert states.told == [("alone", "evaluation")]
    assert states.told[-1] == ("running", "")


def test_an_ended_rank_ends_the_wait() -> None:
    ranks, states = rank_0(abort=99)
    states.others[1] = RankState("ended", "")
    with pytest.raises(PeerError, match="rank 1 ended while rank 0 waits in step 7"):
        ranks.wait(After(9), "step 7")


def test_the_end_of_a_rank_is_news_of_it() -> None:
    """A waiting rank may read states rarely, where other programs use the processor."""
    ranks, states = rank_0(abort=99)
    states.others[1] = RankState("ended", "")
    ranks.wait_for_news(After(0.4), "the saving of a file by rank 1", 1)


def test_an_ended_rank_whose_message_is_on_its_way_is_no_error() -> None:
    ranks, states = rank_0(abort=99)
    states.others[1] = RankState("ended", "")
    ranks.wait(After(0.1), "step 7")


class Going(Pretended):
    """States that are read anew each time."""

    def read(self, soon: bool = False) -> dict[int, RankState]:
        now = time.monotonic()
        return {rank: dataclasses.replace(state, asked=now) for rank, state in self.others.items()}


def waits_there(number: int, what: str = "bucket 2", ranks: tuple[int, ...] | None = None) -> RankState:
    return RankState("waiting", what, held=Held(digest(what), number, ranks), position=number)


def in_bucket_1(other: RankState) -> tuple[StallDetector, Going]:
    """Return rank 0, which has begun its fifth call of all ranks, and the state of rank 1."""
    states = Going(0, 2)
    states.others[1] = other
    ranks = StallDetector(states, Settings(stall_seconds=99, stall_abort_seconds=99))
    assert [ranks.count(None) for _ in range(5)][-1] == 5
    return ranks, states


def test_ranks_that_wait_in_different_calls_are_an_error_before_the_deadline() -> None:
    ranks, _ = in_bucket_1(waits_there(5))
    with pytest.raises(PeerError, match="rank 0 waits in bucket 1, but rank 1 waits in bucket 2. All ranks must"):
        ranks.wait(After(9), "bucket 1", number=5)


@pytest.mark.parametrize(
    "other",
    [
        waits_there(5, "bucket 1"),  # is here, and its message is late
        waits_there(4),  # the end of its last call is late
        waits_there(0, ranks=(1, 2)),  # waits for a third rank, which may come
        RankState("waiting", "bucket 2", position=5),  # another of its threads may come
        RankState("running", "", position=4),
    ],
)
def test_who_can_still_come_is_waited_for(other: RankState) -> None:
    ranks, _ = in_bucket_1(other)
    ranks.wait(After(0.5), "bucket 1", number=5)


def test_another_thread_of_this_rank_may_go_on() -> None:
    ranks, states = in_bucket_1(waits_there(5))
    ranks.callers.called()
    over = threading.Event()

    def program() -> None:
        ranks.callers.called()
        over.wait()

    thread = threading.Thread(target=program)
    thread.start()
    ranks.wait(After(0.5), "bucket 1", number=5)
    assert states.held == [None, None]
    over.set()
    thread.join()
    with pytest.raises(PeerError, match="rank 0 waits in bucket 1, but rank 1 waits in bucket 2"):
        ranks.wait(After(9), "bucket 1", number=5)


def test_a_thread_of_tensorflow_acts_for_one_of_the_script() -> None:
    callers = Callers(set())
    over = threading.Event()

    def step() -> None:
        with callers.acting():
            callers.called()
        over.wait()

    callers.called()
    thread = threading.Thread(target=step)
    thread.start()
    assert not callers.several
    over.set()
    thread.join()


def test_what_runs_in_any_order_may_go_on() -> None:
    ranks, _ = in_bucket_1(waits_there(5))
    with ranks.unordered():
        ranks.wait(After(0.5), "bucket 1", number=5)


def test_an_ended_rank_that_has_not_come_ends_the_wait() -> None:
    ranks, _ = in_bucket_1(RankState("ended", "", position=4))
    with pytest.raises(PeerError, match="rank 1 ended while rank 0 waits in step 7"):
        ranks.wait(After(9), "step 7", number=5)


def test_an_ended_rank_that_has_come_is_waited_for() -> None:
    ranks, _ = in_bucket_1(RankState("ended", "", position=5))
    ranks.wait(After(0.5), "step 7", number=5)


def test_a_process_that_is_gone_ends_the_wait() -> None:
    ranks, states = rank_0(abort=99)
    states.others[2] = RankState("running", "", process=GONE, position=5)
    with pytest.raises(PeerError, match=r"rank 2 is gone: its process was killed.* while rank 0 waits in step 7"):
        ranks.wait(After(9), "step 7", number=5)


def test_deadlines_count_the_time_in_which_this_process_runs() -> None:
    now = [0.0]
    clock = RunningSeconds(lambda: now[0])
    for at, passed in ((0.2, 0.2), (0.7, 0.7), (15.7, 1.7), (15.9, 1.9)):
        now[0] = at
        assert clock.passed() == pytest.approx(passed)


def test_work_alone_has_a_deadline_of_its_own() -> None:
    states = Pretended(0, 2)
    settings = Settings(stall_seconds=99, stall_abort_seconds=0.1, stall_alone_seconds=0.5)
    states.others[1] = RankState("alone", "an evaluation")
    start = time.monotonic()
    with pytest.raises(PeerError, match=r"rank 1 alone with an evaluation\)\. .* raise TFDIST_STALL_ALONE_SECONDS"):
        StallDetector(states, settings).wait(After(9), "step 1")
    assert time.monotonic() - start > 0.5


def test_after_it_has_given_up_a_rank_refuses_at_once_and_keeps_what_others_may_write_to() -> None:
    ranks, _ = rank_0(size=2)
    ranks.check("step 1")
    request = After(9)
    with pytest.raises(PeerError, match="rank 0 has waited"):
        ranks.wait(request, "step 1")
    reference = weakref.ref(request)
    del request
    assert ranks.gave_up and reference() is not None
    start = time.monotonic()
    with pytest.raises(PeerError, match=r"step 2 is refused: rank 0 has given up .*PeerError: .* in step 1 for rank 1"):
        ranks.wait(After(9), "step 2")
    assert time.monotonic() - start < 0.1


def test_an_interrupted_wait_is_given_up_too() -> None:
    class Interrupted:
        def Test(self) -> bool:  # noqa: N802 (mpi4py's name)
            raise KeyboardInterrupt

    ranks, _ = rank_0()
    with pytest.raises(KeyboardInterrupt):
        ranks.wait(Interrupted(), "step 1")
    with pytest.raises(PeerError, match=r"step 2 is refused: .*KeyboardInterrupt"):
        ranks.check("step 2")


def test_a_machine_that_does_not_answer_is_named() -> None:
    """The last states of its ranks do not matter: waiting here, or working alone without a deadline."""
    ranks, states = rank_0(size=4)
    states.others[1] = RankState("waiting", "step 1", host="node1")
    states.others[2] = RankState("waiting", "step 1", host="node2", answers=False)
    states.others[3] = RankState("alone", "evaluation", host="node2", answers=False)
    with pytest.raises(PeerError, match=r"ranks 2, 3 \(rank 2: its machine \(node2\) does not answer: .*; rank 3: its"):
        ranks.wait(After(9), "step 1")


def test_a_machine_that_does_not_answer_is_in_no_other_place() -> None:
    ranks, states = rank_0(size=2, abort=9)
    states.others[1] = RankState("waiting", "bucket 2", answers=False)
    ranks.wait(After(0.4), "bucket 1")


def test_the_host_of_a_missing_rank_is_named() -> None:
    ranks, states = rank_0(size=2)
    states.others[1] = RankState(line="read (data.py:3)", looked=time.monotonic() - 70, host="node2")
    with pytest.raises(
        PeerError, match=r"rank 1 on node2 busy outside tfdist, in read \(data.py:3\) 70 s ago: it is st"
    ):
        ranks.wait(After(9), "step 1")


def test_a_rank_that_was_stopped_in_the_same_place_is_named() -> None:
    ranks, states = rank_0(size=3)
    states.others[1] = RankState("moving", "step 1", looked=time.monotonic())
    states.others[2] = RankState("moving", "step 1", looked=time.monotonic() - 40)
    with pytest.raises(
        PeerError, match=r"step 1 for rank 2 \(rank 2 waits for a message in step 1, 40 s ago: it is st"
    ):
        ranks.wait(After(9), "step 1", moving=True)


def test_all_are_there() -> None:
    ranks, states = rank_0(size=2)
    states.others[1] = RankState("moving", "step 1", looked=time.monotonic())
    with pytest.raises(PeerError, match="in step 1 for nobody: all are here"):
        ranks.wait(After(9), "step 1", moving=True)


def test_a_blocking_call_that_does_not_return_ends_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    states = Pretended(0, 2)
    codes: list[int] = []
    ranks = StallDetector(states, Settings(stall_seconds=9, stall_abort_seconds=0.1), end=codes.append)
    with ranks.inside("a call"):
        time.sleep(0.6)
    assert codes == [1]
    assert "rank 0 of 2 failed:\nPeerError: rank 0 has waited 0 s in a call for rank 1 (" in capsys.readouterr().err
    assert ranks.gave_up


def test_a_blocking_call_that_returns_is_nothing() -> None:
    states = Pretended(0, 2)
    codes: list[int] = []
    ranks = StallDetector(states, Settings(stall_abort_seconds=1.0), end=codes.append)
    with ranks.inside("a call"):
        time.sleep(0.08)
    time.sleep(1.2)
    assert codes == []
    assert not ranks.gave_up


def test_who_is_lost() -> None:
    ranks, states = rank_0(size=4)
    assert ranks.lost() == ""
    then = time.monotonic() - 30
    states.others[1] = RankState("running", "", looked=then, process=RUNS)  # in a call that holds the GIL
    assert ranks.lost() == ""
    states.others[1] = RankState("running", "", looked=then)
    states.others[2] = RankState("ended", "", looked=then)
    states.others[3] = RankState("running", "", answers=False)
    assert "rank 1 busy" in ranks.lost()
    assert "rank 2" not in ranks.lost()
    assert "rank 3: its machine does not answer" in ranks.lost()
    states.others = {1: RankState("running", "", process=STOPPED), 2: RankState("ended", "", process=GONE)}
    assert ranks.lost() == "rank 1 busy outside tfdist: it is stopped"
