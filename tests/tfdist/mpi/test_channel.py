"""Requests of MPI whose messages move only while they are tested."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from tfdist.mpi._channel import _Driven


class Cells:
    """A request that moves one cell in each test, as MPICH's messages do where it may not read other memory."""

    def __init__(self, cells: int) -> None:
        self.left = cells

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        self.left -= 1
        return self.left <= 0


def test_messages_of_many_cells_need_few_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    microseconds = itertools.count()  # each look at the clock takes one
    monkeypatch.setattr("tfdist.mpi._channel.time", SimpleNamespace(monotonic=lambda: 1e-6 * next(microseconds)))
    request, naps = Cells(100_000), 0
    driven = _Driven(request)
    while not driven.Test():
        naps += 1
    assert naps < 1000
