"""Engines: every engine, dtype and layout of ranks against sums computed by NumPy."""

from __future__ import annotations

import functools
import os
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.multirank.cases_law import OPTIMIZERS, clipped_model
from tests.multirank.inside import (
    all_reduce,
    at_once,
    blocks_of,
    bytes_of_buffers,
    channels_with,
    current_settings,
    job,
    mapped,
    no_room_in_shared_memory,
    nodes,
    opened,
    pages_bytes,
    reductions,
    report,
    settings,
    through_mpi,
)
from tests.multirank.oracle import assert_law, v1
from tests.named import subtest
from tfdist.core import reduce_ops
from tfdist.core.topology import Topology
from tfdist.engine import sparse_rows
from tfdist.engine.collective import Collective
from tfdist.engine.engines import Choice
from tfdist.engine.sparse_rows import Rows, Table

SIZE, RANK = tfdist.size(), tfdist.rank()


WAYS = [through_mpi(), at_once(), mapped(), mapped(3)]


def reduce(collective: Collective, number: int, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    exchange = collective.exchanges[number]
    exchange.load(arrays)
    collective.communicate(number)
    return exchange.results()


def brought(rank: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    random = np.random.RandomState(100 + rank)
    values = np.asarray(random.randn(*shape) * 3)
    return values > 0 if dtype == "bool" else values.astype(dtype)


def same_everywhere(array: np.ndarray) -> bool:
    return len(set(report(array.tobytes(), "comparison"))) == 1


def assert_result(result: np.ndarray, expected: np.ndarray, exact: bool) -> None:
    """Check the values, to the last bit or to the dtype's rounding, and that all ranks have the same bits."""
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert same_everywhere(result)
    if exact:
        np.testing.assert_array_equal(result, expected)
        return
    # Between nodes the nodes' sums are rounded too.
    tolerances = {2: 0.1 if nodes() > 1 else 1e-2, 4: 1e-5, 8: 1e-12}
    tolerance = tolerances[4 if result.dtype == np.complex64 else result.dtype.itemsize]
    np.testing.assert_allclose(
        result.astype(np.complex128), expected.astype(np.complex128), rtol=tolerance, atol=tolerance
    )


def case_every_dtype_and_operation_on_every_way() -> None:
    functions: dict[str, Any] = {"sum": np.add, "min": np.minimum, "max": np.maximum, "product": np.multiply}
    for dtype in ("float32", "float64", "int32", "int64", "uint8", "bool", "complex64", "float16", ml_dtypes.bfloat16):
        numpy_dtype = np.dtype(dtype)
        wide = np.float32 if numpy_dtype.itemsize == 2 else numpy_dtype
        for op, function in functions.items():
            if op in ("min", "max") and numpy_dtype.kind == "c":
                continue
            arrays = [[brought(r, s, dtype) for s in ((3, 5), (), (0,), (70_001,))] for r in range(SIZE)]
            every = [
                functools.reduce(function, [c.astype(wide) for c in contributions]).astype(numpy_dtype)
                for contributions in zip(*arrays, strict=True)
            ]
            for way in WAYS:
                with subtest(numpy_dtype, op, way):
                    with settings(way):
                        exchange = all_reduce("x", op, numpy_dtype, [a.size for a in arrays[0]])  # type: ignore[arg-type]
                        found = reduce(opened(exchange), 0, arrays[RANK])
                    for result, expected in zip(found, every, strict=True):
                        assert_result(result, expected, exact=numpy_dtype.kind in "iub" or op in ("min", "max"))


def case_non_finite_values_pass_through_on_all_ranks_alike() -> None:
    own = np.array([1.0, np.nan if RANK == 0 else 2.0, np.inf if RANK == SIZE - 1 else 3.0], np.float32)
    for way in WAYS:
        with subtest(way), settings(way):
            (found,) = reduce(opened(all_reduce("x", "mean", own.dtype, [3])), 0, [own])
            assert found[0] == 1 and np.isnan(found[1]) and np.isposinf(found[2])
            assert same_everywhere(found)


def case_many_tensors_in_many_blocks() -> None:
    """Buckets have more parts than one system call reads, and slices have several blocks."""
    with blocks_of(1 << 17):
        shapes = [(1,)] * 3000 + [(100_003,), (2, 5)]
        every = [[brought(r, s, "float32") + n % 7 for n, s in enumerate(shapes)] for r in range(SIZE)]
        for way in WAYS:
            with subtest(way), settings(way):
                sizes = [int(np.prod(s)) for s in shapes]
                exchange = all_reduce("x", "mean", np.dtype(np.float32), sizes)
                collective = opened(exchange)
                for _ in range(3):
                    found = reduce(collective, 0, every[RANK])
                    for result, contributions in zip(found, zip(*every, strict=True), strict=True):
                        np.testing.assert_allclose(result, np.mean(contributions, axis=0), rtol=1e-5, atol=1e-6)
                    assert same_everywhere(np.concatenate([f.reshape(-1) for f in found]))


def case_pieces_of_lanes_that_nodes_share() -> None:
    """Four ranks on nodes of 1, 1 and 2: the first two nodes share both shards, in more pieces than go at a time."""
    topology = Topology(((0,), (1,), (2, 3)) if SIZE == 4 else tuple((rank,) for rank in range(SIZE)))
    kinds = (np.bool_, np.int8, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.complex64)
    with reductions(topology, 64) as between:
        for dtype, elements in [*((dtype, 3001) for dtype in kinds), (np.float32, 0), (np.float32, 150_000)]:
            with subtest(dtype, elements):
                every = [np.random.RandomState(rank).randint(0, 5, elements).astype(dtype) for rank in range(SIZE)]
                op: reduce_ops.Op = "max" if dtype is np.bool_ else "sum"
                own = every[RANK].copy()
                finished = list(between.begin(own, op, "a test").finish())
                shards = topology.shards_of(RANK)
                mine = [reduce_ops.stretch(elements, shard.start, shard.stop, own.itemsize) for shard in shards]
                assert sum(part.stop - part.start for part in finished) == sum(p.stop - p.start for p in mine)
                for shard, part in zip(shards, mine, strict=True):
                    theirs = [every[rank][part] for rank in shard.ranks]
                    expected = np.logical_or.reduce(theirs) if dtype is np.bool_ else sum(theirs[1:], theirs[0])
                    np.testing.assert_array_equal(own[part], expected)


def case_a_rank_that_is_slow_to_read_small_buckets() -> None:
    """The other ranks write the next bucket while the slow rank still reads; it must not read the next bucket."""
    with settings(at_once()):
        collective = opened(*(all_reduce(f"bucket {n}", "sum", "float32", [3, 40]) for n in range(2)))
        combine = reduce_ops.combine

        def slowly(*args: Any) -> None:
            time.sleep(0.005)
            combine(*args)

        with mock.patch.object(reduce_ops, "combine", slowly if RANK == SIZE - 1 else combine):
            for step in range(20):
                for number in range(2):
                    own = [np.full(size, 10.0 * step + number + RANK, np.float32) for size in (3, 40)]
                    for found in reduce(collective, number, own):
                        assert (found == sum(10.0 * step + number + r for r in range(SIZE))).all()


def case_a_static_shape_that_is_not_true() -> None:
    for way in WAYS:
        with subtest(way), settings(way):
            collective = opened(all_reduce("bucket 0 (w)", "mean", np.dtype(np.float32), [1000]))
            try:
                reduce(collective, 0, [np.zeros(10, np.float32)])
            except ValueError as error:
                assert "bucket 0 (w): tensors whose static shapes have [1000] elements have [10]" in str(error)
            else:
                raise AssertionError("taken")


def case_random_sizes_threads_and_delays() -> None:
    """Buckets have random sizes, each rank its own delays and number of threads; every value is checked."""
    shared_seed, own = np.random.RandomState(7), np.random.RandomState(RANK)
    for way in (*WAYS, mapped(3, 1 << 12)):
        for threads in (1, 2, 4):
            sizes = [int(shared_seed.randint(1, 4000)) for _ in range(int(shared_seed.randint(1, 9)))]
            with subtest(way, threads), settings(way, bucket_mb=0.004), tf.Graph().as_default():
                step, variables, factor = _delayed_step(sizes, own)
                config = v1.ConfigProto(
                    intra_op_parallelism_threads=threads, inter_op_parallelism_threads=int(own.choice([1, 2, 3]))
                )
                with v1.Session(config=config) as session:
                    session.run(v1.global_variables_initializer())
                    total = 0.0
                    for number in range(12):
                        session.run(step, {factor: float(RANK + number)})
                        total += sum(r + number for r in range(SIZE)) / SIZE
                    for number, value in enumerate(session.run(variables)):
                        np.testing.assert_allclose(value, 1 - total * (number + 1), rtol=1e-5)


def _delayed_step(sizes: Sequence[int], random: np.random.RandomState) -> tuple[Any, list[Any], Any]:
    factor = v1.placeholder("float32", [])
    variables = [v1.get_variable(f"v{n}", [s], initializer=v1.ones_initializer()) for n, s in enumerate(sizes)]

    def delayed(x: np.ndarray) -> np.ndarray:
        time.sleep(random.rand() * 0.004)
        return x

    @tf.custom_gradient
    def slow(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            result = tf.numpy_function(delayed, [dy], dy.dtype)
            result.set_shape(dy.shape)
            return result

        return tf.identity(x), gradient

    loss = tf.add_n([tf.reduce_sum(slow(v)) * factor * (n + 1) for n, v in enumerate(variables)])
    return v1.train.GradientDescentOptimizer(1.0).minimize(loss), variables, factor


def case_law_with_small_buckets_and_one_thread() -> None:
    for way in WAYS:
        with subtest(way), settings(way, bucket_mb=1e-5):
            assert_law(functools.partial(clipped_model, OPTIMIZERS["momentum" if way == WAYS[0] else "adam"]))


def case_compressed_gradients_are_added_in_float32() -> None:
    for compression, dtype in (("bf16", ml_dtypes.bfloat16), ("fp16", np.float16)):
        for way in WAYS:
            gradients = [brought(r, (300,), "float32") for r in range(SIZE)]
            wire = [g.astype(dtype).astype(np.float32) for g in gradients]
            expected = (functools.reduce(np.add, wire) / np.float32(SIZE)).astype(dtype).astype(np.float32)
            with (
                subtest(compression, way),
                settings(way, compression=compression),
                tf.Graph().as_default(),
                v1.Session() as session,
            ):
                w = v1.get_variable("w", [300], initializer=v1.zeros_initializer())
                d = v1.get_variable("d", [2], "float64", initializer=v1.zeros_initializer())
                loss = tf.reduce_sum(w * gradients[RANK])
                exact = tf.reduce_sum(d) * (1 + 1e-12 * RANK)
                step = v1.train.GradientDescentOptimizer(1.0).minimize(tf.cast(loss, "float64") + exact)
                session.run(v1.global_variables_initializer())
                session.run(step)
                found, doubles = session.run([w, d])
                # Between nodes the nodes' sums are rounded too.
                tolerance = 0.05 if nodes() > 1 else 1e-6
                np.testing.assert_allclose(-found, expected, rtol=1e-6, atol=tolerance)
                np.testing.assert_allclose(-doubles, np.mean([1 + 1e-12 * r for r in range(SIZE)]), rtol=1e-14)


def case_large_values_are_divided_before_they_are_narrowed() -> None:
    """Means fit into float16 although the sums do not; sums that overflow do so without a warning."""
    own = np.float32(40_000 + 512 * RANK)
    mean = float(np.mean([40_000 + 512 * r for r in range(SIZE)]))
    tolerance = 0.005 * mean  # between nodes each node's part is rounded too
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for way in WAYS:
            with subtest(way), settings(way):
                for op, expected in (("mean", mean), ("max", 40_000 + 512 * (SIZE - 1)), ("sum", np.inf)):
                    exchange = all_reduce("x", op, np.dtype(np.float16), [70_001])
                    (found,) = reduce(opened(exchange), 0, [np.full(70_001, own, np.float16)])
                    np.testing.assert_allclose(found.astype(np.float64), expected, atol=tolerance)
            for sparse in ("gather", "dense"):
                with subtest(way, sparse), settings(way, compression="fp16", sparse=sparse, bucket_mb=1e-5):
                    np.testing.assert_allclose(_step_with_gradient(own), -mean, atol=tolerance)


def _step_with_gradient(value: np.float32) -> np.ndarray:
    """Return the values [3] after one step: two variables in two buckets and an embedding's row, all initially 0."""
    with tf.Graph().as_default(), v1.Session() as session:
        zeros = {"initializer": v1.zeros_initializer()}
        dense = [v1.get_variable(name, [9], **zeros) for name in ("v", "w")]
        e = v1.get_variable("e", [7, 2], **zeros)
        loss = tf.add_n([tf.reduce_sum(x) for x in (*dense, tf.nn.embedding_lookup(e, [2]))])
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss * value)
        session.run(v1.global_variables_initializer())
        session.run(step)
        found = session.run([*dense, e])
        return np.array([found[0][3], found[1][5], found[2][2, 1]])


def case_rows_are_the_same_whichever_way_they_travel() -> None:
    for choice in WAYS:
        with subtest(choice), settings(choice), blocks_of(50):
            assert_rows()


def assert_rows() -> None:
    vocabulary, width = 23, 5
    for dtype in (np.float32, np.float64, ml_dtypes.bfloat16):
        every = []
        for r in range(SIZE):
            random = np.random.RandomState(r)
            indices = random.permutation(vocabulary)[: 3 + 4 * r].astype(np.int64)
            every.append((indices, random.randn(len(indices), width).astype(dtype)))
        dense = np.zeros((vocabulary, width), np.float64)
        for indices, values in every:
            dense[indices] += values.astype(np.float64)
        union = np.unique(np.concatenate([i for i, _ in every]))
        results = {}
        for way in ("gather", "dense", "auto"):
            table = Table("e", vocabulary, way, np.dtype(np.int64), np.dtype(dtype), (width,))  # type: ignore[arg-type]
            exchange = Rows("rows", [table])
            indices, values = results[way] = reduce(opened(exchange), 0, every[RANK])
            np.testing.assert_array_equal(indices, union)
            tolerance = 2e-2 if values.dtype.itemsize == 2 else 1e-6
            np.testing.assert_allclose(values.astype(np.float64), dense[union] / SIZE, rtol=tolerance, atol=tolerance)
            rows_sent = sum(len(i) for i, _ in every)
            expected_bytes = (
                sparse_rows.gathered_bytes(rows_sent, width, values.dtype.itemsize)
                if exchange.ways == ["gather"]
                else sparse_rows.dense_bytes(vocabulary, width, values.dtype.itemsize)
            )
            assert exchange.exchanged_bytes == [expected_bytes]
            assert same_everywhere(values)
        for way in ("dense", "auto"):  # MPI adds in an order of its own
            tolerance = 2e-2 if results[way][1].dtype.itemsize == 2 else 1e-6
            difference = np.abs(results["gather"][1].astype(np.float64) - results[way][1].astype(np.float64))
            assert difference.max() <= tolerance


def case_rows_of_several_tables_step_after_step() -> None:
    """The number of rows changes in each step and may be 0; the results of the last step are still held."""
    widths, held = (3, 1, 64), []
    tables = [Table(f"e{w}", None, "gather", np.dtype(np.int32), np.dtype(np.float32), (w,)) for w in widths]
    for choice in WAYS:
        with subtest(choice), settings(choice), blocks_of(1 << 9):
            collective = opened(Rows("rows", tables))
            for step in range(6):
                brought_by = [
                    [_some_rows(np.random.RandomState(100 * step + r), r + 7 * step * (w != 1), w) for w in widths]
                    for r in range(SIZE)
                ]
                found = reduce(collective, 0, [array for pair in brought_by[RANK] for array in pair])
                for number in range(len(widths)):
                    indices, values = sparse_rows.merged([of_rank[number] for of_rank in brought_by], SIZE)
                    held += [(found[2 * number], indices), (found[2 * number + 1], values)]
                for result, expected in held[-12:]:
                    np.testing.assert_array_equal(result, expected)


def _some_rows(random: np.random.RandomState, count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    indices = random.permutation(200)[:count].astype(np.int32)
    return indices, random.randn(count, width).astype(np.float32)


def case_rows_that_stay_unmerged() -> None:
    """The result has all ranks' rows in the order of ranks, with duplicates; each row is divided in float32."""
    for dtype in (np.float32, np.float16):
        brought_by = [
            (np.array([3, 1, 3, r][: 2 + r % 3], np.int32), np.full((2 + r % 3, 2), 60_000 - 100 * r).astype(dtype))
            for r in range(SIZE)
        ]
        table = Table("e", 23, "unmerged", np.dtype(np.int32), np.dtype(dtype), (2,))
        with subtest(np.dtype(dtype)):
            indices, values = reduce(opened(Rows("rows", [table])), 0, brought_by[RANK])
            np.testing.assert_array_equal(indices, np.concatenate([i for i, _ in brought_by]))
            every = np.concatenate([v for _, v in brought_by]).astype(np.float32)
            np.testing.assert_array_equal(values, (every / np.float32(SIZE)).astype(dtype))


def case_sparse_settings_keep_the_law() -> None:
    for way in ("dense", "gather"):
        with subtest(way), settings(sparse=way):
            assert_law(functools.partial(clipped_model, OPTIMIZERS["momentum"]))
    with settings():
        tfdist.configure(sparse_ways={"e": "dense"})
        assert_law(functools.partial(clipped_model, OPTIMIZERS["rmsprop"]))


def case_sparse_as_dense_hands_out_dense_gradients() -> None:
    with settings():
        tfdist.configure(sparse_as_dense=True)
        with tf.Graph().as_default(), v1.Session() as session:
            e = v1.get_variable("e", [7, 2], initializer=v1.zeros_initializer())
            loss = tf.reduce_sum(tf.nn.embedding_lookup(e, [RANK, RANK, 6]))
            (gradient,) = tf.gradients(loss, [e])
            assert isinstance(gradient, tf.Tensor)
            step = v1.train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, e)])
            session.run(v1.global_variables_initializer())
            session.run(step)
            expected = np.zeros((7, 2))
            expected[6] = 1
            for r in range(SIZE):
                expected[r] += 2 / SIZE
            np.testing.assert_allclose(-session.run(e), expected, rtol=1e-6)


