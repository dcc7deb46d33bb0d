"""Reading and writing the memory of other processes."""

from __future__ import annotations

import os
import subprocess
import weakref

import numpy as np
import pytest

from tfdist.processes.process_memory import ProcessMemory, address


class TestPeers:
    """A process may read its own memory with the same calls."""

    def test_many_parts(self) -> None:
        table = np.zeros(2, np.int64)
        peers = ProcessMemory([os.getpid()], [table], 0)
        source, target = np.arange(3000, dtype=np.float32), np.zeros(3000, np.float32)
        peers.publish([source, target])
        assert peers.addresses(0).tolist() == [address(source), address(target)]
        order = np.arange(0, 3000, 2)  # more parts than one call takes
        parts = [np.stack([address(a) + 4 * order, np.full(len(order), 4)], axis=1) for a in (source, target)]
        peers.read(0, parts[0], parts[1], 4 * len(order))
        np.testing.assert_array_equal(target, np.where(np.arange(3000) % 2, 0, source))
        peers.write(0, source, address(target))
        np.testing.assert_array_equal(target, source)

    def test_what_is_published_lives_until_it_is_withdrawn(self) -> None:
        peers, array = ProcessMemory([os.getpid()], [np.zeros(1, np.int64)], 0), np.zeros(3)
        reference = weakref.ref(array)
        peers.publish([array])
        del array
        assert reference() is not None
        peers.withdraw()
        assert reference() is None

    def test_memory_that_is_not_there(self) -> None:
        peers = ProcessMemory([os.getpid()], [np.zeros(1, np.int64)], 0)
        with pytest.raises(OSError, match=rf"memory of process {os.getpid()}: Bad address"):
            peers.write(0, np.zeros(3), 8)

    def test_a_process_that_has_ended(self) -> None:
        child = subprocess.Popen(["true"])
        child.wait()
        with pytest.raises(OSError, match="No such process"):
            ProcessMemory([child.pid], [], 0).write(0, np.zeros(3), 8)
