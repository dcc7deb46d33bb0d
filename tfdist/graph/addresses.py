"""Addresses: the address and ports of this rank, and a check whether ranks can be reached."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Sequence

_SIOCGIFADDR = 0x8915  # linux/sockios.h: a network interface's IPv4 address
_LOOPBACK = "127.0.0.1"


def own_address(others: Sequence[str], interface: str = "") -> str:
    """Return the IPv4 address by which other hosts reach this one.

    Args:
      others: names of the other hosts; empty: there is only this machine.
      interface: name of the network interface (``eth0``); empty: the interface on the route to the others.

    Raises:
      OSError: there is no such interface, or it has no address.
    """
    if not others:
        return _LOOPBACK
    if interface:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    for name in others:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect((name, 9))  # (nothing is sent)
            found: str = way.getsockname()[0]
            if not found.startswith("127."):
                return found
    return socket.gethostbyname(socket.gethostname())


class Ports:
    """Ports that are reserved for this process, on all addresses of the machine, until they are used.

    TensorFlow's servers bind all addresses (tensorflow/core/distributed_runtime/rpc/grpc_server_lib.cc). A port that is
    reserved on one address can be taken on another one before the server starts.

    Args:
      count: number of ports.
      backlog: number of connections that may come before any is answered.

    Attributes:
      numbers: port numbers.
    """

    def __init__(self, count: int, backlog: int) -> None:
        self._kept = [_bound(0) for _ in range(count)]
        self.numbers: list[int] = [one.getsockname()[1] for one in self._kept]
        self._answering = [_bound(number) for number in self.numbers]
        for one in self._answering:
            one.listen(backlog)

    def stop_answering(self) -> None:
        """Stop listening, when the other ranks have tried to connect. The ports stay reserved."""
        for one in self._answering:
            one.close()


def _bound(number: int) -> socket.socket:
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.bind(("0.0.0.0", number))
    return one


def unreachable(addresses: Sequence[str], seconds: float) -> str:
    """Return the address and the error of the first one that does not answer, as text; empty if all answer.

    Args:
      addresses: host:port of each rank.
      seconds: timeout of each connection.
    """
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=seconds).close()
        except OSError as error:
            return f"{address}: {error}"
    return ""
