"""CUDA copies: the bytes that this process copies between the host and its GPUs, counted by CUPTI's activity records.

Source: NVIDIA's CUPTI documentation, "CUPTI Activity API". The records are `CUpti_ActivityMemcpy` of cupti_activity.h.
Their first fields are the same in all versions: kind (uint32), kind of copy (uint8), three more bytes, bytes (uint64).
"""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARIES = "libcupti.so.12", "libcupti.so.13", "libcupti.so"
_MEMCPY = 1  # CUPTI_ACTIVITY_KIND_MEMCPY
_KINDS = {1: "to the GPU", 2: "from the GPU"}
_FLUSH_ALL = 1
_BUFFER_BYTES = 1 << 20
_Requested = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_Completed = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class Copies:
    """Counts from `start` to `stop`; make one object per process.

    Raises:
        OSError: CUPTI is not there, or refuses.
    """

    def __init__(self) -> None:
        self._cupti = _library()
        self._buffers: list[Any] = []
        self._found = dict.fromkeys(_KINDS.values(), 0)
        self._requested, self._completed = _Requested(self._give), _Completed(self._take)
        self._call("cuptiActivityRegisterCallbacks", self._requested, self._completed)

    def start(self) -> None:
        """Begin to count. The GPU must be idle."""
        self._found = dict.fromkeys(self._found, 0)
        self._call("cuptiActivityEnable", _MEMCPY)

    def stop(self) -> dict[str, int]:
        """Return the bytes since `start` by direction. The GPU must be idle."""
        self._call("cuptiActivityFlushAll", _FLUSH_ALL)
        self._call("cuptiActivityDisable", _MEMCPY)
        return dict(self._found)

    def _call(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._cupti, name)(*arguments):
            raise OSError(f"CUPTI: {name} failed with code {code}")

    def _give(self, buffer: Any, size: Any, records: Any) -> None:
        memory = ctypes.create_string_buffer(_BUFFER_BYTES + 8)
        self._buffers.append(memory)
        start = ctypes.addressof(memory)
        buffer[0], size[0], records[0] = start + -start % 8, _BUFFER_BYTES, 0

    def _take(self, context: Any, stream: int, buffer: int, size: int, valid: int) -> None:
        del context, stream, size
        record = ctypes.c_void_p(None)
        while not self._cupti.cuptiActivityGetNextRecord(
            ctypes.c_void_p(buffer), ctypes.c_size_t(valid), ctypes.byref(record)
        ):
            assert record.value is not None
            kind = ctypes.c_uint32.from_address(record.value).value
            way = _KINDS.get(ctypes.c_uint8.from_address(record.value + 4).value)
            if kind == _MEMCPY and way:
                self._found[way] += ctypes.c_uint64.from_address(record.value + 8).value


def _library() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError(f"no {_LIBRARIES[0]} here")
