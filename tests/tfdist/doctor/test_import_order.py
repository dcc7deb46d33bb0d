"""Import order of scripts: which lines may stand before ``import tfdist``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfdist.doctor import import_order
from tfdist.doctor.findings import FIX, NOTE, OK


@pytest.mark.parametrize(
    ("script", "state", "told"),
    [
        ("import tensorflow as tf\nimport tfdist\nx = tf.zeros(3)\n", OK, "in line 2"),
        ('"""A script."""\nimport tfdist\n', OK, "in line 2"),
        ("import tfdist as ddl\nimport tensorflow as tf\n", OK, "in line 1"),
        ("import tensorflow as tf\nimport tfdist.horovod as hvd\n", OK, "in line 2"),
        ("import keras\nfrom tfdist import shard\n", OK, "in line 2"),
        ("import tensorflow as tf\ndef model():\n    return tf.zeros(3)\nimport tfdist\n", OK, "in line 4"),
        ("import tensorflow as tf\ntf.get_logger().setLevel('ERROR')\nimport tfdist\n", OK, "in line 3"),
        ("import tensorflow as tf\nx = tf.zeros(3)\nimport tfdist\n", NOTE, "line 2 calls tf.zeros before line 3"),
        (
            "import tensorflow as tf\ngpus = tf.config.list_physical_devices('GPU')\nimport tfdist\n",
            NOTE,
            "line 2 calls tf.config.list_physical_devices before line 3",
        ),
        ("from keras import layers\nlayer = layers.Dense(3)\nimport tfdist\n", NOTE, "line 2 calls layers.Dense"),
        ("import tensorflow as tf\ntf.random.set_seed(3)\nimport tfdist\n", NOTE, "line 2 calls tf.random.set_seed"),
        (
            "import tensorflow as tf\nopt = tf.keras.optimizers.SGD()\nstep = opt.minimize(loss, v)\nimport tfdist\n",
            FIX,
            "line 3 calls opt.minimize, for a step that is refused before line 4",
        ),
        ("import tensorflow as tf\ng = tf.gradients(y, x)\nimport tfdist\n", FIX, "line 2 calls tf.gradients"),
        ("from mpi4py import MPI\nimport tfdist\n", NOTE, "line 1 starts MPI (mpi4py.MPI)"),
        ("try:\n    import tfdist\nexcept ImportError:\n    pass\n", OK, "in line 1"),
        ("import tensorflow as tf\n", NOTE, "does not import tfdist itself: add 'import tfdist' at its top, or start"),
        ("import tfdist(\n", FIX, "cannot be read: "),
    ],
)
def test_scripts(tmp_path: Path, script: str, state: str, told: str) -> None:
    (tmp_path / "script.py").write_text(script)
    (finding,) = import_order.examine(str(tmp_path / "script.py"))
    assert finding.state == state and told in finding.told, finding


@pytest.mark.parametrize(("call", "state"), [("zeros(3)", FIX), ("random.set_seed(3)", NOTE)])
def test_engines_that_must_come_before_any_operation(tmp_path: Path, call: str, state: str) -> None:
    (tmp_path / "script.py").write_text(f"import tensorflow as tf\nx = tf.{call}\nimport tfdist\n")
    (finding,) = import_order.examine(str(tmp_path / "script.py"), "collectives")
    assert finding.state == state and f"line 2 calls tf.{call.partition('(')[0]} before line 3" in finding.told
    assert ("the engine collectives is refused" in finding.told) == (state == FIX)


def test_other_files_and_encodings(tmp_path: Path) -> None:
    (tmp_path / "latin.py").write_bytes("# coding: latin-1\nimport tfdist  # \xe4\n".encode("latin-1"))
    (tmp_path / "book.ipynb").write_text('{"cells": []}')
    (finding,) = import_order.examine(str(tmp_path / "latin.py"))
    assert finding.state == OK
    (finding,) = import_order.examine(str(tmp_path / "book.ipynb"))
    assert finding.state == NOTE and "book.ipynb is not read, only Python scripts are" in finding.told


def test_no_script(tmp_path: Path) -> None:
    (finding,) = import_order.examine(str(tmp_path / "absent.py"))
    assert finding.state == FIX and "absent.py cannot be read" in finding.told
