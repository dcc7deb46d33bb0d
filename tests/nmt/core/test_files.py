"""nmt.core.files: a file is replaced whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from nmt.core.errors import InputError
from nmt.core.files import append, make_directory, replace_atomically


def test_new_content_appears_at_the_end_of_the_block(tmp_path: Path) -> None:
    target = tmp_path / "out.txt"
    target.write_text("old")
    with replace_atomically(target) as file:
        file.write("grün\n")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_bytes() == "grün\n".encode()
    assert os.listdir(tmp_path) == ["out.txt"]


def test_a_failure_leaves_the_old_content_and_no_other_file(tmp_path: Path) -> None:
    target = tmp_path / "out.bin"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replace_atomically(target, "wb") as file:
        file.write(b"new")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.bin"]


def test_permissions_are_those_of_an_ordinary_new_file(tmp_path: Path) -> None:
    (tmp_path / "ordinary").write_text("")
    with replace_atomically(tmp_path / "replaced") as file:
        file.write("x")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_permissions_of_a_file_stay_and_its_name_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nobody else may read the temporary file."""
    flushed: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(os.readlink(f"/proc/self/fd/{file}")))
    (tmp_path / "own").write_text("")
    for mode in (0o600, 0o444, 0o200):
        (tmp_path / "own").chmod(mode)
        with replace_atomically(tmp_path / "own") as file:
            assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
            file.write("x")
        assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == mode
        assert ".own." in flushed[-2] and flushed[-1] == str(tmp_path)


def test_a_missing_directory_is_the_users_error(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="no/file.txt: cannot be written"),
        replace_atomically(tmp_path / "no/file.txt"),
    ):
        pass


def test_other_modes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a'"), replace_atomically(tmp_path / "file", "a"):
        pass


def test_make_directory(tmp_path: Path) -> None:
    assert make_directory(tmp_path / "a" / "b").is_dir()
    assert make_directory(str(tmp_path / "a" / "b")).is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file: the directory cannot be made"):
        make_directory(tmp_path / "file")


def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with replace_atomically(tmp_path / "link") as file:
        file.write("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "new"


def test_a_device_stays_a_device() -> None:
    with replace_atomically("/dev/null") as file:
        file.write("x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_pipe_is_written_to_by_name_and_without_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "named")
    named, (unnamed, end) = os.open(tmp_path / "named", os.O_RDWR), os.pipe()
    for reader, path in ((named, tmp_path / "named"), (unnamed, f"/dev/fd/{end}")):
        with replace_atomically(path) as file:
            file.write("grün\n")
        assert os.read(reader, 99) == "grün\n".encode(), path
    for descriptor in (named, unnamed, end):
        os.close(descriptor)
    assert stat.S_ISFIFO(os.stat(tmp_path / "named").st_mode)


def test_append(tmp_path: Path) -> None:
    for text in ("grün\n", "b\n"):
        append(tmp_path / "log", text)
    assert (tmp_path / "log").read_bytes() == "grün\nb\n".encode()


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    told = pytest.raises(InputError, match=r"out.txt: cannot be written \(No space left.*free or choose")
    with told, replace_atomically(tmp_path / "out.txt"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    reason = r"/dev/full: cannot be written \(No space left.*free or choose"
    with pytest.raises(InputError, match=reason), replace_atomically("/dev/full") as file:
        file.write("x")
    with pytest.raises(InputError, match=reason):
        append("/dev/full", "x")


def test_the_error_of_another_file_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"), replace_atomically(tmp_path / "out.txt"):
        (tmp_path / "missing").read_text()
