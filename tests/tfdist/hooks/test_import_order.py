"""Names that a script has bound before it imports tfdist are patched too, and each function is patched only once."""

from __future__ import annotations

from pathlib import Path

from tests.launch import mpirun

SCRIPT = """
import tensorflow as tf
from tensorflow.compat.v1 import global_variables_initializer, variables_initializer
from tensorflow.compat.v1.train import GradientDescentOptimizer
v1 = tf.compat.v1
v1.disable_eager_execution()
class Own(GradientDescentOptimizer):
    def apply_gradients(self, *args, **kwargs):
        return super().apply_gradients(*args, **kwargs)
optimizer = Own(1.0)
attributes = v1.Session.run, v1.train.Optimizer.apply_gradients, Own.apply_gradients, v1.variables_initializer

import importlib
import tfdist
importlib.import_module("tfdist")

w = v1.get_variable("w", initializer=[float(tfdist.rank())])
step = optimizer.minimize(w * float(tfdist.rank()))
init = [global_variables_initializer(), variables_initializer([w])]
nodes = [op for op in v1.get_default_graph().get_operations() if "PyFunc" in op.type]
assert len(nodes) == 3, nodes
with v1.Session() as session:
    session.run(init[0])
    session.run(step)
    assert session.run(w) == [-0.5], session.run(w)

tfdist.uninstall()
tfdist.uninstall()
now = v1.Session.run, v1.train.Optimizer.apply_gradients, Own.apply_gradients, v1.variables_initializer
assert now == attributes
assert "__init_subclass__" not in vars(v1.train.Optimizer)
print("fine")
"""


def assert_fine(path: Path, script: str) -> None:
    path.write_text(script)
    finished = mpirun(2, [str(path)], 60)
    assert finished.code == 0, finished.errors
    assert finished.output.count("fine") == 2


def test_imported_last_and_twice_and_taken_away(tmp_path: Path) -> None:
    assert_fine(tmp_path / "script.py", SCRIPT)
