"""``TFDIST_CHECK=k``: right exchanges pass, and a wrong number is named on all ranks alike; also the table of waits."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank import inside
from tests.multirank.inside import everywhere
from tests.multirank.oracle import v1
from tests.named import subtest
from tfdist.engine import all_reduce, sparse_rows

RANK, SIZE = tfdist.rank(), tfdist.size()
STEPS = 4


def trained(rows: bool = False) -> Callable[[], float]:
    """Return a step that trains a variable, or an embedding, with this rank's own data."""
    graph = tf.Graph()
    with graph.as_default():
        weight = v1.get_variable("weight", [50, 3], initializer=v1.zeros_initializer())
        inputs = v1.placeholder(tf.int32, [None])
        read = tf.nn.embedding_lookup(weight, inputs) if rows else weight * tf.cast(tf.reduce_sum(inputs), tf.float32)
        train = v1.train.GradientDescentOptimizer(1e-3).minimize(tf.reduce_sum(read * read + read))
        session = v1.Session(graph=graph)
        session.run(v1.global_variables_initializer())

    def step() -> float:
        session.run(train, {inputs: [RANK, RANK + 1, 7]})
        return float(np.sum(session.run(weight)))

    return step


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the tensors that are compared while the context is open."""
    found: list[int] = []
    right = all_reduce.compare_sums

    def counting(context: Any, op: Any, sources: Any, *more: Any) -> None:
        found.append(len(sources))
        right(context, op, sources, *more)

    with mock.patch.object(all_reduce, "compare_sums", counting):
        yield found


def case_right_exchanges_pass() -> None:
    values = np.random.RandomState(RANK).randn(9001) * 10.0 ** np.random.RandomState(1).randint(-9, 9, 9001)

    def reduce(given: Any, op: Any = "sum") -> None:
        """Combine in a function: eager collectives are not compared."""
        with counted() as compared:
            tf.function(lambda x: tfdist.all_reduce(x, op))(tf.constant(given))
        assert compared == [1], compared

    with inside.settings(check="1"):
        for dtype in ("float16", "float32", "float64", "complex64", "int32", "int64", "uint8"):
            ops: tuple[Any, ...] = ("sum", "min", "max", "product") if dtype != "complex64" else ("sum",)
            for op in ops:
                with subtest(dtype, op):
                    reduce((values % 5).astype(dtype), op)
        for narrow in (tf.bfloat16, tf.dtypes.experimental.float8_e4m3fn, tf.dtypes.experimental.float8_e5m2):
            with subtest(narrow.name):
                reduce(tf.cast((values % 5).astype("float32"), narrow))
        reduce(values, "mean")
        for tiny in (1e-38, 1e-44):  # threads of TensorFlow take such sums for zero
            with subtest(tiny):
                reduce((tiny * values[:500]).astype("float32"), "mean")
        reduce(np.array([np.inf, -np.inf, np.nan, 1e38], np.float32) * (RANK + 1))
        with subtest("int8"), inside.settings(check="1", compression="int8"), counted() as compared:
            trained()()
            assert bool(compared) == (inside.nodes() == 1), "it rounds between machines only"
    modes: list[dict[str, Any]] = [{}, {"sparse": "gather"}, {"sparse": "dense"}, {"sparse": "unmerged"}]
    for mode in (*modes, {"compression": "bf16"}):
        with subtest(mode), inside.settings(check="1", **mode):
            for rows in (False, True):
                step = trained(rows)
                assert len(set(everywhere([step() for _ in range(STEPS)][-1]))) == 1


@contextmanager
def wrong(exchange: Any, at_step: int) -> Iterator[None]:
    """Damage this rank's result of one exchange before it is compared, on the last rank alone."""
    name = "compare_rows" if exchange is sparse_rows else "compare_sums"
    right, compared = getattr(exchange, name), iter(range(1, 99))

    def damaged(context: Any, first: Any, second: Any, results: Any, *more: Any) -> None:
        arrays = results if name == "compare_sums" else second
        if next(compared) == at_step and RANK == SIZE - 1:
            array = arrays[0] if name == "compare_sums" else arrays[0][1].reshape(-1)
            array[2] += 0.25
        right(context, first, second, results, *more)

    with mock.patch.object(exchange, name, damaged):
        yield


def case_a_wrong_number_is_named_on_all_ranks() -> None:
    last = SIZE - 1
    for exchange, words in (
        (all_reduce, rf"step 2, .*: rank {last} has .* at element 2 of .*weight.*, but MPI in float64 has .*engine"),
        (
            sparse_rows,
            rf"step 2, .*: rank {last} has .* at element 2 of weight, but MPI in float64 .* The exchange of ro",
        ),
    ):
        with subtest(words), inside.settings(check="1"), wrong(exchange, at_step=2):
            step = trained(rows=exchange is sparse_rows)
            step()
            with pytest.raises(tfdist.DisagreementError) as caught:
                step()
            assert re.search(words, str(caught.value)), caught.value
            assert "1 of its elements differ; the other ranks have what MPI has" in str(caught.value)
            assert len(set(everywhere(str(caught.value)))) == 1


def case_a_rank_of_a_group_is_named_by_its_number_in_the_job() -> None:
    last = SIZE - 1
    group = tfdist.new_group([0, last] if SIZE == 2 else [1, last])
    if RANK in (group.ranks if group else ()):
        with inside.settings(check="1"), wrong(all_reduce, at_step=1):
            function = tf.function(lambda x: tfdist.all_reduce(x, "sum", group=group))
            with pytest.raises(tfdist.DisagreementError, match=f"rank {last} has"):
                function(tf.ones([5]))
    tfdist.barrier()


def case_only_every_kth_exchange_is_compared() -> None:
    with inside.settings(check="3"), wrong(all_reduce, at_step=2):
        step = trained()
        for _ in range(5):
            step()  # compared: the third
        with pytest.raises(tfdist.DisagreementError, match="step 6, "):
            step()


def case_a_table_of_waits() -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    try:
        with inside.settings(wait_table=2):
            step = trained()
            for _ in range(5):
                step()
    finally:
        logging.getLogger("tfdist").removeHandler(handler)
    tables = [line for line in lines if "milliseconds a step" in line]
    assert len(tables) == (2 if RANK == 0 else 0), lines
    for number, table in enumerate(tables):
        first, columns, *rows, last = table.splitlines()
        assert f"steps {2 * number + 1} to {2 * number + 2}, 1 exchange a step" in first
        assert columns.split() == ["rank", "host", "step", "exchange", "waiting"]
        assert [row.split()[0] for row in rows] == [str(rank) for rank in range(SIZE)]
        assert re.match(r"rank \d+ comes last most: it waits for \d+\.\d ms, and another for \d", last)
