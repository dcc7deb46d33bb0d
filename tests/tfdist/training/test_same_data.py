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
style = sys.argv[1]
random = np.random.default_rng(0)
x = random.normal(size=[256, 5]).astype("float32")
y = x @ np.ones([5, 1], "float32")
v1 = tf.compat.v1
def fit(*data, **more):
    model = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(*data, epochs=3, verbose=0, **more)
dataset = tf.data.Dataset.from_tensor_slices((x, y))
def train(share):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4
        def __getitem__(self, number):
            rows = slice(number, None, 8)
            return share(x)[rows], share(y)[rows]
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
            step = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean((a @ w - b) ** 2))
            session.run(v1.global_variables_initializer())
            for _ in range(4):
                session.run(step, {a: share(x), b: share(y)})
    else:
        w, optimizer = tf.Variable(tf.zeros([5, 1])), keras.optimizers.SGD(0.1)
        def step(a, b):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((a @ w - b) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        step = tf.function(step) if style == "function" else step
        for a, b in share(dataset).batch(64):
            step(a, b)
train(tfdist.shard)
tfdist.barrier()
if tfdist.rank() == 0:
    print("now everyone's", file=sys.stderr, flush=True)
train(lambda data: data)
"""
SEEDS = """
import sys
import numpy as np
import tensorflow as tf
import tfdist
for seed in (3, 3 + tfdist.rank()):
    w, optimizer = tf.Variable(0.0), tf.keras.optimizers.SGD(0.1)
    tfdist.barrier()
    if tfdist.rank() == 0:
        print("now", file=sys.stderr, flush=True)
    random = np.random.default_rng(seed)
    x = tfdist.shard({"x": random.permutation(64).astype("float32"), "files": [f"{n}" for n in range(64)]})["x"]
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
    finished = mpirun(2, [str(tmp_path / "script.py"), style], 100)
    assert finished.code == 0, finished.errors
    of_own, of_everyones = finished.errors.split("now everyone's")
    assert TOLD not in of_own and of_everyones.count(TOLD) == 1, finished.errors


def test_other_data_to_be_shared_on_each_rank(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SEEDS)
    finished = mpirun(2, [str(tmp_path / "script.py")], 100)
    assert finished.code == 0, finished.errors
    told = [part.count("tfdist.shard was given other data on each rank") for part in finished.errors.split("now\n")]
    assert told == [0, 0, 1], finished.errors
