"""Page-locked memory, which a GPU reads directly, with a fake driver that records its calls."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tfdist.processes import cuda_memory


class Driver:
    """A fake CUDA driver with devices, of which some are in use."""

    def __init__(self, active: tuple[bool, ...], refuses: bool = False) -> None:
        self.active, self.refuses = active, refuses
        self.contexts: list[Any] = []
        self.registered: dict[int, int] = {}
        self.retained = 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.active)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:  # noqa: N802
        device._obj.value = number
        return 0

    def cuDevicePrimaryCtxGetState(self, device: Any, flags: Any, active: Any) -> int:  # noqa: N802
        active._obj.value = int(self.active[device.value])
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        assert self.active[device.value]
        self.retained += 1
        context._obj.value = 100 + device.value
        return 0

    def cuDevicePrimaryCtxRelease_v2(self, device: Any) -> int:  # noqa: N802
        self.retained -= 1
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:  # noqa: N802
        self.contexts.pop()
        return 0

    def cuMemHostRegister_v2(self, start: Any, size_bytes: Any, flags: int) -> int:  # noqa: N802
        assert self.contexts == [101]
        if self.refuses:
            return 2
        self.registered[start.value] = size_bytes.value
        return 0

    def cuMemHostUnregister(self, start: Any) -> int:  # noqa: N802
        assert self.contexts == [101]
        ctypes.string_at(start.value, self.registered[start.value])  # the memory still exists
        del self.registered[start.value]
        return 0


def use(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Driver:
    monkeypatch.setattr(cuda_memory, "_loaded", lambda: driver)
    return driver


def test_is_pinned_until_the_last_view_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = use(monkeypatch, Driver((False, True)))
    memory = np.zeros(1 << 20, np.uint8)
    start = memory.ctypes.data
    assert cuda_memory.pin(memory)
    assert driver.registered == {start: 1 << 20}
    part = memory[64:128].view(np.float32)[4:]
    del memory
    assert driver.registered
    del part
    assert not driver.registered
    assert driver.contexts == []
    assert driver.retained == 0


@pytest.mark.parametrize("driver", [Driver(()), Driver((False, False)), Driver((False, True), refuses=True)])
def test_without_a_device_in_use_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    use(monkeypatch, driver)
    assert not cuda_memory.pin(np.zeros(1 << 20, np.uint8))
    assert not driver.registered
    assert driver.contexts == []


def test_little_memory_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Driver((False, True)))
    assert not cuda_memory.pin(np.zeros(4096, np.uint8))


def test_without_its_library_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_memory._loaded.cache_clear()
    monkeypatch.setattr(cuda_memory, "_DRIVER", "libno-such-driver.so.1")
    assert not cuda_memory.pin(np.zeros(1 << 20, np.uint8))
