"""Cleanup removes the files of failed jobs after a week, and no other files."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tfdist.core import files
from tfdist.core.settings import Settings
from tfdist.record.flight_recorder import FlightRecorder
from tfdist.record.trace_files import flight_recorder, job_name, new_folder

DAY = 86_400.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder in place of the machine's temporary folder."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def ended() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def age(path: Path, days: float) -> None:
    for entry in (*path.iterdir(), path) if path.is_dir() else (path,):
        os.utime(entry, (time.time() - days * DAY,) * 2, follow_symlinks=False)


def left(place: Path, number: int, days: float = 8, **head: Any) -> Path:
    """Return the folder of a job of two ranks that failed ``days`` days ago."""
    folder = place / f"tfdist-{number:08x}"
    folder.mkdir(mode=0o700)
    for rank in range(2):
        flight_recorder(Settings(), rank, 2, str(folder)).close(keep=True)
        file = folder / f"rank-{rank}"
        content = file.read_bytes()
        told = {**json.loads(content[:4096]), "pid": ended(), **head}
        file.write_bytes(json.dumps(told).encode().ljust(4096) + content[4096:])
    age(folder, days)
    return folder


def begin(settings: Settings | None = None) -> Path:
    """Create and return a job's folder, as at the start of a job."""
    folder = new_folder(settings or Settings(), job_name())
    assert os.path.isdir(folder)
    return Path(folder)


def test_what_failed_jobs_have_left_goes_after_a_week(place: Path) -> None:
    old, other_boot, recent = left(place, 1), left(place, 2, machine="before the last start"), left(place, 3, days=6)
    empty, just_empty = place / "tfdist-00000004", place / "tfdist-00000005"
    for folder, days in ((empty, 1.1), (just_empty, 0.9)):
        folder.mkdir(mode=0o700)
        age(folder, days)
    own = begin()
    assert not old.exists() and not other_boot.exists() and not empty.exists()
    assert sorted(path.name for path in place.iterdir()) == sorted([recent.name, just_empty.name, own.name])


def test_a_chosen_folder_too(tmp_path: Path, place: Path) -> None:
    chosen = tmp_path / "chosen"
    settings = Settings.from_environment({"TFDIST_TRACE_FOLDER": str(chosen)})
    begin(settings).rmdir()
    old, elsewhere = left(chosen, 1), left(place, 1)
    begin(settings)
    assert not old.exists() and elsewhere.exists()


def test_a_job_that_lives_keeps_its_folder(place: Path) -> None:
    stopped = left(place, 1, pid=os.getpid())
    working = left(place, 2)
    age(working / "rank-1", 0)
    begin()
    assert stopped.exists() and working.exists()


def replaced(folder: Path, content: bytes) -> None:
    (folder / "rank-1").write_bytes(content)


