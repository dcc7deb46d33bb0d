"""launch.run ends programs that do not end, whatever processes they have started."""

from __future__ import annotations

import time

import pytest

from tests import launch


@pytest.mark.parametrize("with_children", [True, False])
def test_what_holds_the_pipes_does_not_hold_the_test(with_children: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that is ended leaves a child, which is ended too or left alone."""
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.5)
    start = time.monotonic()
    finished = launch.run(["sh", "-c", "echo begun; sleep 20 & wait"], 1, with_children=with_children)
    assert finished.code is None and time.monotonic() - start < 15
    assert (finished.output == "begun\n") is with_children
    assert ("keeps its pipes open" in finished.errors) is not with_children
