"""SIGTERM: all ranks agree to stop."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from nmt.core.ranks import OneProcess
from nmt.train.stopping import StopBySignal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_this_process(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with contextlib.closing(StopBySignal(OneProcess())) as stop:
        assert not stop.asked()
        os.kill(os.getpid(), number)
        assert stop.asked() and stop.asked()
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_ends_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with contextlib.closing(StopBySignal(OneProcess())) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.asked() and signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) == before
    assert capfd.readouterr().err.count("a second one ends at once") == 1


def test_a_signal_to_another_rank() -> None:
    class Two(OneProcess):
        size = 2

        def asked_to_stop(self) -> bool:
            return True

    with contextlib.closing(StopBySignal(Two())) as stop:
        assert stop.asked()


def test_what_was_asked_before_is_forgotten() -> None:
    ranks = OneProcess()
    ranks.ask_to_stop()
    with contextlib.closing(StopBySignal(ranks)) as stop:
        assert not stop.asked()
