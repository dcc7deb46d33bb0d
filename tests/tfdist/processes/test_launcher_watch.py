"""The watch of a launcher: what a script does to its descriptors is not the launcher's end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from tests.launch import ROOT

RANK = """
import os, signal, sys, time
from tfdist.processes import launcher_watch
launcher_watch._LOOK_SECONDS = 0.2
watch = launcher_watch.LauncherWatch(0)
watch.start()
{does}
print("begun", flush=True)
time.sleep(1)
print(os.times().user < 20, flush=True)  # nothing turns in a circle
watch.look()
print("goes on", flush=True)
"""
DOES = {
    "closes all": "",
    "opens files then": "files = [open('/dev/zero') for _ in range(9)]",
    "gets our numbers": "read, write = os.pipe(); os.close(write); [os.dup2(read, n) for n in ours]",
}


def started(does: str) -> tuple[subprocess.Popen[str], socket.socket]:
    launcher, connection = socket.socketpair()
    environment = {**os.environ, "PMI_FD": str(connection.fileno()), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", RANK.format(does=does)]
    rank = subprocess.Popen(command, env=environment, pass_fds=[connection.fileno()], stdout=subprocess.PIPE, text=True)
    connection.close()
    return rank, launcher


@pytest.mark.parametrize("what", DOES)
def test_a_script_that_closes_unknown_descriptors(what: str) -> None:
    rank, launcher = started(f"ours = list(watch._ends); os.closerange(3, 4096); {DOES[what]}")
    with launcher:
        assert rank.communicate(timeout=60)[0] == "begun\nTrue\ngoes on\n" and rank.returncode == 0


def test_a_launcher_that_is_gone() -> None:
    rank, launcher = started("")
    assert rank.stdout and rank.stdout.readline() == "begun\n"
    launcher.close()
    assert rank.wait(30) == -signal.SIGTERM
    rank.stdout.close()
