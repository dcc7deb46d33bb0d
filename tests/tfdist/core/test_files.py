"""A file is written whole or not at all, and nobody else's names or folders are touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launch import ROOT
from tfdist.core.files import whole


def write(path: Path, text: str = "new") -> None:
    with whole(str(path)) as made:
        Path(made).write_text(text)


def test_nobody_else_can_reach_a_file_in_the_making(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    places = set()
    for content in ("first", "second"):
        with whole(str(tmp_path / "model.keras")) as made:
            assert os.stat(os.path.dirname(made)).st_mode & 0o777 == 0o700
            assert os.path.basename(made) == "model.keras" and not os.path.exists(made), "writers look at both"
            places.add(made)
            Path(made).write_text(content)
        assert (tmp_path / "model.keras").read_text() == content and len(list(tmp_path.iterdir())) == 1
    assert len(places) == 2


def test_a_mode_stays_and_a_link_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "private.h5", tmp_path / "link.h5"
    link.symlink_to("private.h5")
    before = os.umask(0o027)
    write(target)
    os.umask(before)
    assert target.stat().st_mode & 0o777 == 0o640
    target.chmod(0o600)
    write(link, "by the link")
    assert link.is_symlink() and target.read_text() == "by the link" and target.stat().st_mode & 0o777 == 0o600


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write(tmp_path / "model.h5", "old")
    with pytest.raises(KeyboardInterrupt), whole(str(tmp_path / "model.h5")) as made:
        Path(made).write_text("half")
        raise KeyboardInterrupt
    assert (tmp_path / "model.h5").read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_the_content_is_on_disk_before_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []  # the links of what is written to disk: a file before its rename, then its folder
    monkeypatch.setattr(os, "fsync", lambda file: done.append(len(os.listdir(tmp_path))))
    write(tmp_path / "x")
    assert done == [1, 2]


def test_two_jobs_that_write_one_path(tmp_path: Path) -> None:
    """Each version of the file is one job's."""
    texts = [letter * 100_000 for letter in "abcd"]
    write(tmp_path / "all.keras", texts[0])

    def job(text: str) -> None:
        for _ in range(20):
            with whole(str(tmp_path / "all.keras")) as made, open(made, "w", buffering=10_000) as file:
                file.writelines([text[:10_000]] * 10)

    with ThreadPoolExecutor() as pool:
        jobs = [pool.submit(job, text) for text in texts]
        while not all(one.done() for one in jobs):
            assert (tmp_path / "all.keras").read_text() in texts
    assert len(list(tmp_path.iterdir())) == 1


def age(path: Path, hours: float) -> None:
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (time.time() - hours * 3600,) * 2, follow_symlinks=False)


def test_what_a_killed_save_leaves_goes_after_an_hour(tmp_path: Path) -> None:
    write(tmp_path / "model.keras", "old")
    code = (
        f"import os\nfrom tfdist.core.files import whole\nwith whole({str(tmp_path / 'model.keras')!r}) as made:\n"
        "    open(made, 'w').write('half')\n    os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == -9
    (rest,) = tmp_path.glob(".tfdist-*")
    assert (tmp_path / "model.keras").read_text() == "old" and (rest / "model.keras").read_text() == "half"
    for hours_of_file, hours_of_folder, stays in ((0.9, 0.9, True), (0, 2, True), (1.1, 1.1, False)):
        age(rest, hours_of_folder)
        age(rest / "model.keras", hours_of_file)
        write(tmp_path / "other.keras")
        assert rest.exists() == stays


def test_a_file_that_stays_open_for_long_is_no_rest(tmp_path: Path) -> None:
    """As an HDF5 file to which a script adds a number in each epoch."""
    with whole(str(tmp_path / "history.h5")) as made:
        Path(made).write_text("long")
        age(Path(made).parent, 9)
        write(tmp_path / "other.keras")
    assert (tmp_path / "history.h5").read_text() == "long" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "change",
    ["chown 65534 $0", "chmod 770 $0", "mkdir $0/more", "ln -s x $0/more", "mv $0 .tfdist-mine", "mv $0 a; ln -s a $0"],
)
def test_what_is_not_a_rest_stays(tmp_path: Path, change: str) -> None:
    if "chown" in change and os.geteuid():
        pytest.skip("only root can give files away")
    rest = tmp_path / ".tfdist-abcdefgh"
    rest.mkdir(0o700)
    (rest / "model.keras").write_text("half")
    subprocess.run(["sh", "-ec", change, rest.name], cwd=tmp_path, check=True)
    age(tmp_path, 8)
    before = set(tmp_path.rglob("*"))
    write(tmp_path / "model.keras")
    assert set(tmp_path.rglob("*")) == before | {tmp_path / "model.keras"}


def test_what_is_no_file_is_written_itself(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), str(tmp_path), "/dev/null"):
        with whole(path) as made:
            assert made == path
    assert len(list(tmp_path.iterdir())) == 1
