"""Collectives for the user's own values, shards, and scaled learning rates."""

from __future__ import annotations

import logging
import re
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.inside import everywhere, settings
from tests.multirank.oracle import v1
from tests.named import subtest


def ranks_values(shape: tuple[int, ...], dtype: str = "float32") -> list[np.ndarray]:
    """Return the values of all ranks, which are different."""
    return [(np.arange(np.prod(shape)).reshape(shape) * 3 + 10 * r + 1).astype(dtype) for r in range(tfdist.size())]


def case_all_reduce_of_values_at_once() -> None:
    for shape in ((), (3,), (5, 7), (0, 2)):
        for dtype in ("float32", "float64", "int32", "complex64", "float16"):
            with subtest(shape, dtype):
                brought = ranks_values(shape, dtype)
                total = np.sum(brought, axis=0)
                found = tfdist.all_reduce(brought[tfdist.rank()], "sum")
                np.testing.assert_allclose(found, total)
                assert found.dtype == brought[0].dtype
                if dtype != "int32":
                    mean = tfdist.all_reduce(brought[tfdist.rank()])
                    np.testing.assert_allclose(mean, total / tfdist.size(), rtol=1e-3)
    assert tfdist.all_reduce(float(tfdist.rank())) == (tfdist.size() - 1) / 2
    eager = tfdist.all_reduce(tf.constant([1.0, float(tfdist.rank())]), "sum")
    np.testing.assert_allclose(eager.numpy(), [tfdist.size(), sum(range(tfdist.size()))])


def case_all_reduce_and_broadcast_in_a_graph() -> None:
    for dtype in ("float32", "int64", "bfloat16"):
        brought = ranks_values((4, 3), "float32")
        with subtest(dtype), tf.Graph().as_default(), v1.Session() as session:
            tensor = tf.cast(brought[tfdist.rank()], dtype)
            total = tfdist.all_reduce(tensor, "sum")
            first = tfdist.broadcast(tensor * 2)
            assert total.shape == (4, 3) and total.dtype == tensor.dtype
            for _ in range(3):
                found = session.run([tf.cast(total, "float32"), tf.cast(first, "float32")])
            np.testing.assert_allclose(found[0], np.sum(brought, axis=0), rtol=1e-2)
            np.testing.assert_allclose(found[1], brought[0] * 2, rtol=1e-2)


def case_results_keep_their_values_while_the_user_holds_them() -> None:
    """Buffers are persistent: a later step must not change the result of an earlier one."""
    with tf.Graph().as_default(), v1.Session() as session:
        number = v1.placeholder("float32", [64])
        total = tfdist.all_reduce(number, "sum")
        kept = [session.run(total, {number: np.full(64, k, "float32")}) for k in range(6)]
        for k, value in enumerate(kept):
            np.testing.assert_array_equal(value, k * tfdist.size(), err_msg=f"step {k}")


def case_broadcast_of_anything() -> None:
    value = {"rank": tfdist.rank(), "list": [1, "zwei"]}
    assert tfdist.broadcast(value) == {"rank": 0, "list": [1, "zwei"]}
    np.testing.assert_array_equal(tfdist.broadcast(np.full((3, 2), tfdist.rank())), np.zeros((3, 2)))
    assert tfdist.broadcast(tf.constant(tfdist.rank())).numpy() == 0


def case_strings() -> None:
    rank, size = tfdist.rank(), tfdist.size()
    every = [[f"rank {r}".encode() * (r + 1), b"z\0"] for r in range(size)]
    together = sum(every, [])
    assert tfdist.all_gather(np.array(every[rank], object)).tolist() == together
    assert tfdist.all_gather(np.array([s.decode() for s in every[rank]])).tolist() == [
        np.array([s.decode()])[0] for s in together
    ]
    assert tfdist.all_gather(tf.constant(every[rank])).numpy().tolist() == together
    assert tfdist.broadcast(tf.constant(every[rank]), root=size - 1).numpy().tolist() == every[-1]
    assert tfdist.broadcast(tf.constant(every[rank][0]), root=size - 1).numpy() == every[-1][0]
    assert tfdist.broadcast(every[rank], root=size - 1) == every[-1]
    with tf.Graph().as_default(), v1.Session() as session:
        found = session.run(
            [
                tfdist.all_gather(tf.constant(every[rank])),
                tfdist.broadcast(tf.constant(every[rank]), root=size - 1),
                tfdist.broadcast(tf.constant(every[rank][0]), root=size - 1),
            ]
        )
        assert found[0].tolist() == together and found[1].tolist() == every[-1] and found[2] == every[-1][0]


