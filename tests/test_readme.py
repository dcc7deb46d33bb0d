"""The README's script, as it stands there, trains on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch import ROOT, mpirun

BEFORE = """
import numpy as np
def load():
    random = np.random.RandomState(0)
    features = random.randn(400, 5).astype("float32")
    return features, features @ np.ones([5, 1], "float32")
def model(x, y):
    w = v1.get_variable("w", [5, 1])
    return tf.reduce_mean((x @ w - y) ** 2)
def save(session):
    print("error", np.abs(session.run(v1.trainable_variables()[0]) - 1).max())
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_script_of_the_readme(tmp_path: Path, ranks: int) -> None:
    script = re.search(
        r"```python\n(import tensorflow as tf\nimport tfdist\n\n.*?)```", (ROOT / "README.md").read_text(), re.S
    )
    assert script
    path = tmp_path / "script.py"
    path.write_text(BEFORE + script.group(1).replace("range(1000)", "range(200)"))
    finished = mpirun(ranks, [str(path)], 100)
    assert finished.code == 0, finished.errors
    errors = re.findall(r"error (\S+)", finished.output)
    assert len(errors) == 1, "rank 0 alone saves"
    assert float(errors[0]) < 1e-3


BEFORE_KERAS = """
import numpy as np
def load():
    random = np.random.RandomState(0)
    x = random.randn(400, 5).astype("float32")
    return x, x @ np.ones([5, 1], "float32")
def build():
    return keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
"""


def test_the_keras_script_of_the_readme(tmp_path: Path) -> None:
    script = re.search(r"```python\n(import keras\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert script
    path = tmp_path / "script.py"
    saved = f"{tmp_path}/model.keras"
    path.write_text("import keras\n" + BEFORE_KERAS + script.group(1).replace("model.keras", saved))
    finished = mpirun(2, [str(path)], 100)
    assert finished.code == 0, finished.errors
    assert Path(saved).exists()
    assert "Epoch 10/10" in finished.output
