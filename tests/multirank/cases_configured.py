"""Settings of exchanges: different exchanges stay separate, and ranks with different settings get an error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.multirank.cases_programs import refusal
from tests.multirank.inside import settings
from tests.multirank.oracle import v1
from tests.named import subtest

RANK, SIZE = tfdist.rank(), tfdist.size()


def embedding_step(rows: int, dtype: str = "int64", name: str = "e") -> Callable[[bool], np.ndarray]:
    """Return a step, as a function or eager: each rank updates its own row and the last row; returns the table."""
    e = tf.Variable(tf.zeros([rows, 2]), name=name)

    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(e, tf.constant([RANK, rows - 1], dtype))) * (RANK + 1.0)
        v1.train.GradientDescentOptimizer(1.0).apply_gradients([(tape.gradient(loss, e), e)])

    traced = tf.function(step)

    def run(function: bool) -> np.ndarray:
        e.assign(tf.zeros_like(e))
        (traced if function else step)()
        return e.numpy()

    return run


def after_a_step(rows: int) -> np.ndarray:
    expected = np.zeros((rows, 2))
    for r in range(SIZE):
        expected[[r, rows - 1]] -= (r + 1) / SIZE
    return expected


def case_a_model_with_a_larger_table_has_exchanges_of_its_own() -> None:
    for way in ("dense", "gather", "unmerged"):
        with settings():
            tfdist.configure(sparse=way)
            for function in (True, False):
                for rows, dtype in (
                    (SIZE + 2, "int64"),
                    (SIZE + 90, "int64"),
                    (SIZE + 90, "int32"),
                    (SIZE + 2, "int64"),
                ):
                    with subtest(way, function, rows, dtype):
                        found = embedding_step(rows, dtype)(function)
                        np.testing.assert_allclose(found, after_a_step(rows), rtol=1e-6)


def case_collectives_alike_but_for_the_group_or_the_root() -> None:
    """In functions, tfdist identifies a collective by its exchange. All collectives here have arguments of one name."""
    everyone, alone = tfdist.new_group(range(SIZE)), tfdist.new_group([RANK])
    for group in (everyone, alone):
        total = tf.function(lambda x, group=group: tfdist.all_reduce(x, "sum", group=group))
        found = total(tf.constant([RANK + 1.0]))
        np.testing.assert_allclose(found, [sum(r + 1 for r in group.ranks)], err_msg=str(group.ranks))
    for root in range(SIZE):
        chosen = tf.function(lambda x, root=root: tfdist.broadcast(x, root))
        np.testing.assert_allclose(chosen(tf.constant([float(RANK)])), [root])


def case_configuring_takes_effect_or_is_refused() -> None:
    run = embedding_step(SIZE + 3)
    changes: tuple[dict[str, Any], ...] = (
        {"sparse": "dense"},
        {"compression": "bf16"},
        {"sparse_ways": {"e": "gather"}},
        {"sparse_as_dense": True},
        {"bucket_mb": 1},
        {"divergence": "warn"},
        {"loss_scale_tolerance": 0.5},
    )
    for change in changes:
        with subtest(change):
            run(True)
            with settings():
                tfdist.configure(**change)
                told = refusal(lambda: run(True))
                assert told.startswith("SettingsError") and "was traced when it was" in told, told
                assert ("sparse for e" if change.keys() & {"sparse", "sparse_ways"} else next(iter(change))) in told
                np.testing.assert_allclose(run(False), after_a_step(SIZE + 3), rtol=1e-2)
                again = embedding_step(SIZE + 3)
                np.testing.assert_allclose(again(True), after_a_step(SIZE + 3), rtol=1e-2)
            np.testing.assert_allclose(run(True), after_a_step(SIZE + 3), rtol=1e-6)


def case_tables_that_differ_are_told() -> None:
    for function in (True, False):
        with subtest(function), settings(sparse="dense"):
            run = embedding_step(SIZE + 3 + RANK, name=f"table{function}")
            told = refusal(functools.partial(run, function))
            assert told.startswith("DisagreementError") and f"table{function}" in told, told
            assert f"({SIZE + 3}, 2)" in told or f"[{SIZE + 3}, 2]" in told, told
            assert f"({SIZE + 4}, 2)" in told or f"[{SIZE + 4}, 2]" in told, told


def case_ways_that_differ_are_told() -> None:
    for where in ("session", "function", "eager"):
        with subtest(where), settings():
            tfdist.configure(sparse_ways={f"way{where}": "gather" if RANK else "dense"})
            if where == "session":
                told = refusal(session_step)
            else:
                run = embedding_step(SIZE + 3, name=f"way{where}")
                told = refusal(functools.partial(run, where == "function"))
            assert told.startswith("DisagreementError") and f"way{where}" in told, told
            assert "dense" in told and "gather" in told, told


def session_step() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        e = v1.get_variable("waysession", [SIZE + 3, 2], initializer=v1.zeros_initializer())
        loss = tf.reduce_sum(tf.nn.embedding_lookup(e, [RANK]))
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run([v.initializer for v in v1.global_variables()])
        session.run(step)
