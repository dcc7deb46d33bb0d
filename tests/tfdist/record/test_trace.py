"""Comparison of ranks: the first difference, the slow ranks, and the Chrome trace."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tfdist.record import chrome
from tfdist.record.command import main, report
from tfdist.record.flight_recorder import HEAD_BYTES, STACKS_BYTES, FlightRecorder
from tfdist.record.ranks import Rank, load, operations
from tfdist.record.recorded import Event, Recorded
from tfdist.record.steps import table

CLOCK = 1_000_000_000.0


def operation(number: int, start: float, met: float, what: str = "", size_bytes: int = 8, line: str = "") -> Event:
    return Event("", line or "all ranks", number, what or f"average, step {number}", size_bytes, start, met, met)


def rank(
    number: int, events: Sequence[Event], size: int = 2, machine: str = "this", complete: bool = True, stacks: str = ""
) -> Rank:
    head = {"rank": number, "size": size, "host": machine, "machine": machine, "program": "a.py", "clock": CLOCK}
    return Rank(number, Recorded(head, list(events), complete, stacks, CLOCK + 9 if stacks else 0.0))


class TestDifference:
    def test_the_same_everywhere(self) -> None:
        ranks = [rank(r, [operation(n, n + r / 10, n + 0.2) for n in (1, 2)]) for r in range(2)]
        assert not any(found.differs for found in operations(ranks))
        text = report(ranks)
        assert "no difference: all ranks have done the same in the same order" in text
        assert "slowest: rank 1 came last to 2 of 2 operations" in text
        assert "   1           2          2           100.000      100.000" in text

    def test_a_rank_that_did_not_come(self) -> None:
        here = [operation(1, 1.0, 1.2), operation(2, 2.0, 0.0)]
        ranks = [rank(0, here), rank(1, here[:1], stacks="MainThread:\n  slow (a.py:7)")]
        lines = report(ranks).splitlines()
        assert "first difference: average, step 2 (all ranks, operation 2)" in lines
        assert any(line.startswith("  rank 0 came with 8 bytes at ") for line in lines)
        assert "  rank 1 did not come" in lines
        assert any(line.startswith("rank 1's last operation: average, step 1: came at ") for line in lines)
        assert "    slow (a.py:7)" in lines

    @pytest.mark.parametrize("other", [{"what": "another"}, {"size_bytes": 16}])
    def test_ranks_that_do_other_things(self, other: dict[str, object]) -> None:
        ranks = [rank(0, [operation(1, 1.0, 1.1)]), rank(1, [operation(1, 1.0, 1.1, **other)])]  # type: ignore[arg-type]
        lines = report(ranks).splitlines()
        assert any(line.startswith("  rank 0 came with 8 bytes to average, step 1 at ") for line in lines)
        assert any(line.startswith("  rank 1 came with") for line in lines)

    def test_what_a_full_file_has_lost_is_not_missing(self) -> None:
        many = [operation(n, float(n), n + 0.1) for n in range(1, 6)]
        ranks = [rank(0, many), rank(1, many[3:], complete=False)]
        assert not any(found.differs for found in operations(ranks))

    def test_a_group_is_its_own_ranks(self) -> None:
        of_two = [operation(1, 1.0, 1.1, line="ranks 0, 2, group 1")]
        assert not any(o.differs for o in operations([rank(0, of_two, 3), rank(1, [], 3), rank(2, of_two, 3)]))


def files(folder: Path, machines: Sequence[str]) -> None:
    for number, machine in enumerate(machines):
        head = {"rank": number, "size": len(machines), "host": machine, "machine": machine, "program": "a.py"}
        recorder = FlightRecorder(str(folder / f"rank-{number}"), str(folder), head, detailed=True)
        entry = recorder.enter("all ranks", 1, "average, step 1", 8)
        recorder.met(entry)
        recorder.leave(entry)


def test_clocks_of_two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.perf_counter()
    for number, ahead in enumerate((0.0, 5_000.0)):
        monkeypatch.setattr(time, "perf_counter", lambda ahead=ahead: began + ahead)
        head = {"rank": number, "size": 2, "host": f"{number}", "machine": f"{number}", "program": "a.py"}
        recorder = FlightRecorder(str(tmp_path / f"rank-{number}"), str(tmp_path), head)
        recorder.met(recorder.enter("all ranks", 1, "average, step 1", 8))
    first, second = load([str(tmp_path)])
    assert second.operations[0].start == pytest.approx(first.operations[0].start, abs=1e-6)
    assert second.recorded.head["clock"] == pytest.approx(first.recorded.head["clock"], abs=1.0)


class TestCommand:
    def test_a_folder_and_a_trace(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "job").mkdir()
        files(tmp_path / "job", ["one", "one"])
        assert main([str(tmp_path / "job"), "--chrome", str(tmp_path / "trace.json")]) == 0
        assert "a.py: 2 ranks" in capsys.readouterr().out
        assert {e["pid"] for e in json.loads((tmp_path / "trace.json").read_text())} == {0, 1}
        assert sorted(p.name for p in tmp_path.iterdir()) == ["job", "trace.json"]

    def test_files_of_other_machines_are_missed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files(tmp_path, ["one", "two", "three"])
        assert main([str(tmp_path / "rank-0"), str(tmp_path / "rank-2")]) == 0
        assert "no files of rank 1: they are on their machines" in capsys.readouterr().out

    def test_files_that_do_not_go_together(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files(tmp_path, ["one"])
        for arguments, said in (
            ([str(tmp_path), str(tmp_path / "rank-0")], "are both of rank 0: give the files of one job"),
            ([str(tmp_path / "rank-7")], "No such file"),
        ):
            assert main(arguments) == 2
            assert said in capsys.readouterr().err


HEADS: dict[str, dict[str, object] | bytes] = {
    "a huge number": {"size": 10**12},
    "a number in words": {"size": "2"},
    "a rank that is not there": {"rank": 2},
    "no host": {"host": None},
    "a late clock": {"clock": 1e300},
    "no clock": {"clock": float("nan")},
    "a deep one": b'{"a":' * (HEAD_BYTES // 5),
    "a long number": b"9" * HEAD_BYTES,
}


class TestDamage:
    """Files that are damaged, or come from somebody else, cost one line."""

    def refused(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([str(path)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "is not a file of tfdist's flight recorder, or" in said

    @pytest.mark.parametrize("what", HEADS)
    def test_heads(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str) -> None:
        files(tmp_path, ["one", "one"])
        content, change = (tmp_path / "rank-0").read_bytes(), HEADS[what]
        if isinstance(change, dict):
            change = json.dumps({**json.loads(content[:HEAD_BYTES]), **change}).encode()
        (tmp_path / "rank-0").write_bytes(change.ljust(HEAD_BYTES) + content[HEAD_BYTES:])
        self.refused(tmp_path / "rank-0", capsys)

    def test_times_and_what_has_no_end(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        files(tmp_path, ["one"])
        for start in (float("inf"), float("nan"), -1.0, 1e18):
            with (tmp_path / "rank-0").open("r+b") as file:
                file.seek(HEAD_BYTES + STACKS_BYTES + 8)
                file.write(struct.pack("<d", start))
            self.refused(tmp_path / "rank-0", capsys)
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "large").touch()
        os.truncate(tmp_path / "large", 1 << 40)
        for path in (tmp_path / "pipe", tmp_path / "large", Path("/dev/zero")):
            self.refused(path, capsys)

    def test_a_terminal_gets_no_orders(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        orders = "\x1b]0;x\x07\x9b2J\u202e\r"
        head = {"rank": 0, "size": 500_000, "host": orders, "machine": orders, "program": f"{orders}\udcff"}
        FlightRecorder(str(tmp_path / f"rank{orders}"), "", head).enter(orders, 1, f"step {orders}", 8)
        assert main([str(tmp_path)]) == 0
        assert main([str(tmp_path), str(tmp_path / f"rank{orders}")]) == 2
        said, (event,) = capsys.readouterr(), load([str(tmp_path)])[0].operations
        assert "\N{REPLACEMENT CHARACTER}]0;x" in said.out and "are both of rank 0" in said.err
        told = said.out + said.err + event.what + event.owner
        assert all(sign.isprintable() or sign == "\n" for sign in told) and len(said.out) < 5_000


class TestTimeline:
    def ranks(self) -> list[Rank]:
        made = []
        for number, late in enumerate((0.0, 0.2)):
            spans = []
            for step in range(1, 4):
                start = step * 1.0 + late
                spans += [
                    Event("wait", "average", step, "bucket", 0, start, 0.0, step + 0.3),
                    Event("reduce", "average", step, "bucket", 0, step + 0.3, 0.0, step + 0.5),
                    Event("held up", "average", step, "bucket", 0, step + 0.4, 0.0, step + 0.5),
                ]
                for what in ("sums", "copies", "rows"):
                    spans.append(Event(f"wait for {what}", "average", step, "bucket", 0, step + 0.5, 0.0, step + 0.6))
            made.append(rank(number, spans))
        return made

    def test_a_trace_that_chrome_reads_and_a_table(self, tmp_path: Path) -> None:
        ranks = self.ranks()
        chrome.write(str(tmp_path / "trace.json"), ranks)
        trace = json.loads((tmp_path / "trace.json").read_text())
        assert {e["pid"] for e in trace} == {0, 1}
        assert [e["name"] for e in trace if e["ph"] == "i" and e["pid"] == 0] == ["step 1", "step 2", "step 3"]
        assert all(e["dur"] >= 0 and e["ts"] >= 0 for e in trace if e["ph"] == "X")
        assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
        lines = table([one.spans for one in ranks]).splitlines()
        assert lines[1].split() == ["0", "3", "1000.00", "900.00", "200.00", "50%", "0"]
        assert lines[2].split()[-1] == "3"  # rank 1 is late in all 3 steps

    def test_what_is_not_over_lasts_to_the_end(self, tmp_path: Path) -> None:
        chrome.write(str(tmp_path / "trace.json"), [rank(0, [operation(1, 1.0, 0.0), operation(2, 3.0, 4.0)])])
        spans = [e for e in json.loads((tmp_path / "trace.json").read_text()) if e["ph"] == "X"]
        assert [(e["dur"], e["args"].get("waits")) for e in spans] == [(3e6, True), (1e6, None)]