def case_what_cannot_be_combined_is_refused() -> None:
    for value, op, said in (
        (np.array(["a"]), "sum", "strings and objects"),
        (tf.constant(["a"]), "max", "tfdist.all_gather has those of all ranks"),
        (np.array([1 + 2j]), "max", "complex128 has no max: complex numbers are not ordered"),
        (tf.constant([1 + 2j]), "min", "complex128 has no min"),
        (np.array([1, 2]), "mean", "the mean of int64 values needs a float"),
        (np.array([1.0]), "median", "op='median'"),
    ):
        for collective in (tfdist.all_reduce, tfdist.reduce_scatter):
            with subtest(value, op, collective), pytest.raises(ValueError, match=said):
                collective(value, op)  # type: ignore[arg-type]


def case_shards_are_disjoint_and_equally_long() -> None:
    rank, size = tfdist.rank(), tfdist.size()
    everything = list(range(size * 3 + size - 1))  # the last round lacks one item
    own = tfdist.shard(everything)
    gathered = everywhere(own)
    assert sorted(sum(gathered, [])) == everything[: size * 3]
    padded = tfdist.shard(np.array(everything), remainder="pad")
    assert len(padded) == (3 if size == 1 else 4)
    dataset = tf.data.Dataset.range(size * 3 + size - 1)
    assert [int(x) for x in dataset.apply(tfdist.shard)] == everything[: size * 3][rank::size]


def case_barrier_and_alone() -> None:
    start = time.monotonic()
    if tfdist.rank() == 0:
        with tfdist.alone("a test"):
            time.sleep(1.5)
    tfdist.barrier()
    assert time.monotonic() - start > 1.4


def case_scaled_learning_rate() -> None:
    size = tfdist.size()
    assert tfdist.scale_learning_rate(0.1) == 0.1 * size
    assert tfdist.scale_learning_rate(0.1, "sqrt") == 0.1 * size**0.5
    with tf.Graph().as_default(), v1.Session() as session:
        step = v1.train.get_or_create_global_step()
        rate = tfdist.scale_learning_rate(tf.constant(0.1), warmup_steps=4) * 1.0
        for number, expected in ((0, 0.1), (2, 0.1 * (1 + (size - 1) / 2)), (4, 0.1 * size), (9, 0.1 * size)):
            step.load(number, session)
            np.testing.assert_allclose(session.run(rate), expected, rtol=1e-6, err_msg=f"step {number}")


def case_local_ranks_and_shares_of_the_machine() -> None:
    import os

    assert (tfdist.local_rank(), tfdist.local_size()) == (tfdist.rank(), tfdist.size())
    if tfdist.size() > 1:
        cores = len(os.sched_getaffinity(0))
        assert int(os.environ["TF_NUM_INTRAOP_THREADS"]) <= max(1, cores // tfdist.size() + 1)


def case_a_table_of_waits() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    with settings(wait_table=2), tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", [3], initializer=v1.zeros_initializer())
        train = v1.train.GradientDescentOptimizer(1e-3).minimize(tf.reduce_sum(weight * weight * float(tfdist.rank())))
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            session.run(train)
    logging.getLogger("tfdist").removeHandler(handler)
    tables = [line for line in lines if "milliseconds a step" in line]
    assert len(tables) == (2 if tfdist.rank() == 0 < tfdist.size() - 1 else 0), lines
    for number, table in enumerate(tables):
        first, columns, *rows, last = table.splitlines()
        assert f"steps {2 * number + 1} to {2 * number + 2}, 1 exchange a step" in first
        assert columns.split() == ["rank", "host", "step", "exchange", "waiting"]
        assert [row.split()[0] for row in rows] == [str(rank) for rank in range(tfdist.size())]
        assert re.match(r"rank \d+ comes last most: it waits for \d+\.\d ms, and another for \d", last)
