"""Faults of a host's installation are reported before the start: in one job, each host has a different fault."""

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
from tests.launch import ROOT, Finished
from tfdist.launch import host_check

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


def refused(hosts: Hosts, names: Sequence[str], script: Path, *variables: str) -> Finished:
    command = [sys.executable, "-m", "tfdist.launch.command", "-H", ",".join(names), "python", str(script)]
    done = hosts.run("node1", ["env", *variables, *command], 90)
    assert done.code == 2, done.errors
    return done


def metadata(package: str) -> Path:
    return next(PACKAGES.glob(f"{package}-*.dist-info"))


def test_each_host_is_named_with_what_it_lacks(many: Hosts, tmp_path: Path) -> None:
    script = tmp_path / "job" / "train.py"
    script.parent.mkdir()
    script.write_text("print('never')\n")
    (tmp_path / "other.py").write_text("print('another')\n")
    shell(
        many,
        "node2",
        f"""
        sed 's/^Version: .*/Version: 1.0/' {metadata("numpy")}/METADATA > {tmp_path}/METADATA
        mount --bind {tmp_path}/METADATA {metadata("numpy")}/METADATA""",
    )
    shell(many, "node3", f"mount -t tmpfs tmpfs {metadata('tensorflow')}")
    shell(many, "node4", f"mount -t tmpfs tmpfs {PACKAGES}/mpi4py")
    shell(many, "node5", f"mount -t tmpfs tmpfs {script.parent}")
    shell(many, "node6", f"mount --bind {tmp_path}/other.py {script}")
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

    done = refused(many, [*many.names, "nowhere.invalid"], script)

    told = [line.removeprefix("tfdist-run: ") for line in done.errors.splitlines() if line.startswith("tfdist-run:")]
    lines = [line for line in told if not line.startswith("waiting for")]  # on a busy machine
    print("\n".join(lines))
    here = re.escape(str(script))
    expected = {
        "node2": r".* has NumPy 1\.0 \(here: \d.*\) there; install the same versions on all machines",
        "node3": r".* has TensorFlow none \(here: 2\..*\) there; install the same versions on all machines",
        "node4": r".* has MPI library none: .*mpi4py.* \(here: .*\) there; install the same versions .*",
        "node5": rf"{here} is not there; copy it, or put it into a folder that all share",
        "node6": rf"{here} is not the same there as here; copy it, or put it into a folder that all share",
        "node7": r"nothing can be written to /tmp \(No space left on device\); delete something there",
        "node8": r".* has tfdist none \(here: .*\) there; install the same versions on all machines",
        "node9": r"cannot be reached: its host key is not known here \(.*\); log in once by hand \('ssh node9'\) .*",
        "node10": r"cannot be reached: its host key has changed \(.*\); .*'ssh-keygen -R node10'.*",
        "node11": r"cannot be reached: there is no way to it \(ssh: .*\); look whether it is on and its network .*",
        "node12": r"takes node1 for itself \(127\.0\.1\.1\), and its ranks would .*; give node1 this machine's .*",
        "node13": r"does not know the name node1, by which its ranks are to find this machine; put it into .* there",
        "node14": r"there is no way to node6 \(10\.77\.0\.6: No route to host\); look at routes and firewalls: .*",
        "node15": r"cannot be reached: no ssh server listens there \(.*\); start sshd there, or leave node15 out",
        "node16": r".*/python is not there \(.*\); install the same environment under this path on all machines",
        "node17": r"nothing can be written to /dev/shm \(No space left on device\); delete something there",
        "nowhere.invalid": r"cannot be reached: this name does not resolve here \(.*\); correct it, or put it into .*",
    }
    if "Open MPI" in host_check.facts_here(sys.executable)["mpi"]:  # ranks find each other by addresses
        del expected["node12"], expected["node13"]
    back = next(line for line in lines if line.startswith("node6: there is no way to node14"))  # the answer's way
    lines.remove(back)
    assert [line.partition(": ")[0] for line in lines] == list(expected)
    for line in lines:
        host, _, said = line.partition(": ")
        assert re.fullmatch(expected[host], said), line
    assert done.seconds < 60


def test_interfaces_and_names_of_this_machine(many: Hosts, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('never')\n")
    table = (many.folder / "hosts").read_text()
    (tmp_path / "hosts").write_text(f"{table}127.0.1.1 other\n")
    shell(many, "node1", f"mount --bind {tmp_path}/hosts /etc/hosts; ip link add fast0 type bridge")
    done = refused(many, ["node1", "node14", "other"], script, "FI_TCP_IFACE=fast0")
    assert "node14: has no network interface fast0 (FI_TCP_IFACE), but lo, eth0; name one that all" in done.errors
    assert "other: is 127.0.1.1 here, which is this machine itself; correct /etc/hosts or DNS" in done.errors
    assert "tfdist-run: node1:" not in done.errors


def test_a_working_directory_without_room_or_missing(many: Hosts, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('never')\n")
    work = tmp_path / "work"
    work.mkdir()
    shell(many, "node5", f"mount -t tmpfs -o size=100k tmpfs {work}; dd if=/dev/zero of={work}/full bs=1k || true")
    shell(many, "node6", f"mount -t tmpfs tmpfs {tmp_path}; touch {script}")
    command = [sys.executable, "-m", "tfdist.launch.command", "-H", "node1,node5,node6", "python", str(script)]
    done = many.run("node1", ["env", "-C", str(work), *command], 60)
    assert done.code == 2, done.errors
    assert f"node5: nothing can be written to {work} (No space left on device); delete something there" in done.errors
    assert f"node6: {work} is not there; start where all machines have the same folder, or make it there" in done.errors
    assert f"node6: {script} is not the same there as here" in done.errors
