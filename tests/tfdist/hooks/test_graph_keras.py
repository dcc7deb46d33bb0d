"""Keras in a TF1 session, with the Keras 2 that ``TF_USE_LEGACY_KERAS`` selects as ``tf.keras``."""

from __future__ import annotations

import importlib.util

import pytest

from tests.launch import mpirun


@pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="tf_keras is not installed")
@pytest.mark.parametrize("size", (2, pytest.param(3, marks=pytest.mark.long("cases_law has what three could change"))))
def test_in_a_session_ranks_train_as_one_process(size: int) -> None:
    settings = {"TF_USE_LEGACY_KERAS": "1", "TFDIST_STALL_SECONDS": "10", "TFDIST_STALL_ABORT_SECONDS": "60"}
    finished = mpirun(size, ["-m", "tests.multirank.graph_keras"], 120, settings)
    assert finished.code == 0, finished.errors[-6000:]
    assert finished.output.count("fine") == size
