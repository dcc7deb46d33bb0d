"""The doctor's command: alone, as ranks, where the start fails, and in a process that is limited like a container."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, Finished, mpirun, run
from tfdist.doctor import command
from tfdist.launch import launchers
from tfdist.launch.hosts import Host, LaunchError

# Installs a filter (seccomp(2)) that refuses process_vm_readv and process_vm_writev of x86-64, and runs a command.
FILTERED = """
import ctypes, os, struct, sys
code = b"".join(struct.pack("HBBI", *line) for line in (
    (0x20, 0, 0, 0),            # the number of the call
    (0x15, 2, 0, 310), (0x15, 1, 0, 311),
    (0x06, 0, 0, 0x7FFF0000),   # allow
    (0x06, 0, 0, 0x00050001),   # EPERM
))
memory = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(memory)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execvp(sys.argv[1], sys.argv[1:])
"""


def doctor(*arguments: str, **variables: str) -> Finished:
    return run([sys.executable, "-m", "tfdist", *arguments], 150, variables)


def states(text: str) -> dict[str, str]:
    """Return the state of each check."""
    lines = [line for line in text.splitlines() if line.startswith(("OK ", "NOTE ", "FIX "))]
    return {line[6:22].strip(): line.split()[0] for line in lines}


def test_alone() -> None:
    finished = doctor()
    assert finished.code == 0, finished
    found = states(finished.output)
    assert found["import order"] == found["MPI"] == found["two ranks"] == found["TensorFlow"] == "OK", finished.output
    assert "TFDIST_BUCKET_MB" in finished.output


def test_ranks() -> None:
    # The launcher gives each rank a part of the processors.
    bound = {"HYDRA_BINDING": "core"}
    finished = mpirun(2, ["-m", "tfdist"], 100, {**bound, "TFDIST_BUCKET_MB": "5", "DDL_OPTIONS": "-mode p"})
    assert finished.code == 0, finished
    found = states(finished.output)
    assert found["self-test"] == found["clocks"] == found["versions"] == found["ranks"] == "OK", finished.output
    for words in ("2 ranks on one node", "TFDIST_BUCKET_MB"):
        assert words in finished.output, finished.output
    assert finished.output.count("OK    MPI  ") == 1, "a line is printed once"
    assert found["processors"] == "OK" or len(os.sched_getaffinity(0)) < 2, finished.output
    assert "\nDDL_OPTIONS  " in finished.output, "each setting has the name of its variable"


def test_what_must_be_mended_is_told_without_a_traceback(tmp_path: Path) -> None:
    """The checks run where the import of tfdist would fail."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('broken')")
    for variables, what, told in (
        ({"TFDIST_BUKET_MB": "3"}, "settings", "is TFDIST_BUCKET_MB meant?"),
        ({"KERAS_BACKEND": "jax"}, "settings", "KERAS_BACKEND=tensorflow"),
        ({"MPI4PY_LIBMPI": "/nowhere/libmpi.so"}, "MPI", "pip install 'tfdist[mpich]'"),
        ({"PYTHONPATH": f"{tmp_path}:{ROOT}"}, "two ranks", "TensorFlow cannot be imported (broken)"),
        ({"HYDRA_HOST_FILE": "/nope"}, "two ranks", "HYDRA_HOST_FILE names /nope: this hostfile cannot be read"),
    ):
        finished = doctor(**variables)
        assert finished.code == 1 and "Traceback" not in finished.errors, finished
        assert states(finished.output)[what] == "FIX" and told in finished.output, finished.output


def printed(*arguments: str) -> int:
    return command.main(arguments, ())


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed("--help") == 0 and capsys.readouterr().out.startswith("usage: python -m tfdist\n")
    for word in ("trac", "-v"):
        assert printed(word) == 2
        said = capsys.readouterr()
        assert said.out == "" and f"{word!r} is no command and no option" in said.err


def test_options_of_ddl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Alone the doctor shows the settings that ranks would have, and what it ignores."""
    monkeypatch.setenv("DDL_OPTIONS", "-mode m:4 -dump_iter 7 -foo")
    monkeypatch.setattr(command, "_trial", lambda facts: ())
    assert printed() == 0
    said = capsys.readouterr().out
    assert "NOTE  DDL_OPTIONS      -foo: without a meaning here" in said and "job of 4" not in said
    assert re.search(r"^TFDIST_ENGINE +mpi +DDL_OPTIONS", said, re.MULTILINE)
    assert re.search(r"^TFDIST_WAIT_TABLE +7 +DDL_OPTIONS", said, re.MULTILINE)


def test_a_trial_stays_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hostfile of the environment would send the trial's ranks to other hosts."""
    (tmp_path / "hosts").write_text("far:2\n")
    monkeypatch.setenv("HYDRA_HOST_FILE", str(tmp_path / "hosts"))
    plans: list[launchers.Plan] = []

    def refused(launcher: launchers.Launcher, plan: launchers.Plan) -> list[str]:
        plans.append(plan)
        raise LaunchError("enough")

    monkeypatch.setattr(launchers, "command_line", refused)
    facts = {**launchers.facts_here(sys.executable), "interfaces": ["lo"]}
    assert [finding.told for finding in command._trial(facts)] == ["enough"]
    assert plans[0].hosts == (Host("localhost", 2),)
    if "Open MPI" not in facts["mpi"]:
        monkeypatch.setenv("HYDRA_IFACE", "nosuch")
        (finding,) = command._trial(facts)
        assert "has no network interface nosuch (HYDRA_IFACE), but lo" in finding.told


def test_a_reader_that_has_enough() -> None:
    line = f"{sys.executable} -m tfdist | head -1"
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("OK") and done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr, done.stderr


@pytest.mark.long("a minute; test_machine.py has what the doctor finds, and processes/ has each limit")
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can make such limits")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the filter has x86-64's numbers")
def test_limits_of_a_container(tmp_path: Path) -> None:
    """Own users and processes, no ptrace, 64 MB of /dev/shm, no home: a job runs, and the doctor tells the remedies."""
    (tmp_path / "filtered.py").write_text(FILTERED)
    (tmp_path / "train.py").write_text(
        "import tensorflow as tf, tfdist\n"
        "weight = tf.Variable(float(tfdist.rank()))\n"
        "with tf.GradientTape() as tape:\n    loss = weight * (tfdist.rank() + 1.0)\n"
        "tf.keras.optimizers.SGD(1.0).apply_gradients([(tape.gradient(loss, weight), weight)])\n"
        "import os\nos.write(1, f'weight {weight.numpy()}\\n'.encode())\n"
    )
    # (Open MPI needs a home: its mpirun says so, the doctor too, and tfdist-run gives it one.)
    train = f"tfdist-run -n 2 python {tmp_path}/train.py"
    commands = f"HOME={tmp_path} python -m tfdist; echo code $?; {train}; echo code $?; python -m tfdist | grep home"
    inside = (
        "mount -t tmpfs -o size=64m tmpfs /dev/shm && unset HOME && "
        f"exec {sys.executable} {tmp_path}/filtered.py sh -c '{commands}'"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", inside],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = states(done.stdout.partition("code")[0])
    assert done.stdout.count("code 0") == 2, done.stdout + done.stderr
    assert found["shared memory"] == "NOTE" and "FIX" not in found.values(), done.stdout
    assert "--shm-size=1g" in done.stdout
    assert done.stdout.count("weight -1.5") == 2, done.stdout + done.stderr
    assert "export HOME=$(mktemp -d)" in done.stdout or "this MPI needs none" in done.stdout
