"""Versions: whether this machine's TensorFlow is one that tfdist supports.

TensorFlow is an extra of the package, not a requirement. Else pip would replace a TensorFlow that is there, such as
that of an NVIDIA container, or install a second one over ``tensorflow-cpu``.
"""

from __future__ import annotations

import re

OLDEST, NEWEST = "2.16.2", "2.22.0"  # setup.cfg has the same bounds


def unsupported(version: str) -> str:
    """Return why tfdist does not support this version of TensorFlow; empty if it does, or may do.

    Args:
      version: as in ``tensorflow.__version__``.
    """
    if _numbers(version) >= _numbers(OLDEST):
        return ""
    remedy = "pip install --upgrade 'tfdist[tensorflow]'"
    return f"TensorFlow {version} is installed, and tfdist needs {OLDEST} or newer: {remedy}"


def untested(version: str) -> str:
    """Return a remark on a version that is newer than those that were tested; empty otherwise."""
    if _numbers(version)[:2] <= _numbers(NEWEST)[:2]:
        return ""
    return f"TensorFlow {version} is newer than {NEWEST}, the last one with which tfdist was tested"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
