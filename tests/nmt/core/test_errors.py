"""nmt.core.errors: the reason in an error, without the text that TensorFlow adds."""

from __future__ import annotations

import pytest

from nmt.core.errors import reason_of

IN_A_SESSION = """Graph execution error:

Detected at node 'save/SaveV2' defined at (most recent call last):
    File "<stdin>", line 9, in <module>
Node: 'save/SaveV2'
%s

Original stack trace for 'save/SaveV2':
  File "<stdin>", line 9, in <module>
"""


class Failed(Exception):
    """An error like TensorFlow's: `str` has more than the message."""

    def __init__(self, message: str) -> None:
        super().__init__("None", "None", message)
        self.message = message


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Failed(IN_A_SESSION % "/d/x; File too large\n\t [[{{node save/SaveV2}}]]"), "/d/x; File too large"),
        (
            Failed(IN_A_SESSION % "2 root error(s) found.\n  (0) DATA_LOSS: short\n\t [[{{node a}}]]\n  (1) DATA_LOSS"),
            "DATA_LOSS: short",
        ),
        (Failed("file is too short to be an sstable"), "file is too short to be an sstable"),
        (OSError(28, "No space left on device", "model/x"), "No space left on device: model/x"),
        (OSError("No space"), "No space"),
        (ValueError("\n first\nsecond"), "first"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_the_reason(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
