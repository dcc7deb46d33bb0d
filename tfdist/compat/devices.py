"""Devices: whether TensorFlow knows them. Asked before TensorFlow is imported, too, which this does not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def devices_are_known(modules: Mapping[str, Any]) -> bool:
    """Whether TensorFlow has looked for the machine's devices: what the environment says of them comes too late then
    (tensorflow/python/eager/context.py).

    Args:
      modules: those that are imported.
    """
    found = getattr(modules.get("tensorflow.python.eager.context"), "_context", None)
    return getattr(found, "_physical_devices", None) is not None
