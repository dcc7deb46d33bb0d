"""Log: standard streams that are closed, and which process writes."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from tfdist.core.log import log, occupy_standard_streams, set_log_prefix, write_last_message
occupy_standard_streams()
opened = open({path!r}, "w")
assert opened.fileno() > 2
for number in (1, 2):
    os.write(number, b"of a library")
set_log_prefix(0)
log("a line")
write_last_message("the last", forwarded=False)
opened.write("its own")
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str, tmp_path: object) -> None:
    path = f"{tmp_path}/opened"
    command = f'exec {closed}; exec "$0" -c "$1"'
    found = subprocess.run(["sh", "-c", command, sys.executable, SCRIPT.format(path=path)], timeout=60)
    assert found.returncode == 0
    with open(path) as file:
        assert file.read() == "its own"