def case_a_refusal_of_shared_memory_falls_back() -> None:
    """With /dev/shm too small, the gradients go through MPI."""
    with no_room_in_shared_memory(), settings(mapped()):
        elements = 100_000
        exchange = all_reduce("x", "sum", np.dtype(np.float32), [elements])
        collective = opened(exchange)
        assert collective.channel is not None and collective.channel.node is None
        (found,) = reduce(collective, 0, [np.full(elements, RANK + 1, np.float32)])
        assert (found == sum(range(1, SIZE + 1))).all()


def case_collectives_at_once_and_in_graphs() -> None:
    every = [np.arange(6 + r, dtype=np.float32).reshape(-1, 1) * [1, 10] + r for r in range(SIZE)]
    equal = [np.arange(10, dtype=np.int64).reshape(5, 2) + r for r in range(SIZE)]
    total = np.sum(equal, axis=0)
    scattered = np.array_split(total, SIZE)[RANK]
    exchanged = np.concatenate([np.array_split(e, SIZE)[RANK] for e in every])
    counts = [len(np.array_split(e, SIZE)[RANK]) for e in every]
    np.testing.assert_array_equal(tfdist.all_gather(every[RANK]), np.concatenate(every))
    np.testing.assert_array_equal(tfdist.reduce_scatter(equal[RANK]), scattered)
    received, found = tfdist.all_to_all(every[RANK])
    np.testing.assert_array_equal(received, exchanged)
    np.testing.assert_array_equal(found, counts)
    splits = [0] * (SIZE - 1) + [len(every[RANK])]  # everything to the last
    received, found = tfdist.all_to_all(tf.constant(every[RANK]), splits)
    last = np.concatenate(every) if RANK == SIZE - 1 else np.empty((0, 2))
    np.testing.assert_array_equal(received.numpy(), last)
    with tf.Graph().as_default(), v1.Session() as session:
        gathered = tfdist.all_gather(tf.constant(every[RANK]))
        parts, numbers = tfdist.all_to_all(tf.constant(every[RANK]))
        scatter = tfdist.reduce_scatter(tf.constant(equal[RANK]))
        greatest = tfdist.all_reduce(tf.constant(equal[RANK]), "max")
        chosen = tfdist.broadcast(tf.constant(equal[RANK]), root=SIZE - 1)
        assert gathered.shape.as_list() == [None, 2]
        for _ in range(2):
            results = session.run([gathered, parts, numbers, scatter, greatest, chosen])
        expected = [np.concatenate(every), exchanged, counts, scattered, np.max(equal, axis=0), equal[-1]]
        for result, value in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, value)


