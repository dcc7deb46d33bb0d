"""A file is written whole or not at all, and nobody else's names or folders are touched."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launch import ROOT
from tfdist.core.files import whole


def write(path: Path, text: str = "new") -> None:
    with whole(str(path)) as made:
        Path(made).write_text(text)


def mode(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_nobody_else_can_reach_a_file_in_the_making(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    target = tmp_path / "model.keras"
    places = set()
    for content in ("first", "second"):
        with whole(str(target)) as made:
            assert mode(os.path.dirname(made)) == 0o700 and not os.path.exists(made), "writers may ask about a file"
            assert os.path.basename(made) == "model.keras", "writers look at the name"
            places.add(made)
            Path(made).write_text(content)
        assert target.read_text() == content and [path.name for path in tmp_path.iterdir()] == ["model.keras"]
    assert len(places) == 2


def test_a_mode_stays_and_a_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "private.h5", tmp_path / "link.h5"
    link.symlink_to("private.h5")
    before = os.umask(0o027)
    write(target)
    os.umask(before)
    assert mode(target) == 0o640
    target.chmod(0o600)
    write(link, "by the link")
    assert link.is_symlink() and target.read_text() == "by the link" and mode(target) == 0o600


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_alone(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "model.h5").write_text("old")
    with pytest.raises(error), whole(str(tmp_path / "model.h5")) as made:
        Path(made).write_text("half")
        raise error
    assert (tmp_path / "model.h5").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_the_content_is_on_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def note(name: str) -> None:
        real = getattr(os, name)

        def noted(*what: object) -> None:
            done.append(name)
            real(*what)

        monkeypatch.setattr(os, name, noted)

    note("fsync")
    note("replace")
    write(tmp_path / "x")
    assert done == ["fsync", "replace", "fsync"]


def test_two_jobs_that_write_one_path(tmp_path: Path) -> None:
    """Each version of the file is one job's."""
    texts = [letter * 100_000 for letter in "abcd"]

    def job(text: str) -> None:
        for _ in range(20):
            with whole(str(tmp_path / "all.keras")) as made, open(made, "w") as file:
                for at in range(0, len(text), 10_000):
                    file.write(text[at : at + 10_000])
                    file.flush()

    threads = [threading.Thread(target=job, args=(text,)) for text in texts]
    write(tmp_path / "all.keras", texts[0])
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert (tmp_path / "all.keras").read_text() in texts
    assert len(list(tmp_path.iterdir())) == 1


def killed(folder: Path) -> Path:
    """Return what a save that is killed in the middle leaves."""
    code = (
        "import os\nfrom tfdist.core.files import whole\n"
        f"with whole({str(folder / 'model.keras')!r}) as made:\n"
        "    open(made, 'w').write('half')\n    os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, timeout=60).returncode == -9
    (rest,) = folder.glob(".tfdist-*")
    return rest


def age(path: Path, hours: float) -> None:
    for entry in (*path.iterdir(), path) if path.is_dir() and not path.is_symlink() else (path,):
        os.utime(entry, (time.time() - hours * 3600,) * 2, follow_symlinks=False)


def test_what_a_killed_save_leaves_goes_after_an_hour(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_text("old")
    rest = killed(tmp_path)
    assert (tmp_path / "model.keras").read_text() == "old" and (rest / "model.keras").read_text() == "half"
    age(rest, 0.9)
    write(tmp_path / "other.keras")
    assert rest.exists(), "its process may live"
    age(rest, 2)
    os.utime(rest / "model.keras")
    write(tmp_path / "other.keras")
    assert rest.exists(), "somebody writes"
    age(rest, 1.1)
    write(tmp_path / "other.keras")
    assert not rest.exists()


FOREIGN: dict[str, Callable[[Path], object]] = {
    "another owner": lambda rest: os.chown(rest, 65534, 65534),
    "others may write": lambda rest: rest.chmod(0o770),
    "a folder inside": lambda rest: (rest / "more").mkdir(),
    "a link inside": lambda rest: (rest / "more").symlink_to(rest.parent / "kept"),
    "another name": lambda rest: rest.rename(rest.parent / ".tfdist-mine"),
    "a link": lambda rest: rest.symlink_to(rest.rename(rest.parent / "elsewhere")),
    "a file": lambda rest: (rest.parent / ".tfdist-00000000").write_text("notes"),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_a_rest_stays(tmp_path: Path, what: str) -> None:
    if "owner" in what and os.geteuid():
        pytest.skip("only root can give files away")
    rest = tmp_path / ".tfdist-abcdefgh"
    rest.mkdir(0o700)
    (rest / "model.keras").write_text("half")
    (tmp_path / "kept").write_text("kept")
    FOREIGN[what](rest)
    for path in tmp_path.iterdir():
        age(path, 8)
    if what == "a file":
        (rest / "model.keras").touch()
    before = {str(path) for path in tmp_path.rglob("*")}
    write(tmp_path / "kept", "again")
    assert {str(path) for path in tmp_path.rglob("*")} == before


def test_what_is_no_file_is_written_itself(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with whole(str(tmp_path / name)) as made:
            assert made == str(tmp_path / name)
    with whole("/dev/null") as made:
        assert made == "/dev/null"
    assert len(list(tmp_path.iterdir())) == 2
