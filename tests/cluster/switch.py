"""A network switch in user space that delays each frame: for kernels without ``sch_netem``.

    python -m tests.cluster.switch SECONDS PID...

Makes the interface ``eth0`` in the network namespace of each process. While it runs, it passes each frame to the other
interfaces after that many seconds. Frames may be as large as TCP makes them (64 KiB).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0  # linux/if_tun.h
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02 | 0x04  # checksums, and segments of TCP over IPv4 and IPv6
_HEADER_BYTES = 10  # struct virtio_net_hdr
_FRAME_BYTES = 70_000
_CLONE_NEWNET = 0x40000000
_SPIN_SECONDS = 1e-4  # before a frame is due: sleeping takes longer than that
READY = "ready"


def port(pid: int) -> int:
    """Make an interface in that process's network namespace and return the file descriptor of its other end."""
    libc, own = ctypes.CDLL(None, use_errno=True), os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    try:
        if libc.setns(theirs, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"the network of process {pid}")
        tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        request = struct.pack("16sH22x", b"eth0", _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR)
        fcntl.ioctl(tap, _TUNSETIFF, request)
        fcntl.ioctl(tap, _TUNSETOFFLOAD, _OFFLOADS)
    finally:
        libc.setns(own, _CLONE_NEWNET)
        os.close(own)
        os.close(theirs)
    return tap


class Switch:
    """Passes frames between ports.

    Args:
      ports: file descriptors that ``port`` returned.
      delay_seconds: delay of each frame.
    """

    def __init__(self, ports: list[int], delay_seconds: float) -> None:
        self._ports = ports
        self._delay_seconds = delay_seconds
        self._learnt: dict[bytes, int] = {}  # MAC address -> port
        self._under_way: deque[tuple[float, int, bytes]] = deque()

    def run(self) -> None:
        """Pass frames until this process is ended."""
        while True:
            wait = self._under_way[0][0] - time.monotonic() - _SPIN_SECONDS if self._under_way else 1.0
            for source in select.select(self._ports, [], [], max(0.0, wait))[0]:
                self._take(source)
            while self._under_way and self._under_way[0][0] <= time.monotonic():
                _, target, frame = self._under_way.popleft()
                self._give(target, frame)

    def _take(self, source: int) -> None:
        while True:
            try:
                frame = os.read(source, _FRAME_BYTES)
            except BlockingIOError:
                return
            due = time.monotonic() + self._delay_seconds
            to, sender = frame[_HEADER_BYTES : _HEADER_BYTES + 6], frame[_HEADER_BYTES + 6 : _HEADER_BYTES + 12]
            self._learnt[sender] = source
            known = self._learnt.get(to)
            targets = [p for p in self._ports if p != source] if known is None else [known]
            self._under_way += [(due, target, frame) for target in targets]

    @staticmethod
    def _give(target: int, frame: bytes) -> None:
        with contextlib.suppress(OSError):  # the port is down, or full: the frame is lost, as in a network
            os.write(target, frame)


if __name__ == "__main__":
    switch = Switch([port(int(pid)) for pid in sys.argv[2:]], float(sys.argv[1]))
    print(READY, flush=True)
    switch.run()
