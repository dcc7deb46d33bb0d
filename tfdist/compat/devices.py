"""Devices: whether TensorFlow has listed them. This module works before TensorFlow's import and does not import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def devices_are_known(modules: Mapping[str, Any]) -> bool:
    """Return whether TensorFlow has listed the machine's devices. Then environment variables for devices come too late
    (tensorflow/python/eager/context.py).

    Args:
      modules: the imported modules, by name.
    """
    found = getattr(modules.get("tensorflow.python.eager.context"), "_context", None)
    return getattr(found, "_physical_devices", None) is not None
