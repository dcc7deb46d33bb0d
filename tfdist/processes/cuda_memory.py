"""Memory that a GPU reads by itself: the driver pins it, so that TensorFlow's copies to the device need no other.

From memory that is not pinned the driver copies through a buffer of its own, at a seventh of the pace (one H200: 717 MB
in 105 ms, pinned in 15). What it needs is in the driver's library, which TensorFlow has loaded wherever it uses a GPU;
without one nothing is loaded here, and no context is made on a device that TensorFlow does not use.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from typing import Any

import numpy as np

_DRIVER = "libcuda.so.1"
_LEAST_BYTES = 1 << 16  # less of it the driver takes along with the call
_PORTABLE = 1  # CU_MEMHOSTREGISTER_PORTABLE: pinned for every context of the process


def pin(memory: np.ndarray) -> bool:
    """Have the driver pin an array's memory until the array, and all views of it, are gone.

    Args:
      memory: uint8 [bytes], the owner of its memory.

    Returns:
      Whether it is pinned: it is large, this process uses a GPU, and the driver allows it.
    """
    driver = _driver() if memory.nbytes >= _LEAST_BYTES else None
    context = _context_in_use(driver) if driver else None
    if driver is None or context is None:
        return False
    start, size_bytes = ctypes.c_void_p(memory.ctypes.data), ctypes.c_size_t(memory.nbytes)
    if not _in_context(driver, context, driver.cuMemHostRegister_v2, start, size_bytes, _PORTABLE):
        return False
    # At the process's end the driver sees to it.
    weakref.finalize(memory, _in_context, driver, context, driver.cuMemHostUnregister, start).atexit = False
    return True


@functools.cache
def _loaded() -> Any:
    return ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def _driver() -> Any:
    """The library, if this process has loaded it; else None."""
    try:
        return _loaded()
    except OSError:
        return None


def _context_in_use(driver: Any) -> ctypes.c_void_p | None:
    """The first device's primary context that is in use: TensorFlow computes in these."""
    count = ctypes.c_int(0)
    if driver.cuDeviceGetCount(ctypes.byref(count)):
        return None
    for number in range(count.value):
        device, flags, active = ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)
        if driver.cuDeviceGet(ctypes.byref(device), number) or driver.cuDevicePrimaryCtxGetState(
            device, ctypes.byref(flags), ctypes.byref(active)
        ):
            continue
        context = ctypes.c_void_p()
        if active.value and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
            driver.cuDevicePrimaryCtxRelease_v2(device)  # it stays TensorFlow's
            return context
    return None


def _in_context(driver: Any, context: ctypes.c_void_p, call: Any, *arguments: Any) -> bool:
    """Call the driver in a context; whether it has worked."""
    before = ctypes.c_void_p()
    if driver.cuCtxPushCurrent_v2(context):
        return False
    try:
        return not call(*arguments)
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(before))
