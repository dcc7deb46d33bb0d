"""Flight recorder: a rank's last operations are in its file, however the rank has ended."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT
from tfdist.core.settings import Settings
from tfdist.record.flight_recorder import HEAD_BYTES, SILENT, STACKS_BYTES, FlightRecorder
from tfdist.record.recorded import read
from tfdist.record.trace_files import flight_recorder, job_name, new_folder

HEAD = {"rank": 1, "size": 2, "host": "here", "machine": "this", "program": "script.py"}


OWNER = "average", lambda: 3


def begun(path: Path, **arguments: object) -> FlightRecorder:
    return FlightRecorder(str(path), str(path.parent), HEAD, **arguments)  # type: ignore[arg-type]


def test_the_last_operations_are_kept(tmp_path: Path) -> None:
    recorder = begun(tmp_path / "rank-1", events=4)
    first = recorder.enter("all ranks", 1, "step 1", 8)
    for number in range(2, 8):
        entry = recorder.enter("all ranks", number, f"step {number}", 8 * number)
        recorder.met(entry)
        if number < 7:
            recorder.leave(entry)
    recorder.leave(first)  # another operation has its place by now
    found = read(tmp_path / "rank-1")
    assert [(e.owner, e.step, e.what, e.size_bytes) for e in found.events] == [
        ("all ranks", number, f"step {number}", 8 * number) for number in range(4, 8)
    ]
    assert [bool(e.end) for e in found.events] == [True, True, True, False]
    assert all(0 < e.start <= e.met for e in found.events)
    assert not found.complete
    assert found.head["rank"] == 1


def test_spans_are_noted_if_there_is_to_be_a_timeline(tmp_path: Path) -> None:
    for detailed in (False, True):
        recorder = begun(tmp_path / f"{detailed}", detailed=detailed)
        with recorder.spans(*OWNER)("reduce", "bucket 0"):
            pass
        events = read(tmp_path / f"{detailed}").events
        assert [(e.kind, e.owner, e.step, e.what) for e in events] == [("reduce", "average", 3, "bucket 0")] * detailed


def test_where_the_threads_are_and_what_was_done_outlive_a_killed_process(tmp_path: Path) -> None:
    program = f"""
import os, signal, threading
from pathlib import Path
from tests.tfdist.record.test_flight_recorder import begun
recorder = begun(Path({str(tmp_path)!r}, "rank-1"))
def asleep():
    thread = threading.Thread(target=recorder.look)
    thread.start()
    thread.join()
    recorder.enter("all ranks", 1, "the last step", 4)
    os.kill(os.getpid(), signal.SIGKILL)
asleep()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], timeout=60, env=environment)
    found = read(tmp_path / "rank-1")
    assert [event.what for event in found.events] == ["the last step"]
    assert "MainThread:" in found.stacks and "  asleep (<string>:" in found.stacks
    assert found.looked > 0


def test_a_normal_end_leaves_nothing(tmp_path: Path) -> None:
    settings = Settings.from_environment({"TFDIST_TRACE_FOLDER": str(tmp_path / "traces")})
    folder = new_folder(settings, job_name())
    assert folder == new_folder(settings, Path(folder).name), "another machine, on the same disk"
    recorders = [flight_recorder(settings, rank, 2, folder) for rank in range(2)]
    for rank, recorder in enumerate(recorders):
        assert recorder.place == folder
        mode = os.stat(Path(folder, f"rank-{rank}")).st_mode
        assert stat.S_IMODE(mode) == 0o600
    recorders[0].close(keep=False)
    recorders[1].close(keep=False)
    assert not list((tmp_path / "traces").iterdir())


def test_a_long_command_line_of_any_letters_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", "\N{GRINNING FACE}" * 3000, "\udcff"])
    flight_recorder(Settings(), 0, 2, str(tmp_path))
    assert read(tmp_path / "rank-0").head["program"].startswith("script.py \N{GRINNING FACE}")


def test_a_failure_leaves_the_file(tmp_path: Path) -> None:
    recorder = begun(tmp_path / "rank-1")
    recorder.close(keep=True)
    assert (tmp_path / "rank-1").exists()


def test_where_no_file_can_be_made_the_rank_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, begin: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for recorder in (begun(tmp_path / "rank-1"), begun(tmp_path / "missing" / "rank-1")):
        recorder.leave(recorder.enter("all ranks", 1, "step 1", 8))
        recorder.look()
        recorder.close(keep=False)
        assert recorder.place == ""
    assert not list(tmp_path.iterdir())


def operation(recorder: FlightRecorder, number: int) -> None:
    entry = recorder.enter("all ranks", number, f"step {number}", 8)
    recorder.met(entry)
    recorder.leave(entry)


# What other programs may do to a file in use. Each is tried in a process of its own, because access to the mapped
# memory could end the process by SIGBUS.
HARM = {
    "shortened": "os.truncate(path, 0)",
    "shortened in the head": "os.truncate(path, 4097)",
    "deleted": "os.unlink(path)",
    "deleted with its folder": "shutil.rmtree(os.path.dirname(path), ignore_errors=True)",
    "shortened on a full disk": "os.truncate(path, 0); resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "closed": "os.closerange(3, 4096); mine = open(other, 'w+')",
}


@pytest.mark.parametrize("harm", HARM)
def test_nobody_s_harm_to_the_file_is_the_rank_s(tmp_path: Path, harm: str) -> None:
    (tmp_path / "job").mkdir()
    path, other = tmp_path / "job" / "rank-1", tmp_path / "other"
    program = f"""
import os, resource, shutil
from pathlib import Path
from tests.tfdist.record.test_flight_recorder import OWNER, begun, operation
path, other = {str(path)!r}, {str(other)!r}
recorder = begun(Path(path), detailed=True)
operation(recorder, 1)
{HARM[harm]}
entry = recorder.enter("all ranks", 2, "step 2", 8)
recorder.met(entry)
recorder.leave(entry)
with recorder.spans(*OWNER)("reduce", "bucket 0"):
    pass
recorder.look()
recorder.flush()
print("goes on", flush=True)
os._exit(0)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done
    assert not other.exists() or other.read_bytes() == b""
    if harm.startswith("shortened") and "full" not in harm:
        found = read(path)  # the head is written again, with the threads' stacks
        assert found.looked > 0 and [event.what for event in found.events] == ["step 2", "bucket 0"]


def test_a_shortened_file_is_read(tmp_path: Path) -> None:
    recorder = begun(tmp_path / "rank-1")
    operation(recorder, 1)
    for size, left in ((HEAD_BYTES + STACKS_BYTES + 100, 0), (HEAD_BYTES + 2, 0), (HEAD_BYTES, 0)):
        os.truncate(tmp_path / "rank-1", size)
        assert len(read(tmp_path / "rank-1").events) == left
    os.truncate(tmp_path / "rank-1", 0)
    with pytest.raises(ValueError, match="is not a file of tfdist's flight recorder"):
        read(tmp_path / "rank-1")


def test_another_file_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text('{"rank": 0}')
    with pytest.raises(ValueError, match="notes.txt is not a file of tfdist's flight recorder"):
        read(tmp_path / "notes.txt")


def test_silence_takes_no_note() -> None:
    SILENT.leave(SILENT.enter("all ranks", 1, "step 1", 8))
    with SILENT.spans(*OWNER)("reduce", "bucket 0"):
        pass
