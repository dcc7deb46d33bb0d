"""The hosts of cluster tests: nothing is left when their process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cluster import hosts
from tests.launch import ROOT

pytestmark = [pytest.mark.long("several hosts"), pytest.mark.skipif(bool(hosts.obstacle()), reason=hosts.obstacle())]

_PROGRAM = """
import time
from tests.cluster.hosts import Hosts
with Hosts(2) as two:
    print(two.folder, *two.first_processes.values(), flush=True)
    time.sleep(100)
"""


def test_nothing_is_left_when_their_process_is_killed() -> None:
    program = subprocess.Popen([sys.executable, "-c", _PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert program.stdout
    folder, *pids = program.stdout.readline().split()
    assert Path(folder).is_dir() and all(Path(f"/proc/{pid}").exists() for pid in pids)
    os.kill(program.pid, signal.SIGKILL)
    program.wait()
    deadline = time.monotonic() + 10
    left = [folder, *(f"/proc/{pid}" for pid in pids)]
    while any(Path(path).exists() for path in left):
        assert time.monotonic() < deadline, [path for path in left if Path(path).exists()]
        time.sleep(0.05)
