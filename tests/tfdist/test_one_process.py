"""Without a launcher: nothing is installed unless steps are accumulated, nothing of MPI is loaded, and calls work."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfdist
from tests.launch import ROOT
from tests.multirank import inside


@pytest.mark.parametrize("name", tfdist.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(tfdist, name))


def test_every_call_works() -> None:
    assert (tfdist.rank(), tfdist.size(), tfdist.local_rank(), tfdist.local_size()) == (0, 1, 0, 1)
    assert tfdist.shard([1, 2, 3]) == [1, 2, 3]
    assert tfdist.broadcast("x") == "x"
    np.testing.assert_array_equal(tfdist.all_reduce(np.ones(3)), np.ones(3))
    tfdist.barrier()
    with tfdist.alone("nothing"), tfdist.disable_broadcast():
        assert not inside.broadcasts()
    assert inside.broadcasts()
    assert tfdist.scale_learning_rate(0.1, warmup_steps=5) == 0.1
    tfdist.uninstall()


@pytest.mark.parametrize(("value", "op", "said"), [(1.0, "median", "'sum', 'mean'"), (3, "mean", "op='sum'")])
def test_refusals(value: object, op: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tfdist.all_reduce(value, op)


def test_nothing_is_installed_and_no_mpi_is_loaded() -> None:
    program = """
import sys
from typing import Any
import tensorflow as tf
before = tf.compat.v1.Session.run, tf.compat.v1.train.Optimizer.apply_gradients, sys.excepthook
import tfdist
assert before == (tf.compat.v1.Session.run, tf.compat.v1.train.Optimizer.apply_gradients, sys.excepthook)
assert "mpi4py" not in sys.modules
with tf.Graph().as_default() as graph:
    w = tf.compat.v1.get_variable("w", [2])
    tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(w))
    tf.compat.v1.global_variables_initializer()
    assert not [op for op in graph.get_operations() if "PyFunc" in op.type or "tfdist" in op.name]
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)


@pytest.fixture
def without_tensorflow(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which importing TensorFlow fails, because the import takes seconds."""
    (tmp_path / "tensorflow.py").write_text("raise ImportError('tensorflow is imported')\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}


def test_what_needs_no_tensorflow(tmp_path: Path, without_tensorflow: dict[str, str]) -> None:
    def said(*arguments: str, **more: str) -> str:
        environment = without_tensorflow | more
        done = subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        return f"{done.returncode}: {done.stdout}{done.stderr}"

    assert said("-m", "tfdist", "trace", f"{tmp_path}/none").startswith("2: python -m tfdist trace:")
    assert said("-c", "import tfdist; print(tfdist.rank(), tfdist.shard('abc'))") == "0: 0 abc\n"
    assert "is TFDIST_ENGINE meant?" in said("-c", "import tfdist", TFDIST_ENGIN="mpi")
    mistaken = said("-c", "import os, tfdist", TFDIST_BUCKET_MB="-1", PMI_RANK="0", PMI_SIZE="2")
    assert "TFDIST_BUCKET_MB" in mistaken and "tensorflow is imported" not in mistaken


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("DistributedOptimizer", r"Horovod's names are in tfdist\.horovod and tfdist\.horovod\.keras"),
        ("allreduce", "is all_reduce meant"),
        ("all_reduced", "is all_reduce meant"),
        ("Rank", "is rank meant"),
        ("broadcast_variable", "is broadcast_variables meant"),
        ("something_else", "no attribute 'something_else'"),
    ],
)
def test_a_name_that_is_none_tells_which_is_meant(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(tfdist, name)
    assert not hasattr(tfdist, name) and name not in dir(tfdist)


def test_half_precision_brings_no_exchange_until_a_setting_does() -> None:
    program = """
import tensorflow as tf
import tfdist
def made():
    with tf.Graph().as_default() as graph:
        w = tf.compat.v1.get_variable("w", [2, 2])
        tf.compat.v1.train.GradientDescentOptimizer(1.0).minimize(tf.reduce_sum(tf.ones([3, 2]) @ w))
        return {op.type for op in graph.get_operations()}
assert "Cast" in made() and "PyFunc" not in made()
tfdist.configure(accumulate_steps=2)
assert {"Cast", "PyFunc"} < made()
tfdist.configure(accumulate_steps=1, mixed_precision="none")
assert "Cast" not in made() and tf.compat.v1.train.Optimizer.apply_gradients.__module__.startswith("tensorflow")
"""
    environment = {**os.environ, "TFDIST_MIXED_PRECISION": "bf16"}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True, timeout=120)


def test_steps_are_accumulated_as_by_several_processes() -> None:
    program = """
import numpy as np
import tensorflow as tf
import tfdist
v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    x = v1.placeholder(tf.float32, [])
    w = v1.get_variable("w", [], initializer=v1.zeros_initializer())
    count = v1.train.get_or_create_global_step()
    step = v1.train.GradientDescentOptimizer(1.0).minimize(w * x, global_step=count)
    session.run(v1.global_variables_initializer())
    for number, expected in ((1.0, 0.0), (3.0, -2.0), (5.0, -2.0)):
        session.run(step, {x: number})
        np.testing.assert_allclose(session.run(w), expected)
    assert session.run(count) == 1
raise ValueError("at the end")
"""
    environment = {**os.environ, "TFDIST_ACCUMULATE_STEPS": "2"}
    command = [sys.executable, "-c", program]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 1 and finished.stderr.endswith("\nValueError: at the end\n"), finished.stderr
