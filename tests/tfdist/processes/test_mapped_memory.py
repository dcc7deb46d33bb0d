"""Memory that other processes map: its contents are shared, it needs no file later, and it is freed with its views."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfdist.processes import mapped_memory
from tfdist.processes.mapped_memory import TABLE_NUMBERS, MappedMemory, Memory

_CHILD = """
import sys
import numpy as np
from tfdist.processes.mapped_memory import MappedMemory
table = np.array([int(number) for number in sys.argv[2:]])
memory = MappedMemory([int(sys.argv[1])], [table], 1).map(0, 0)
memory[:3] += 1
"""


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tfdist")


def test_another_process_writes_it() -> None:
    memory = Memory(4096)
    memory.array[:3] = 4, 5, 6
    command = [sys.executable, "-c", _CHILD, str(os.getpid()), *map(str, memory.published)]
    subprocess.run(command, check=True, timeout=60)
    assert memory.array[:4].tolist() == [5, 6, 7, 0]


def test_it_is_there_until_its_last_view_is_gone_and_keeps_no_file() -> None:
    before, files = mappings(), len(os.listdir("/proc/self/fd"))
    memory = Memory(1 << 16)
    peer = MappedMemory([os.getpid()], [np.array(memory.published)], 1)
    mapped = peer.map(0, 0)
    memory.close()
    memory.close()
    assert mappings() == before + 2
    assert len(os.listdir("/proc/self/fd")) == files
    part = memory.array[64:].view(np.float32)
    del memory
    mapped[64:68] = np.array([2.0], np.float32).view(np.uint8)
    assert part[0] == 2
    del mapped
    assert mappings() == before + 1
    del part
    assert mappings() == before


def test_staging_grows_and_is_mapped_once() -> None:
    tables = [np.zeros(TABLE_NUMBERS, np.int64) for _ in range(2)]
    ours, theirs = (MappedMemory([os.getpid()] * 2, tables, index) for index in range(2))
    first = ours.staging(4096)
    assert ours.staging(100) is first
    ours.publish(0, first)
    seen = theirs.staged(0, 0)
    ours.withdraw()
    assert theirs.staged(0, 0) is seen  # although the file is closed
    first.array[9] = 9
    assert seen[9] == 9
    larger = ours.staging(8192)
    ours.publish(0, larger)
    assert theirs.staged(0, 0).nbytes == 8192


def test_what_is_not_there_is_said() -> None:
    peer = MappedMemory([os.getpid()], [np.array([999_999, 1, 64])], 1)
    with pytest.raises(OSError, match="999999"):
        peer.map(0, 0)
    with pytest.raises(OSError, match="cannot be mapped"):
        mapped_memory._map(-1, 64, filled=True)


class _Everyone:
    """A channel of two ranks, where the other rank is the same process."""

    def __init__(self, *theirs: Any) -> None:
        self._theirs = list(theirs)

    def all_gather_object(self, value: Any, place: str) -> list[Any]:
        other = self._theirs.pop(0)
        return [value, value if other is None else other]


def test_the_ranks_try_it_before_they_use_it() -> None:
    assert not mapped_memory.obstacle(_Everyone(None, None), (0, 1), 0)
    other = Memory(16)
    of_another_container = os.getpid(), other.file, b"1234567890123456"
    assert "belongs to another process" in mapped_memory.obstacle(_Everyone(of_another_container, ""), (0, 1), 0)
    assert "No such file" in mapped_memory.obstacle(_Everyone((os.getpid(), 999_999, b""), ""), (0, 1), 0)
    assert mapped_memory.obstacle(_Everyone((0, 0, b"no memfd"), ""), (0, 1), 0) == "no memfd"
    assert mapped_memory.obstacle(_Everyone(None, "theirs failed"), (0, 1), 0) == "theirs failed"
    assert not mapped_memory.obstacle(_Everyone((os.getpid(), 999_999, b""), ""), (0,), 0)  # on another machine


def test_another_processes_file_is_not_mapped(tmp_path: Path) -> None:
    """The file may be empty, and then a read ends the process by SIGBUS."""
    with (tmp_path / "empty").open("w+") as file:
        other = os.getpid(), file.fileno(), b"1234567890123456"
        assert "belongs to another process" in mapped_memory.obstacle(_Everyone(other, ""), (0, 1), 0)
    of_another_job = Memory(8)
    with pytest.raises(OSError, match="belongs to another process"):
        mapped_memory.mapped(os.getpid(), of_another_job.file, 1 << 20)
