"""Scripts for IBM's DDL: ``DDL_OPTIONS``, the import, and its callbacks in tf_keras, which averages no metrics."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun
from tests.tfdist.sgd_step import STEP

SETTINGS = {"TFDIST_STALL_SECONDS": "10", "TFDIST_STALL_ABORT_SECONDS": "60"}
LONG = pytest.mark.long("core/test_ddl_options.py has which engine each letter means")
# As with Keras 2, which is tf.keras here. A child process inherits the options, too.
SCRIPT = """
import subprocess, sys
import numpy as np
import tensorflow as tf
import tfdist as ddl

ddl.init("-mode p:3x1")
if ddl.rank() == 0:
    subprocess.run([sys.executable, "-c", "import tfdist"], check=True)
tf.keras.utils.set_random_seed(ddl.rank())
model = tf.keras.Sequential([tf.keras.layers.Input([5]), tf.keras.layers.Dense(1)])
model.compile(tf.keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
expected = ddl.broadcast(model.get_weights())
random = np.random.RandomState(0)
x, y = random.randn(40, 5), random.randn(40, 1)
stop = tf.keras.callbacks.EarlyStopping("mae", patience=0, min_delta=1e9)
history = model.fit(
    ddl.shard(x), ddl.shard(y), 10, epochs=5, verbose=0,
    callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback(), stop],
).history
np.testing.assert_allclose(history["mae"], np.abs(model.predict(x, verbose=0) - y).mean(), rtol=1e-5)
assert len(history["mae"]) == 2 and ddl.broadcast(history) == history
for value, first in zip(model.get_weights(), expected):
    np.testing.assert_array_equal(value, first)
print("fine", flush=True)
"""


@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="tf_keras is not installed")
@pytest.mark.long("multirank/cases_ddl.py and cases_tf_keras.py have its parts")
def test_a_script_with_keras_2(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    given = {"TF_USE_LEGACY_KERAS": "1", "DDL_OPTIONS": "-mode p:2x1 -dev 0 -dbg_level 1"}
    finished = mpirun(2, [str(path)], 120, {**SETTINGS, **given})
    assert finished.code == 0, finished.errors[-6000:]
    assert finished.output.count("fine") == 2
    said = [line for line in finished.errors.splitlines() if "-mode" in line]
    assert len(said) == 2, finished.errors
    assert "DDL_OPTIONS: -dev 0: without a meaning here" in said[0]
    assert "ddl.init: -mode p:3x1 is for a job of 3 ranks, but this job has 2" in said[1]


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


@pytest.mark.long("core/test_ddl_options.py has its parts")
def test_options_of_init(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(LOOP.replace("LATE", 'ddl.init("-mode r:2 -dump_iter 3")'))
    finished = mpirun(2, [str(path)], 120, SETTINGS)
    assert finished.code == 0, finished.errors[-6000:]
    assert "too late for the engine collectives. Set DDL_OPTIONS before tfdist is imported" in finished.errors
    assert finished.errors.count("milliseconds a step") == 1


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