def case_an_exchange_of_more_than_mpi_counts() -> None:
    """The exchange has pieces of a few bytes here, from parts of different sizes, some of them empty."""
    sizes = [[(3 * sender + 5 * receiver) % 7 * 40 for receiver in range(SIZE)] for sender in range(SIZE)]

    def part(sender: int, receiver: int) -> np.ndarray:
        return np.arange(sizes[sender][receiver], dtype=np.float32) + 1000 * sender + receiver

    own = np.concatenate([part(RANK, receiver) for receiver in range(SIZE)])
    narrow = (np.arange(1000) % 7 + RANK).astype(np.float16)
    with channels_with(piece_bytes=64):
        received, counts = tfdist.all_to_all(own, sizes[RANK])
        total = tfdist.all_reduce(narrow, "sum")
    np.testing.assert_array_equal(counts, [sizes[sender][RANK] for sender in range(SIZE)])
    np.testing.assert_array_equal(received, np.concatenate([part(sender, RANK) for sender in range(SIZE)]))
    np.testing.assert_array_equal(total, sum((np.arange(1000) % 7 + rank).astype(np.float16) for rank in range(SIZE)))


def case_an_arrival_of_many_ranks() -> None:
    """The ranks first compare whether all bring the same, at a cost that does not depend on the number of ranks."""
    control = job().world.control
    with channels_with(gathered_ranks=0):
        assert control.arrive("the same", 7) == [7] * SIZE
        assert control.arrive("not the same", RANK) == list(range(SIZE))
        own = "a place" if RANK else "another place"
        with pytest.raises(tfdist.DisagreementError, match="rank 0 is in another place, but rank 1 in a place"):
            control.arrive(own)
        with pytest.raises(tfdist.DisagreementError, match="rank 0 brings 8 bytes to it, but rank 1 9 bytes"):
            control.arrive("it", size_bytes=8 + (RANK > 0))


