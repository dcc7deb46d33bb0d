"""A warning is logged, in every style, if all ranks train on the same data, and not if each has its own data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch import mpirun

SCRIPT = """
import sys
import keras
import numpy as np
import tensorflow as tf
import tfdist
style, own = sys.argv[1], sys.argv[2] == "own"
random = np.random.default_rng(0)
x = random.normal(size=[256, 5]).astype("float32")
y = x @ np.ones([5, 1], "float32")
share = tfdist.shard if own else lambda data: data
v1 = tf.compat.v1
class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4
    def __getitem__(self, number):
        rows = slice(number, None, 8)
        return share(x)[rows], share(y)[rows]
def fit(*data, **more):
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*data, epochs=3, verbose=0, **more)
dataset = tf.data.Dataset.from_tensor_slices((x, y))
if style == "fit":
    fit(share(x), share(y))
elif style == "dataset":
    fit(share(dataset).shuffle(256).batch(16).prefetch(2))
elif style == "batches":
    fit(Batches(), shuffle=False)
elif style == "session":
    with tf.Graph().as_default(), v1.Session() as session:
        a, b = v1.placeholder(tf.float32, [None, 5]), v1.placeholder(tf.float32, [None, 1])
        w = v1.get_variable("w", [5, 1])
        train = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((a @ w - b) ** 2))
        session.run(v1.global_variables_initializer())
        for _ in range(4):
            session.run(train, {a: share(x), b: share(y)})
else:
    w, optimizer = tf.Variable(tf.zeros([5, 1])), keras.optimizers.SGD(0.1)
    def step(a, b):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((a @ w - b) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    step = tf.function(step) if style == "function" else step
    for a, b in share(dataset).batch(64):
        step(a, b)
"""
SEEDS = """
import sys
import numpy as np
import tensorflow as tf
import tfdist
random = np.random.default_rng(3 + tfdist.rank() * (sys.argv[1] == "other"))
x = tfdist.shard({"x": random.permutation(64).astype("float32"), "files": [f"{n}" for n in range(64)]})["x"]
w = tf.Variable(0.0)
optimizer = tf.keras.optimizers.SGD(0.1)
for number in range(3):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((w - x[number]) ** 2)
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
"""
TOLD = "and so train on the same data, it seems"
LONG = pytest.mark.long("the same comparison")


@pytest.mark.parametrize(
    "style",
    ["dataset", *(pytest.param(one, marks=LONG) for one in ("session", "function", "eager", "fit", "batches"))],
)
def test_the_same_data_on_all_ranks(tmp_path: Path, style: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for whose, times in (("everyone's", 1), ("own", 0)):
        finished = mpirun(2, [str(tmp_path / "script.py"), style, whose], 100)
        assert finished.code == 0, finished.errors
        assert finished.errors.count(TOLD) == times, (whose, finished.errors)


def test_other_data_to_be_shared_on_each_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SEEDS)
    for seeds, times in (("other", 1), ("the same", 0)):
        finished = mpirun(2, [str(tmp_path / "script.py"), seeds], 100)
        assert finished.code == 0, finished.errors
        assert finished.errors.count("tfdist.shard was given other data on each rank") == times, finished.errors
