"""Hosts on one machine: namespaces for network, processes, shared memory, names and mounts, joined by a bridge.

Each host has its own host name, address, ``/dev/shm``, ``/etc/hosts`` and ``sshd``. It shares the other files with the
machine. No namespace has a name outside, so the kernel removes all of them when this process ends in any way. Needs
root, and the packages openssh-server, openssh-client, iproute2 and util-linux.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster import switch
from tests.cluster.folder import Folder, Service
from tests.launch import ROOT, Finished, run

_TOOLS = ("unshare", "nsenter", "ip", "tc", "ssh", "ssh-keygen", "/usr/sbin/sshd")
_READY_SECONDS = 20.0
_NAMESPACES = ("-n", "-u", "-i", "-m", "-p")
_PR_SET_PDEATHSIG = 1


@functools.cache
def obstacle() -> str:
    """Return the reason why no hosts can be made here; empty if they can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (scripts/test --cluster installs them on Debian)"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--mount", "--fork", "true"], capture_output=True, text=True, check=False
    )
    return f"namespaces are refused: {tried.stderr.strip()}" if tried.returncode else ""


def address(number: int) -> str:
    """Return the IP address of a host."""
    return f"10.77.0.{number}"


class Hosts(Service):
    """Hosts ``node1``, ``node2``, ... as long as the context is open.

    Args:
      count: number of hosts.
      rate: bandwidth of each link in both directions, as ``tc`` writes it (``1gbit``); None: no limit.
      delay_seconds: one-way delay between each two hosts.
    """

    def __init__(self, count: int, rate: str | None = None, delay_seconds: float = 0.0) -> None:
        self.names = [f"node{number}" for number in range(1, count + 1)]
        self._rate = rate
        self._delay_seconds = delay_seconds
        self._folder = Folder("tfdist-hosts-")
        self._kept = self._folder.path
        # Open MPI's daemons name their files by process number, and the hosts have the same process numbers.
        self._daemons_files = self._kept / "daemons"
        self._outer: dict[str, subprocess.Popen[bytes]] = {}
        self._first: dict[str, int] = {}  # host name -> process number, on this machine, of the host's process 1

    def start(self) -> None:
        """See ``Service``."""
        self._keys()
        self._outer["bridge"] = _namespace(["--net"], ["sleep", "infinity"])
        _until(lambda: os.readlink(self._network("bridge")) != os.readlink("/proc/self/ns/net"), "the bridge")
        self._in_bridge("ip link add br0 type bridge")
        self._in_bridge("ip link set br0 up")
        for name in self.names:
            self._start(name)
        if self._delay_seconds:
            self._join_by_switch()
        else:
            self._join_by_bridge()
        for name in self.names:
            self._listen(name)
        self.limit(self._rate)

    def close(self) -> None:
        """End all processes of the hosts."""
        for name in list(self._first):
            self.destroy(name)
        for process in self._outer.values():
            process.kill()
            process.wait()
        self._outer.clear()
        self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """Folder that all hosts share: keys, ``ssh`` (mounted as ``~/.ssh``) and ``hosts`` (as ``/etc/hosts``)."""
        return self._kept

    @property
    def first_processes(self) -> Mapping[str, int]:
        """Process number, on this machine, of process 1 of each host."""
        return self._first

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host, as a user who is logged in there."""
        there = ["nsenter", "-t", str(self._first[name]), *_NAMESPACES, f"-w{Path.cwd()}", "--"]
        return [*there, "env", self._daemons_setting(), *command]

    def run(
        self, name: str, command: Sequence[str], timeout_seconds: float, environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Run a command on a host, in the project's root."""
        # with_children: the host outlives the command, so nothing else would end the command's children.
        return run(self.command(name, command), timeout_seconds, environment, with_children=True)

    def job(
        self,
        ranks: Mapping[str, int],
        arguments: Sequence[str],
        timeout_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """Run ``python arguments`` with ``tfdist-run`` on the first host; ``ranks`` has each host's number of ranks."""
        hosts = ",".join(f"{name}:{count}" for name, count in ranks.items())
        command = [sys.executable, "-m", "tfdist.launch.command", "-H", hosts, sys.executable, *arguments]
        return self.run(next(iter(ranks)), command, timeout_seconds, environment)

    def limit(self, rate: str | None, name: str | None = None) -> None:
        """Limit the bandwidth of all links, or of one host's link; rate None removes the limit."""
        for number, host in enumerate(self.names, 1):
            if name not in (None, host):
                continue
            ends = [(host, "eth0")] if self._delay_seconds else [(host, "eth0"), ("bridge", f"port{number}")]
            for within, device in ends:
                self._ip(within, f"tc qdisc del dev {device} root", check=False)
                if rate:
                    self._ip(within, f"tc qdisc add dev {device} root tbf rate {rate} burst 256k latency 100ms")

    def link(self, name: str, up: bool) -> None:
        """Disconnect a host from the network, or connect it again."""
        self._in_bridge(f"ip link set port{self.names.index(name) + 1} {'up' if up else 'down'}")

    def destroy(self, name: str) -> None:
        """Kill all processes of a host at once; the other hosts get no message."""
        os.kill(self._first.pop(name), signal.SIGKILL)
        self._outer.pop(name).wait()

    def processes(self, name: str, words: str) -> list[int]:
        """Return the numbers, on this machine, of a host's processes with these words in their command lines."""
        own = os.readlink(f"/proc/{self._first[name]}/ns/pid")
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    inside = os.readlink(entry / "ns" / "pid") == own
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if inside and words in line:
                    found.append(int(entry.name))
        return sorted(found)

    def bytes_sent(self, name: str) -> int:
        """Return the number of bytes that a host's interface has sent so far, from the kernel's counter."""
        lines = Path(f"/proc/{self._first[name]}/net/dev").read_text().splitlines()
        return next(int(line.split()[9]) for line in lines if line.split()[0] == "eth0:")

    def _daemons_setting(self) -> str:
        return f"PRTE_MCA_prte_tmpdir_base={self._daemons_files}"

    def _keys(self) -> None:
        ssh = self._kept / "ssh"
        ssh.mkdir(mode=0o700)
        for key in (ssh / "id_ed25519", self._kept / "host"):
            _call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)])
        shutil.copy(ssh / "id_ed25519.pub", self._kept / "authorized")
        kind, public = (self._kept / "host.pub").read_text().split()[:2]
        numbered = list(enumerate(self.names, 1))
        (ssh / "known_hosts").write_text("".join(f"{name},{address(n)} {kind} {public}\n" for n, name in numbered))
        (self._kept / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{address(n)} {name}\n" for n, name in numbered)
        )
        (self._kept / "sshd_config").write_text(
            f"HostKey {self._kept}/host\nAuthorizedKeysFile {self._kept}/authorized\nPermitRootLogin yes\n"
            "StrictModes no\nUsePAM no\nPidFile none\nMaxStartups 100\n"
            f"SetEnv {self._daemons_setting()}\n"
        )
        self._daemons_files.mkdir()
        Path("/run/sshd").mkdir(exist_ok=True)

    def _start(self, name: str) -> None:
        home = Path.home() / ".ssh"
        begin = (
            f"hostname {name}; mount --bind {self._kept}/hosts /etc/hosts; mount -t tmpfs -o size=1g tmpfs /dev/shm; "
            f"mount -t tmpfs -o size=1g tmpfs {self._daemons_files}; "
            f"mkdir -p {home}; mount --bind {self._kept}/ssh {home}; ip link set lo up; exec sleep infinity"
        )
        kinds = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        outer = self._outer[name] = _namespace(kinds, ["sh", "-c", begin])
        _until(lambda: _children(outer.pid), f"{name}'s first process")
        self._first[name] = _children(outer.pid)[0]
        _until(lambda: _name(self._first[name]) == "sleep", f"{name}'s mounts")

    def _join_by_bridge(self) -> None:
        for number, name in enumerate(self.names, 1):
            self._in_bridge(f"ip link add port{number} type veth peer name eth0 netns {self._first[name]}")
            self._in_bridge(f"ip link set port{number} master br0 up")

    def _join_by_switch(self) -> None:
        pids = map(str, self._first.values())
        command = [sys.executable, "-m", "tests.cluster.switch", str(self._delay_seconds), *pids]
        process = self._outer["switch"] = _ends_with_this(command, stdout=subprocess.PIPE)
        assert process.stdout
        if process.stdout.readline().strip() != switch.READY.encode():
            raise RuntimeError("the switch has not begun: is there a /dev/net/tun?")

    def _listen(self, name: str) -> None:
        number = self.names.index(name) + 1
        self._ip(name, f"ip addr add {address(number)}/24 dev eth0")
        self._ip(name, "ip link set eth0 up")
        _call(self.command(name, ["/usr/sbin/sshd", "-f", f"{self._kept}/sshd_config"]))

    def _network(self, name: str) -> str:
        return f"/proc/{self._first.get(name) or self._outer[name].pid}/ns/net"

    def _in_bridge(self, command: str) -> None:
        self._ip("bridge", command)

    def _ip(self, name: str, command: str, check: bool = True) -> str:
        # The network alone: what is called is the machine's.
        sysfs = ["-m"] if name in self._first else []
        target = str(self._first.get(name) or self._outer[name].pid)
        return _call(["nsenter", "-t", target, "-n", *sysfs, *command.split()], check)


def _namespace(kinds: Sequence[str], command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process in namespaces of its own."""
    # stderr: unshare complains of a signal mask that some kernels do not have.
    return _ends_with_this(["unshare", *kinds, *command], stderr=subprocess.DEVNULL)


def _ends_with_this(
    command: Sequence[str], stdout: int = subprocess.DEVNULL, stderr: int | None = None
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)

    def end_with_parent() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        preexec_fn=end_with_parent,
        start_new_session=True,
    )


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _until(happens: object, what: str) -> None:
    assert callable(happens)
    deadline = time.monotonic() + _READY_SECONDS
    while not happens():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} is not there after {_READY_SECONDS:.0f} s")
        time.sleep(0.02)


def _call(command: Sequence[str], check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
