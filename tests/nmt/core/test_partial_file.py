"""nmt.core.partial_file: finished work is kept for the same job; the file appears when all work is finished."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.core.partial_file import partial_file

KILLED = """
import os, signal, sys
from nmt.core.partial_file import partial_file
with partial_file(sys.argv[1], "work") as output:
    output.add("grün\\n", 2)
    output.add("zwei\\n", 3)
    output._file.write(b"half a pie")
    output._file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the path of a file that a process was writing when it was killed, with 3 done."""
    path = tmp_path / "new" / "out"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert sorted(os.listdir(path.parent)) == ["out.lock", "out.part", "out.part.json"]
    return path


def test_what_a_killed_process_has_done_is_gone_on_with(killed: Path) -> None:
    with partial_file(killed, "work") as output:
        assert (output.done, output.notice) == (3, f"continuing {killed}.part")
        output.add("drei\n", 4)
        assert not killed.exists()
        output.complete()
    assert killed.read_text() == "grün\nzwei\ndrei\n"
    assert os.listdir(killed.parent) == ["out"]


def test_another_work_is_begun_anew(killed: Path) -> None:
    with partial_file(killed, "other work") as output:
        assert output.done == 0 and "begun with another input, model or options" in output.notice
        output.add("x\n", 1)
        output.complete()
    assert killed.read_text() == "x\n"


@pytest.mark.parametrize("damage", ["{", '{"done": 3, "bytes": 99999, "work": "work"}', "[]"])
def test_a_damaged_record_is_begun_anew(killed: Path, damage: str) -> None:
    Path(f"{killed}.part.json").write_text(damage)
    with partial_file(killed, "work") as output:
        assert output.done == 0 and "starting again" in output.notice


def test_a_failure_keeps_what_is_done_and_nothing_where_nothing_is(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), partial_file(tmp_path / "new" / "out", "work"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []
    with pytest.raises(KeyboardInterrupt), partial_file(tmp_path / "out", "work") as output:
        output.add("a\n", 1)
        raise KeyboardInterrupt
    with partial_file(tmp_path / "out", "work") as output:
        assert output.done == 1


def test_one_process_at_a_time(tmp_path: Path) -> None:
    told = pytest.raises(InputError, match="out is in use by process .* choose another file")
    with partial_file(tmp_path / "out", "work"), told, partial_file(tmp_path / "out", "work"):
        pass


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        told = pytest.raises(InputError, match=r"out.part: cannot be written \(File too large\); free or choose")
        with told, partial_file(tmp_path / "out", "work") as output:
            output.add("a\n", 1)
            output.add("b" * 2000, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with partial_file(tmp_path / "out", "work") as output:
        assert output.done == 1
        output.add("b\n", 2)
        output.complete()
    assert (tmp_path / "out").read_text() == "a\nb\n"


def test_a_pipe_and_a_link(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with partial_file(f"/dev/fd/{writer}", "work") as output:
        output.add("grün\n", 1)
        output.complete()
    assert os.read(reader, 99) == "grün\n".encode()
    os.close(reader)
    os.close(writer)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with partial_file(tmp_path / "link", "work") as output:
        output.add("x\n", 1)
        output.complete()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "x\n"


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Is a directory"), partial_file(tmp_path, "work"):
        pass
