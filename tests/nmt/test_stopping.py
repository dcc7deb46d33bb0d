"""SIGTERM, and that all ranks agree on it."""

from __future__ import annotations

import contextlib
import os
import signal

import numpy as np

from nmt.ranks import OneProcess
from nmt.train.stopping import NoStop, StopBySignal


def test_a_signal_to_this_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with contextlib.closing(StopBySignal(OneProcess())) as stop:
        assert not stop.asked()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked() and stop.asked()
    assert signal.getsignal(signal.SIGTERM) == before
    assert not NoStop().asked()


def test_a_signal_to_another_rank() -> None:
    class Two(OneProcess):
        size = 2

        def sum(self, value: np.ndarray) -> np.ndarray:
            return value + 1

    with contextlib.closing(StopBySignal(Two())) as stop:
        assert stop.asked()
