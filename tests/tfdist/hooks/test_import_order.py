"""Names that a script has bound before it imports tfdist are patched too, and each function is patched only once."""

from __future__ import annotations

from pathlib import Path

import pytest

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


KERAS = """
import keras, numpy as np, tensorflow as tf
from tensorflow.python.autograph.core import config
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from keras.src.backend.tensorflow import trainer
class Own(keras.optimizers.SGD):
    def apply(self, *args, **kwargs):
        return super().apply(*args, **kwargs)
keras.utils.set_random_seed(3)
model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
model.compile(Own(1.0), "mse")
holders = [keras.optimizers.Optimizer, *keras.optimizers.Optimizer.__mro__, Own, keras.Model, *keras.Model.__mro__,
    trainer.TFEpochIterator, tf.GradientTape, ConcreteFunction, *tf.Variable.__subclasses__(), config,
    tf.compat.v1.Session, *tf.compat.v1.Session.__mro__, tf.compat.v1.train.Optimizer]
holders += [c for h in list(holders) if isinstance(h, type) and h is not object for c in h.__subclasses__()]
def attributes():
    return [dict(vars(h)) for h in holders]
before = attributes()

import tfdist
assert any(a != b for a, b in zip(before, attributes()))
rank = tfdist.rank()
model.fit(np.full([4, 2], rank), np.zeros([4, 1]), batch_size=4, verbose=0)
weights = [np.asarray(w).tolist() for w in model.get_weights()]
assert tfdist.broadcast(weights) == weights

tfdist.uninstall()
for holder, was, now in zip(holders, before, attributes()):
    names = {n for n in was.keys() | now.keys() if n[:4] != "_abc" and n != "__annotations__"}
    changed = {n for n in names if was.get(n) is not now.get(n)}
    assert not changed, (holder, changed)
print("fine")
"""


@pytest.mark.long("the hooks are the same as of what is imported last")
def test_imported_after_keras_and_its_model_and_taken_away(tmp_path: Path) -> None:
    assert_fine(tmp_path / "script.py", KERAS)