def case_shared_memory_is_there_when_it_is_given_out() -> None:
    """All pages are allocated: with a full /dev/shm, the first access to a page would kill the rank in a step."""
    node = job().world.channel("a test", shared=True).node
    if node is not None:  # several ranks share a machine
        for inputs in node.inputs:
            assert pages_bytes(inputs[node.index]) >= inputs[node.index].nbytes


def case_groups() -> None:
    evens, others = tfdist.new_group(range(0, SIZE, 2)), tfdist.new_group([SIZE - 1])
    if evens.rank is not None:
        own = np.full(3, RANK, np.float32)
        np.testing.assert_allclose(tfdist.all_reduce(own, "sum", group=evens), sum(evens.ranks))
        np.testing.assert_array_equal(tfdist.all_gather(own[:1], group=evens), evens.ranks)
        assert tfdist.broadcast(RANK, root=evens.size - 1, group=evens) == evens.ranks[-1]
        tfdist.barrier(group=evens)
        with tf.Graph().as_default(), v1.Session() as session:
            total = tfdist.all_reduce(tf.constant(own), "sum", group=evens)
            for _ in range(2):
                np.testing.assert_allclose(session.run(total), sum(evens.ranks))
    assert (others.rank is None) == (SIZE - 1 != RANK)
    if others.rank is None:
        try:
            tfdist.barrier(group=others)
        except ValueError as error:
            assert f"rank {RANK} is not in the group" in str(error)
        else:
            raise AssertionError("a rank outside took part")


