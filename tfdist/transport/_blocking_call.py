"""Blocking call: one that has no request of MPI's, as something to wait for."""

from __future__ import annotations

import threading


class BlockingCall:
    """A blocking call as a request."""

    def __init__(self) -> None:
        self.returned = threading.Event()

    def Test(self) -> bool:  # noqa: N802 (as mpi4py.MPI.Request)
        return self.returned.is_set()
