"""Scripts for IBM's DDL: ``DDL_OPTIONS``, the import, and its callbacks in tf_keras, which averages no metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun
from tests.tfdist.sgd_step import STEP

SETTINGS = {"TFDIST_STALL_SECONDS": "10", "TFDIST_STALL_ABORT_SECONDS": "60"}
LONG = pytest.mark.long("core/test_ddl_options.py has which engine each letter means")
LOOP = (
    """
import numpy as np
import tensorflow as tf
import tfdist as ddl

weights = tf.Variable(np.zeros(70_000, np.float32))
"""
    + STEP
    + """
LATE
for _ in range(4):
    step(tf.fill([70_000], float(ddl.rank())))
np.testing.assert_allclose(weights.numpy(), 0.5 * (1 - 0.5**4), rtol=1e-6)
"""
)


@pytest.mark.parametrize(
    ("options", "said", "never"),
    [
        (
            "-mode p -dbg_level 2 -dump_iter 2",
            ["milliseconds a step", "rank 1: average of gradients (Variable:0), step 4, ", " of it waiting"],
            ["here"],
        ),
        pytest.param("-mode m:2 -dbg_level 1", [": 1 exchange a step (through MPI)"], ["waiting"], marks=LONG),
        pytest.param("-mode r:2", ["-mode r:2: here this is TensorFlow's ring"], ["measured"], marks=LONG),
        pytest.param("-mode n", ["-mode n: here this is NCCL where each rank has a GPU"], ["waiting"], marks=LONG),
    ],
)
def test_each_option_does_its_job(tmp_path: Path, options: str, said: list[str], never: list[str]) -> None:
    path = tmp_path / "script.py"
    path.write_text(LOOP.replace("LATE", ""))
    finished = mpirun(2, [str(path)], 120, {**SETTINGS, "DDL_OPTIONS": options})
    assert finished.code == 0, finished.errors[-6000:]
    assert all(words in finished.errors for words in said), finished.errors
    assert not any(words in finished.errors for words in never), finished.errors


def test_the_import_is_without_callbacks_and_one_process_is_a_job() -> None:
    program = """
import sys
import tfdist as ddl
assert "tfdist.ddl_keras" not in sys.modules
ddl.init("-mode r:1x1")
assert (ddl.rank(), ddl.size(), ddl.local_rank(), ddl.num_hosts()) == (0, 1, 0, 1)
assert [float(value) for value in ddl.allreduce_n([1.0, 2.0], "sum")] == [1, 2]
assert ddl.grads_reduce([(None, "v")]) == [(None, "v")]
assert float(ddl.bcast(3.0)) == 3
assert issubclass(ddl.DDLCallback, sys.modules["keras"].callbacks.Callback)
assert issubclass(ddl.DDLGlobalVariablesCallback, sys.modules["keras"].callbacks.Callback)
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