def case_a_group_of_one_rank() -> None:
    alone = tfdist.new_group([SIZE - 1])
    if alone.rank is not None:
        for dtype in (np.float16, np.int8, np.float32):
            own = np.arange(5).astype(dtype)
            np.testing.assert_array_equal(tfdist.all_reduce(own, "sum", group=alone), own)
    tfdist.barrier()


def case_join() -> None:
    for way in WAYS:
        with subtest(way):
            _join(way)


def _join(way: Choice) -> None:
    """Rank r has data for 3 + 2 r steps; the mean is over the ranks that still train; all end with equal values."""
    steps = [3 + 2 * r for r in range(SIZE)]
    expected = np.float32(1)
    for number in range(max(steps)):
        training = [r for r in range(SIZE) if number < steps[r]]
        expected -= np.float32(0.01) * np.mean([(r + 1) * (number + 1) for r in training], dtype=np.float32)
    with settings(way, bucket_mb=1e-5), tf.Graph().as_default(), v1.Session() as session:
        w = v1.get_variable("w", [4], initializer=v1.ones_initializer())
        u = v1.get_variable("u", [9, 2], initializer=v1.ones_initializer())
        e = v1.get_variable("e", [5, 2], initializer=v1.ones_initializer())
        factor = v1.placeholder("float32", [])
        loss = (tf.reduce_sum(w) + tf.reduce_sum(u) + tf.reduce_sum(tf.nn.embedding_lookup(e, [0, 2]))) * factor
        step = v1.train.GradientDescentOptimizer(0.01).minimize(loss)
        initializer = v1.global_variables_initializer()
        for _ in range(2):  # training can continue after the join
            session.run(initializer)
            for number in range(steps[RANK]):
                session.run(step, {factor: (RANK + 1) * (number + 1)})
            assert tfdist.join() == SIZE - 1
            for value in session.run([w, u, tf.gather(e, [0, 2])]):
                np.testing.assert_allclose(value, expected, rtol=1e-5)
            np.testing.assert_array_equal(session.run(e)[1], 1)


