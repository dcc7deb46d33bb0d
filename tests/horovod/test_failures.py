"""Failures of one rank in ``tfdist.horovod`` are reported and end the job. Each case is a job of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.launch import Finished, mpirun

SOON = {"TFDIST_STALL_SECONDS": "1", "TFDIST_STALL_ABORT_SECONDS": "4"}


def run(folder: Path, program: str, settings: dict[str, str] | None = None) -> Finished:
    """Run a program on two ranks."""
    path = folder / "program.py"
    path.write_text("import tensorflow as tf\nimport tfdist.horovod as hvd\n" + textwrap.dedent(program))
    return mpirun(2, [str(path)], 120, {**SOON, **(settings or {})})


def test_ranks_that_wait_for_different_operations(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        """
        hvd.init()
        hvd.allreduce(tf.ones([2]), name="one" if hvd.rank() else "other")
        """,
    )
    assert finished.code != 0
    assert "'one' has not been begun by rank 0" in finished.errors
    assert "'other' has not been begun by rank 1" in finished.errors


def test_an_exception_on_one_rank_ends_the_job(tmp_path: Path) -> None:
    finished = run(
        tmp_path,
        """
        hvd.init()
        if hvd.rank():
            raise ValueError("of one rank")
        hvd.allreduce(tf.ones([2]))
        """,
    )
    assert finished.code != 0
    assert "of one rank" in finished.errors


@pytest.mark.long("the refusal is that of all settings")
def test_settings_of_the_automatic_average_are_refused(tmp_path: Path) -> None:
    finished = run(tmp_path, "hvd.init()", {"TFDIST_ACCUMULATE_STEPS": "2"})
    assert finished.code != 0
    assert "TFDIST_ACCUMULATE_STEPS=2" in finished.errors and "backward_passes_per_step" in finished.errors


@pytest.mark.parametrize("wraps", [False, pytest.param(True, marks=pytest.mark.long("nothing is printed"))])
def test_an_optimizer_that_is_not_wrapped_is_named(tmp_path: Path, wraps: bool) -> None:
    finished = run(
        tmp_path,
        f"""
        import keras
        hvd.init()
        variable = tf.Variable(1.0)
        optimizer = keras.optimizers.Adam()
        if {wraps}:
            optimizer = hvd.DistributedOptimizer(optimizer)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = variable * (1.0 + hvd.rank())
            optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        """,
    )
    assert finished.code == 0
    assert finished.errors.count("Adam applies each rank's own gradients") == int(not wraps), finished.errors
