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
        ("import tensorflow as tf\nx = tf.zeros(3)\nimport tfdist\n", FIX, "line 2 calls tf.zeros before line 3"),
        (
            "import tensorflow as tf\ngpus = tf.config.list_physical_devices('GPU')\nimport tfdist\n",
            FIX,
            "line 2 calls tf.config.list_physical_devices before line 3",
        ),
        ("from keras import layers\nlayer = layers.Dense(3)\nimport tfdist\n", FIX, "line 2 calls layers.Dense"),
        ("from mpi4py import MPI\nimport tfdist\n", FIX, "line 1 starts MPI (mpi4py.MPI)"),
        ("try:\n    import tfdist\nexcept ImportError:\n    pass\n", OK, "in line 1"),
        ("import tensorflow as tf\n", NOTE, "does not import tfdist itself: add 'import tfdist' at its top, or start"),
        ("import tfdist(\n", FIX, "cannot be read: "),
    ],
)
def test_scripts(tmp_path: Path, script: str, state: str, told: str) -> None:
    (tmp_path / "script.py").write_text(script)
    (finding,) = import_order.examine(str(tmp_path / "script.py"))
    assert finding.state == state and told in finding.told, finding


def test_no_script(tmp_path: Path) -> None:
    (finding,) = import_order.examine(str(tmp_path / "absent.py"))
    assert finding.state == FIX and "absent.py cannot be read" in finding.told