def case_no_threads_pile_up() -> None:
    def own() -> set[threading.Thread]:  # without TensorFlow's threads, which Python sees when they call it
        return {thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}

    before = own()
    with settings(bucket_mb=1e-5), tf.Graph().as_default(), v1.Session() as session:
        w = [v1.get_variable(f"w{n}", [8], initializer=v1.ones_initializer()) for n in range(5)]
        step = v1.train.GradientDescentOptimizer(0.01).minimize(tf.add_n([tf.reduce_sum(x) for x in w]))
        session.run(v1.global_variables_initializer())
        for _ in range(50):
            session.run(step)
    assert len(own() - before) <= 1, [t.name for t in own() - before]


def case_settings_are_kept() -> None:
    with settings():
        tfdist.configure(bucket_mb=3)
        found = current_settings()
        assert (found.bucket_mb, found.origins["bucket_mb"]) == (3, "tfdist.configure")
    with (
        settings(),
        pytest.raises(tfdist.SettingsError, match="engine is read when tfdist is imported: set TFDIST_ENGINE"),
    ):
        tfdist.configure(engine="mpi")


def resident_bytes() -> int:
    """Return the resident memory of this process, shared memory included."""
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def case_memory_is_bounded_and_does_not_grow() -> None:
    """Memory is at most three times the gradients at the default settings, and the same after 1,000 steps."""
    for way in WAYS:
        with subtest(way):
            memory_of(way)


def memory_of(way: Choice) -> None:
    sizes = [1 << 20, 3 << 20, 5 << 20, 1000]
    with settings(way), tf.Graph().as_default() as graph, v1.Session() as session:
        variables = [v1.get_variable(f"w{n}", [s // 4], initializer=v1.ones_initializer()) for n, s in enumerate(sizes)]
        small = v1.get_variable("small", [64], initializer=v1.ones_initializer())
        optimizer = v1.train.GradientDescentOptimizer(0.0)
        large_step = optimizer.minimize(tf.add_n([tf.reduce_sum(v) for v in variables]), var_list=variables)
        small_step = optimizer.minimize(tf.reduce_sum(small), var_list=[small])
        with tf.control_dependencies([small_step]):
            both_steps = optimizer.minimize(tf.reduce_sum(variables[0]), var_list=variables[:1])
        session.run(v1.global_variables_initializer())
        for _ in range(5):
            session.run(large_step)
        owned = bytes_of_buffers(graph)
        assert sum(owned) <= 3 * sum(sizes), owned
        for _ in range(20):
            session.run(both_steps)
            session.run(large_step)
        before = resident_bytes()
        for number in range(1000):
            session.run(small_step if number % 20 else large_step)
        assert resident_bytes() - before < 8 << 20
