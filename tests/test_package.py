"""The package as pip sees it: contents of wheel and source archive, metadata; and an import without TensorFlow."""

from __future__ import annotations

import email
import email.message
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tfdist
from tests.launch import ROOT, mpirun, run
from tfdist.compat import versions


def files_of(*places: str) -> set[str]:
    """Return the files that git knows, or would know, below these places."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *places], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return {name for name in listed.stdout.splitlines() if (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the source archive, by suffix, built from a copy: a build writes into its source."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    for name in files_of():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.suffix: path for path in (folder / "dist").iterdir()}


@pytest.fixture(scope="module")
def metadata(archives: dict[str, Path]) -> email.message.Message:
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_the_wheel_has_each_module_and_data_file(archives: dict[str, Path]) -> None:
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == files_of("tfdist", "nmt")


def test_the_source_archive_has_the_tests_and_scripts(archives: dict[str, Path]) -> None:
    with tarfile.open(archives[".gz"]) as source:
        found = {name.partition("/")[2] for name in source.getnames()}
    assert files_of("tfdist", "nmt", "tests", "scripts", "setup.cfg", "pyproject.toml", "LICENSE", "README.md") <= found


def test_the_tools_of_the_index_accept_both(archives: dict[str, Path]) -> None:
    for command in (["twine", "check", "--strict", *archives.values()], ["check_wheel_contents", archives[".whl"]]):
        done = subprocess.run(
            [sys.executable, "-m", *map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_metadata(metadata: email.message.Message, archives: dict[str, Path]) -> None:
    assert metadata["Version"] == tfdist.__version__
    assert metadata["License"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    assert "# tfdist" in str(metadata.get_payload())
    with zipfile.ZipFile(archives[".whl"]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
        assert "tfdist-run = tfdist.launch.command:main" in wheel.read(name).decode()


def test_an_installation_leaves_tensorflow_as_it_is(metadata: email.message.Message) -> None:
    """pip would replace another TensorFlow, or install a second one over tensorflow-cpu, if it were a requirement."""
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(needed) > 3
    assert not [line for line in needed if re.match(r"tensorflow|tf.keras|keras", line)]


def test_the_bounds_of_tensorflow_stand_in_setup_cfg(metadata: email.message.Message) -> None:
    lines = [line for line in metadata.get_all("Requires-Dist", []) if line.startswith("tensorflow<")]
    assert lines and {versions.OLDEST in line and versions.NEWEST[:-1] in line for line in lines} == {True}


@pytest.mark.parametrize(
    ("version", "old", "new"),
    [
        ("2.15.1", True, False),
        ("2.16.1", True, False),
        ("2.16.2", False, False),
        ("2.17.0+nv24.10", False, False),
        ("2.21.0", False, False),
        ("2.22.0-rc0", False, False),
        ("2.23.0-dev20261101", False, True),
        ("3.0", False, True),
    ],
)
def test_versions(version: str, old: bool, new: bool) -> None:
    assert bool(versions.unsupported(version)) == old
    assert bool(versions.untested(version)) == new


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("raise ImportError('no such library')", "TensorFlow cannot be imported (no such library): pip install"),
        ("__version__ = '2.15.0'", "TensorFlow 2.15.0 is installed, and tfdist needs 2.16.2 or newer: pip install"),
    ],
)
def test_a_tensorflow_that_does_not_fit(tmp_path: Path, module: str, said: str) -> None:
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(module)
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    finished = mpirun(2, ["-c", "import tfdist; print('imported')"], 60, path)
    assert finished.code, finished
    assert finished.errors.count(said) == 1 and "Traceback" not in finished.errors
    assert "imported" not in finished.output


def test_no_tensorflow_and_nothing_that_comes_with_it() -> None:
    missing = "tensorflow", "ml_dtypes", "keras", "h5py", "google", "wrapt"
    hidden = f"import sys; sys.modules.update(dict.fromkeys({missing}))"
    finished = mpirun(2, ["-c", f"{hidden}; import tfdist"], 60)
    said = "TensorFlow cannot be imported (import of tensorflow halted; None in sys.modules): pip install"
    assert finished.code and finished.errors.count(said) == 1 and "Traceback" not in finished.errors, finished


def test_a_newer_tensorflow_is_remarked_once() -> None:
    program = (
        "import tensorflow as tf; tf.__version__ = '9.0.0'; import tfdist; "
        "tfdist.configure(larc='clip'); tfdist.configure(accumulate_steps=2)"
    )
    finished = run([sys.executable, "-c", program], 100)
    assert finished.code == 0 and finished.errors.count("TensorFlow 9.0.0 is newer than") == 1, finished