def linked(folder: Path) -> None:
    (folder / "rank-1").rename(folder.parent / "elsewhere")
    (folder / "rank-1").symlink_to(folder.parent / "elsewhere")


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a file of another name": lambda folder: (folder / "results.csv").write_text("1"),
    "a folder inside": lambda folder: (folder / "rank-2").mkdir(),
    "no head": lambda folder: replaced(folder, b"notes"),
    "nothing": lambda folder: replaced(folder, b""),
    "another head": lambda folder: replaced(folder, b'{"format": "another", "machine": "x", "pid": 1}'),
    "a deep head": lambda folder: replaced(folder, b"[" * 4096),
    "a link": linked,
    "a pipe": lambda folder: os.mkfifo(folder / "rank-2"),
    "others may write": lambda folder: folder.chmod(0o770),
    "others may write a file": lambda folder: (folder / "rank-0").chmod(0o666),
    "another owner": lambda folder: os.chown(folder, 65534, 65534),
    "another owner of a file": lambda folder: os.chown(folder / "rank-0", 65534, 65534),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_ours_stays(place: Path, what: str) -> None:
    if "owner" in what and os.geteuid():
        pytest.skip("only root can give files away")
    folder = left(place, 1)
    FOREIGN[what](folder)
    age(folder, 8)
    before = sorted(folder.iterdir())
    begin()
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("planted", ["ln -s .. $0", "touch $0", "mkdir $0; chown 65534 $0", "mkdir -m 777 $0"])
@pytest.mark.parametrize("chosen", [False, True])
def test_a_job_takes_no_folder_of_others(
    place: Path, planted: str, chosen: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever sees a job's folder on one host can make the same name on another one, before the job's ranks do."""
    if "chown" in planted and os.geteuid():
        pytest.skip("only root can give files away")
    name = job_name()
    subprocess.run(["sh", "-ec", planted, name], cwd=place, check=True)
    settings = Settings.from_environment({"TFDIST_TRACE_FOLDER": str(place)} if chosen else {})
    assert new_folder(settings, name) == ""
    assert ("has no flight recorder" in capsys.readouterr().err) == chosen


@pytest.mark.parametrize("content", [None, b"notes"])
def test_the_part_of_a_timeline_replaces_only_such_a_part(tmp_path: Path, content: bytes | None) -> None:
    settings, part = Settings.from_environment({"TFDIST_TIMELINE": str(tmp_path / "t")}), tmp_path / "t.rank-0"
    if content is None:
        flight_recorder(settings, 0, 1, "").close(keep=True)
        age(part, 1)
    else:
        part.write_bytes(content)
    recorder = flight_recorder(settings, 0, 1, "")
    assert bool(recorder.place) == (content is None)
    assert part.read_bytes() == content if content is not None else time.time() - part.stat().st_mtime < 1000


def test_other_names_and_links_are_left_alone(tmp_path: Path, place: Path) -> None:
    """All users may create names in /tmp."""
    outside = left(tmp_path, 1)
    (place / outside.name).symlink_to(outside)
    others = [place / name for name in ("tfdist-mine", "tfdist-000000001", "tfdist-0000000A", "xtfdist-00000001")]
    for other in others:
        other.mkdir()
        age(other, 30)
    (place / "tfdist-00000002").write_text("a file")
    os.mkfifo(place / "tfdist-00000003")
    begin()
    assert len(list(outside.iterdir())) == 2 and all(other.is_dir() for other in others)
    assert len(list(place.iterdir())) == 4 + 3 + 1


def test_many_jobs_begin_at_once(place: Path) -> None:
    old = [left(place, number) for number in range(20)]
    begun: list[Path] = []
    threads = [threading.Thread(target=lambda: begun.append(begin())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(begun)) == 8 and not any(folder.exists() for folder in old)
    for rank, folder in enumerate(begun):
        assert flight_recorder(Settings(), rank, 8, str(folder)).place == str(folder)


def test_a_full_temporary_folder_costs_little(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of a thousand entries with other names is opened; of recent jobs, only the folder is opened."""
    for number in range(1000):
        (place / f"tmp{number}").touch()
    recent = [left(place, number, days=2) for number in range(3)]
    opened: list[Any] = []
    really = os.open

    def counted(path: Any, *arguments: Any, **more: Any) -> int:
        opened.append(path)
        return really(path, *arguments, **more)

    monkeypatch.setattr(os, "open", counted)
    begin()
    assert sorted(map(str, opened)) == sorted([str(place), *(folder.name for folder in recent)])


def test_it_ends_after_a_while(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_CLEANING_SECONDS", 0.0)
    old = [left(place, number) for number in range(3)]
    begin()
    assert sum(folder.exists() for folder in old) == 2


def test_notes_of_a_job_whose_folder_is_removed_are_lost_alone(place: Path) -> None:
    """As of a rank that was stopped for a week, on another machine."""
    folder = left(place, 1)
    (folder / "rank-0").unlink()
    recorder = FlightRecorder(str(folder / "rank-0"), str(folder), {"machine": "another"})
    age(folder, 8)
    begin()
    assert not folder.exists()
    recorder.leave(recorder.enter("all ranks", 1, "step 1", 8))
    recorder.close(keep=False)
