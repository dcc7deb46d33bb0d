"""The doctor names what each host lacks: each of these hosts has a different fault."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy
import pytest

from tests.cluster import hosts
from tests.cluster.hosts import Hosts, address
from tests.launch import ROOT

pytestmark = [pytest.mark.long("several hosts"), pytest.mark.skipif(bool(hosts.obstacle()), reason=hosts.obstacle())]

PACKAGES = Path(numpy.__file__).parent.parent
COUNT = 17


@pytest.fixture(scope="module")
def many() -> Iterator[Hosts]:
    with Hosts(COUNT) as made:
        yield made


def shell(hosts: Hosts, name: str, text: str) -> None:
    """Run a shell script in a host's mount and network namespaces."""
    done = hosts.run(name, ["sh", "-ec", text], 20)
    assert done.code == 0, done.errors


def examined(hosts: Hosts, names: Sequence[str], *variables: str) -> dict[str, list[str]]:
    """Return the doctor's lines on each host, those that are not fine."""
    command = [sys.executable, "-m", "tfdist", "-H", ",".join(names)]
    done = hosts.run("node1", ["env", f"PYTHONPATH={ROOT}", *variables, *command], 120)
    assert done.code == 1, done.errors
    print(done.output)
    found: dict[str, list[str]] = {name: [] for name in names}
    for line in done.output.splitlines():
        state, name, said = line.split(maxsplit=2)
        found[name] += [f"{state} {said}"] if state != "OK" else []
    return found


def metadata(package: str) -> Path:
    return next(PACKAGES.glob(f"{package}-*.dist-info"))


def test_each_host_is_named_with_what_it_lacks(many: Hosts, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shell(
        many,
        "node2",
        f"""
        sed 's/^Version: .*/Version: 1.0/' {metadata("numpy")}/METADATA > {tmp_path}/METADATA
        mount --bind {tmp_path}/METADATA {metadata("numpy")}/METADATA""",
    )
    shell(many, "node3", f"mount -t tmpfs tmpfs {metadata('tensorflow')}")
    shell(many, "node4", f"mount -t tmpfs tmpfs {PACKAGES}/mpi4py")
    kept = " ".join(str(path) for path in (many.folder, ROOT, tmp_path) if Path("/tmp") in path.parents)
    shell(
        many,
        "node7",
        f"""
        mount --bind /tmp /mnt
        mount -t tmpfs -o size=100k tmpfs /tmp
        for path in {kept}; do mkdir -p $path; mount --bind /mnt/${{path#/tmp/}} $path; done
        dd if=/dev/zero of=/tmp/full bs=1k 2> /dev/null || true""",
    )
    links = " ".join(str(path) for path in PACKAGES.glob("__editable__*.pth"))
    hide = f"mount -t tmpfs tmpfs {ROOT}/tfdist"  # (below ROOT the environment may be, too)
    shell(many, "node8", f"for file in {links}; do mount --bind /dev/null $file; done; {hide}")
    known = many.folder / "ssh" / "known_hosts"
    keys = [line for line in known.read_text().splitlines() if not line.startswith(("node9,", "node10,"))]
    another = (many.folder / "ssh" / "id_ed25519.pub").read_text().split()[1]
    known.write_text("\n".join([*keys, f"node10,{address(10)} ssh-ed25519 {another}"]) + "\n")
    many.link("node11", up=False)
    for number, line in ((12, "127.0.1.1 node1"), (13, "")):
        table = (many.folder / "hosts").read_text().replace(f"{address(1)} node1\n", f"{line}\n")
        (tmp_path / f"hosts{number}").write_text(table)
        shell(many, f"node{number}", f"mount --bind {tmp_path}/hosts{number} /etc/hosts")
    shell(many, "node14", f"ip route add unreachable {address(6)}")
    shell(many, "node15", "kill $(pgrep -xo sshd)")
    python = shutil.which("python")
    assert python
    shell(many, "node16", f"mount -t tmpfs tmpfs {Path(python).parent}")
    shell(many, "node17", "mount -t tmpfs -o size=1m tmpfs /dev/shm")

    found = examined(many, [*many.names, "nowhere.invalid"])

    expected = {
        "node2": r"FIX it has NumPy 1\.0 \(here: \d.*\): install the same versions on all hosts",
        "node3": r"FIX it has TensorFlow none \(here: 2\..*\): install the same versions on all hosts",
        "node4": r"FIX it has MPI library none \(here: .*",
        "node7": r"NOTE temporary files: .*No space left on device.*",
        "node8": r"FIX its doctor does not run \(exit code 1: .*No module named tfdist.*\): install tfdist there",
        "node9": r"FIX node9: cannot be reached \(Host key verification failed.*; try 'ssh node9 true' by hand, .*",
        "node10": r"FIX node10: cannot be reached \(WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!.*",
        "node11": r"FIX node11: cannot be reached \(ssh: .*",
        "node12": r"FIX way to node1: the host takes node1 for itself \(127\.0\.1\.1\): give node1 its own address .*",
        "node13": r"FIX way to node1: the name is not known there: put it into /etc/hosts or DNS",
        "node14": r"FIX way to node6: there is none \(10\.77\.0\.6: No route to host\): look at routes .*",
        "node15": r"FIX node15: cannot be reached \(.*Connection refused\).*",
        "node16": r"FIX .*/python is not there: install the same environment under this path \(.*\)",
        "node17": r"NOTE shared memory: .* MiB free in /dev/shm.*",
        "nowhere.invalid": r"FIX nowhere.invalid: cannot be reached \(.*Could not resolve hostname .*",
    }
    for host, words in expected.items():
        assert any(re.fullmatch(words, line) for line in found[host]), (host, found[host])
    assert not [line for line in found["node1"] + found["node5"] if line.startswith("FIX")]


def test_interfaces_and_a_folder(many: Hosts, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    shell(many, "node1", "ip link add fast0 type bridge")
    shell(many, "node5", f"mount -t tmpfs tmpfs {tmp_path}")
    command = [sys.executable, "-m", "tfdist", "-H", "node1,node5,node6"]
    done = many.run("node1", ["env", "-C", str(work), f"PYTHONPATH={ROOT}", "FI_TCP_IFACE=fast0", *command], 60)
    assert done.code == 1, done.errors
    assert f"node5            {work} is not there: start where all hosts have the same folder" in done.output
    assert "node6            it has no network interface fast0 (FI_TCP_IFACE), but lo, eth0: name one" in done.output
