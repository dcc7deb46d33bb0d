"""Horovod's operations on tensors: values, gradients, names, process sets, and arguments that differ by rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tfdist
import tfdist.horovod as hvd
from tests.multirank import inside
from tests.multirank.inside import captured_log
from tfdist.horovod._state import state
from tfdist.horovod.named.requests import Request, tensors_of

hvd.init()
v1 = tf.compat.v1
RANK, SIZE = hvd.rank(), hvd.size()
FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
INTEGERS = (tf.uint8, tf.int8, tf.int32, tf.int64)


def own(rank: int, shape: Sequence[int] = (3, 2)) -> np.ndarray:
    """Return a rank's input: small numbers that differ from rank to rank."""
    return np.random.RandomState(rank).randint(-4, 5, shape).astype(np.float32)


EVERY = [own(r) for r in range(SIZE)]


def everyway(call: Callable[[Any], Any], value: Any, dtype: Any = tf.float32) -> list[np.ndarray]:
    """Return the results of eager mode, of a function, and of a session."""
    found = [call(tf.constant(value, dtype))]
    found.append(tf.function(call)(tf.constant(value, dtype)))
    with tf.Graph().as_default(), v1.Session() as session:
        given = v1.placeholder(dtype, np.shape(value))
        found.append(session.run(call(given), {given: tf.constant(value, dtype).numpy() if tf.executing_eagerly()
                                               else np.asarray(value, dtype.as_numpy_dtype)}))  # fmt: skip
    return [np.asarray(tf.nest.flatten(f)[0]) for f in found]


def all_equal(found: Sequence[Any], expected: Any, rtol: float = 1e-7, atol: float = 0) -> None:
    """Check that each result is as expected."""
    for one in found:
        np.testing.assert_allclose(np.asarray(one, np.float64), expected, rtol, atol)


def refused(error: type[Exception], call: Callable[[], Any], match: str = "") -> str:
    """Check that the call raises on every rank within 10 s, and that the next operation works."""
    start = time.monotonic()
    with pytest.raises(error, match=match) as found:
        call()
    assert time.monotonic() - start < 10, f"it took {time.monotonic() - start:.0f} s"
    np.testing.assert_array_equal(hvd.allreduce(tf.constant(RANK + 1), op=hvd.Sum), SIZE * (SIZE + 1) // 2)
    return str(found.value)


def case_numbers() -> None:
    assert hvd.is_initialized()
    assert (tfdist.rank(), tfdist.size()) == (RANK, SIZE)
    assert (hvd.local_rank(), hvd.local_size()) == (tfdist.local_rank(), tfdist.local_size())
    assert inside.everywhere(hvd.rank()) == list(range(SIZE))
    nodes = inside.job().world.topology.nodes
    node = next(i for i, ranks in enumerate(nodes) if RANK in ranks)
    assert hvd.cross_rank() == node and hvd.cross_size() == len(nodes)
    assert hvd.is_homogeneous() == (len({len(n) for n in nodes}) == 1)
    assert hvd.mpi_enabled() == (SIZE > 1) and hvd.mpi_built() and hvd.mpi_threads_supported() == (SIZE > 1)
    for name in ("gloo_built", "gloo_enabled", "nccl_built", "ddl_built", "ccl_built", "cuda_built", "rocm_built"):
        assert not getattr(hvd, name)(), name
    expected = {"rank_op": RANK, "size_op": SIZE, "local_rank_op": hvd.local_rank(), "local_size_op": hvd.local_size()}
    for name, value in expected.items():
        assert int(getattr(hvd, name)()) == value and getattr(hvd, name)().dtype == tf.int32, name
    assert int(hvd.process_set_included_op()) == 1


def case_allreduce_of_every_dtype() -> None:
    total = sum(EVERY)
    for dtype in FLOATS:
        all_equal(everyway(lambda x: hvd.allreduce(x, op=hvd.Sum), EVERY[RANK], dtype), total)
        tolerance = {tf.float16: 2e-3, tf.bfloat16: 1e-2}.get(dtype, 1e-6)
        mean = hvd.allreduce(tf.constant(EVERY[RANK], dtype))
        assert mean.dtype == dtype
        all_equal([tf.cast(mean, tf.float64)], total / SIZE, rtol=tolerance)
    for dtype in (*INTEGERS, tf.float32):
        given = np.abs(EVERY) if dtype == tf.uint8 else np.array(EVERY)
        mine = tf.constant(given[RANK], dtype)
        for op, expected in (
            (hvd.Sum, given.sum(0)), (hvd.Min, given.min(0)), (hvd.Max, given.max(0)), (hvd.Product, given.prod(0)),
        ):  # fmt: skip
            found = hvd.allreduce(mine, op=op)
            assert found.dtype == dtype
            all_equal([found], expected.astype(dtype.as_numpy_dtype))
    all_equal([hvd.allreduce(tf.constant(EVERY[RANK], tf.int32))], np.trunc(total / SIZE))
    all_equal([hvd.allreduce(tf.constant([100, 250], tf.uint8))], [100, 250])
    assert bool(hvd.allreduce(tf.constant(RANK == 0), op=hvd.Max))
    assert bool(hvd.allreduce(tf.constant(RANK == 0), op=hvd.Min)) == (SIZE == 1)
    all_equal([hvd.allreduce(EVERY[RANK], average=False), hvd.allreduce(EVERY[RANK], False)], total)
    all_equal([hvd.allreduce(EVERY[RANK], average=True)], total / SIZE, rtol=1e-6)


def case_scaled() -> None:
    total = sum(EVERY)
    found = everyway(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0), EVERY[RANK])
    all_equal(found, total * 1.5)
    integers = hvd.allreduce(tf.constant(EVERY[RANK], tf.int32), op=hvd.Sum, postscale_factor=0.5)
    all_equal([integers], np.trunc(total * 0.5))


def case_in_groups() -> None:
    mine = [tf.constant(EVERY[RANK]), tf.constant(RANK, tf.int64), tf.constant(EVERY[RANK][0] * 2)]
    found = hvd.grouped_allreduce(mine, op=hvd.Sum)
    for one, expected in zip(found, (sum(EVERY), sum(range(SIZE)), 2 * sum(e[0] for e in EVERY)), strict=True):
        all_equal([one], expected)
    gathered = hvd.grouped_allgather([tf.fill([RANK + 1, 2], RANK), tf.constant([RANK])])
    all_equal([gathered[0]], np.concatenate([np.full([r + 1, 2], r) for r in range(SIZE)]))
    all_equal([gathered[1]], range(SIZE))
    parts = hvd.grouped_reducescatter([tf.range(5) * (RANK + 1), tf.ones([SIZE, 2])], op=hvd.Sum)
    factor = SIZE * (SIZE + 1) // 2
    all_equal([parts[0]], np.array_split(np.arange(5) * factor, SIZE)[RANK])
    all_equal([parts[1]], np.full([1, 2], SIZE))


def case_compressed() -> None:
    value = EVERY[RANK] + np.float32(2**-12)
    for compression, dtype in ((hvd.Compression.fp16, np.float16), (hvd.Compression.bf16, tf.bfloat16.as_numpy_dtype)):
        expected = np.sum([(e + np.float32(2**-12)).astype(dtype).astype(np.float32) for e in EVERY], 0)
        found = hvd.allreduce(tf.constant(value), op=hvd.Sum, compression=compression)
        assert found.dtype == tf.float32
        all_equal([found], expected, rtol=1e-2, atol=1e-2)
        integers = hvd.allreduce(tf.constant([RANK]), op=hvd.Sum, compression=compression)
        all_equal([integers], [sum(range(SIZE))])
    too_large = hvd.allreduce(tf.constant([1e6 * (RANK + 1)]), compression=hvd.Compression.fp16)
    assert np.isinf(too_large.numpy()).all()


def case_slices() -> None:
    def slices(rank: int) -> tf.IndexedSlices:
        return tf.IndexedSlices(tf.ones([rank + 1, 2]) * (rank + 1), tf.range(rank + 1), tf.constant([7, 2]))

    dense = np.zeros([7, 2])
    for r in range(SIZE):
        dense[: r + 1] += r + 1
    for op, expected in ((hvd.Average, dense / SIZE), (hvd.Sum, dense)):
        found = hvd.allreduce(slices(RANK), op=op)
        assert isinstance(found, tf.IndexedSlices)
        all_equal([tf.convert_to_tensor(found)], expected, rtol=1e-6)
    integers = tf.IndexedSlices(tf.fill([1, 2], RANK + 1), tf.constant([0]), tf.constant([7, 2]))
    assert hvd.allreduce(integers, op=hvd.Sum).values.dtype == tf.int32
    all_equal([hvd.allreduce(integers).values], np.repeat([[(r + 1) / SIZE] for r in range(SIZE)], 2, axis=1))
    both = hvd.grouped_allreduce([slices(RANK), tf.constant([1.0 + RANK])], op=hvd.Sum)
    all_equal([tf.convert_to_tensor(both[0])], dense)
    all_equal([both[1]], [SIZE * (SIZE + 1) / 2])
    for op in (hvd.Min, hvd.Max, hvd.Product, hvd.Adasum):
        refused(NotImplementedError, lambda op=op: hvd.allreduce(slices(RANK), op=op))  # type: ignore[misc]
    refused(NotImplementedError, lambda: hvd.allreduce(slices(RANK), prescale_factor=0.5))


def case_allgather_and_broadcast() -> None:
    rows = [np.arange(2 * (r + 1), dtype=np.float32).reshape(r + 1, 2) + r for r in range(SIZE)]
    all_equal(everyway(hvd.allgather, rows[RANK]), np.concatenate(rows))
    for dtype in (*FLOATS, *INTEGERS, tf.bool, tf.uint16):
        mine = tf.cast(tf.constant(RANK % 2, shape=[RANK + 1]), dtype)
        expected = np.concatenate([np.full(r + 1, r % 2) for r in range(SIZE)])
        all_equal([tf.cast(hvd.allgather(mine), tf.float64)], expected)
        root = SIZE - 1
        found = hvd.broadcast(tf.cast(tf.constant(RANK % 2), dtype), root)
        assert found.dtype == dtype and float(tf.cast(found, tf.float32)) == root % 2
    all_equal(everyway(lambda x: hvd.broadcast(x, SIZE - 1), EVERY[RANK]), EVERY[-1])
    assert hvd.allgather(tf.constant(["ab" * RANK])).numpy().tolist() == [b"ab" * r for r in range(SIZE)]
    empty = hvd.allgather(tf.zeros([0, 3]))
    assert empty.shape == (0, 3)


def case_alltoall() -> None:
    sent = {r: np.arange(2 * SIZE) + 100 * r for r in range(SIZE)}
    equally = np.concatenate([sent[r][2 * RANK : 2 * RANK + 2] for r in range(SIZE)])
    all_equal(everyway(hvd.alltoall, sent[RANK], tf.int32), equally)
    splits = [[(r + to) % 3 for to in range(SIZE)] for r in range(SIZE)]
    values = [np.arange(sum(s)) + 100 * r for r, s in enumerate(splits)]
    starts = [np.cumsum([0, *s]) for s in splits]
    expected = np.concatenate([values[r][starts[r][RANK] : starts[r][RANK + 1]] for r in range(SIZE)])
    found, received = hvd.alltoall(tf.constant(values[RANK]), splits=splits[RANK])
    all_equal([found], expected)
    all_equal([received], [splits[r][RANK] for r in range(SIZE)])
    assert received.dtype == tf.int32
    in_function, count = tf.function(hvd.alltoall)(tf.constant(values[RANK]), tf.constant(splits[RANK]))
    all_equal([in_function], expected)
    all_equal([count], received)


def case_reducescatter() -> None:
    values = [np.random.RandomState(r).randn(2 * SIZE + 1, 3).astype(np.float32) for r in range(SIZE)]
    for op, whole in ((hvd.Sum, np.sum(values, 0)), (hvd.Average, np.mean(values, 0)), (hvd.Max, np.max(values, 0))):
        expected = np.array_split(whole, SIZE)[RANK]
        all_equal(everyway(lambda x, op=op: hvd.reducescatter(x, op=op), values[RANK]), expected, atol=1e-6)  # type: ignore[misc]
    found = hvd.reducescatter(values[RANK], op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25)
    all_equal([found], np.array_split(np.sum(values, 0) / 2, SIZE)[RANK], atol=1e-6)


def adasum(vectors: Sequence[np.ndarray]) -> np.ndarray:
    """Return Adasum of the vectors by the published formula, in float64."""
    if len(vectors) == 1:
        return vectors[0]
    a, b = (adasum([v.astype(np.float64) for v in half]) for half in np.array_split(vectors, 2))
    dot = (a * b).sum()
    return (1 - dot / (2 * (a * a).sum())) * a + (1 - dot / (2 * (b * b).sum())) * b


def pairwise(vectors: list[np.ndarray]) -> np.ndarray:
    """Combine neighbours first, then the results."""
    while len(vectors) > 1:
        vectors = [adasum(vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def case_adasum() -> None:
    vectors = [np.random.RandomState(r).randn(41).astype(np.float32) for r in range(SIZE)]
    if SIZE & (SIZE - 1):
        refused(NotImplementedError, lambda: hvd.allreduce(vectors[RANK], op=hvd.Adasum))
        return
    expected = pairwise(list(vectors))
    all_equal(everyway(lambda x: hvd.allreduce(x, op=hvd.Adasum), vectors[RANK]), expected, rtol=1e-4, atol=1e-5)
    same = tf.constant(vectors[0])
    all_equal([hvd.allreduce(same, op=hvd.Adasum)], vectors[0], rtol=1e-5)  # equal vectors are not added up
    all_equal([hvd.allreduce(tf.zeros([5]), op=hvd.Adasum)], np.zeros(5))


def gradients(call: Callable[[Any], Any], value: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    """Return gradients of ``sum(upstream * call(value))`` from a tape, a function, and a session."""

    def by_tape(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = call(x)
        return tape.gradient(y, x, tf.constant(upstream))

    found = [by_tape(tf.constant(value)), tf.function(by_tape)(tf.constant(value))]
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, value.shape)
        found.append(session.run(tf.gradients(call(x), x, tf.constant(upstream))[0], {x: value}))
    return [np.asarray(f) for f in found]


def case_gradients() -> None:
    value = EVERY[RANK]
    ups = [np.random.RandomState(9 + r).randn(3, 2).astype(np.float32) for r in range(SIZE)]
    total = np.sum(ups, 0)
    all_equal(gradients(lambda x: hvd.allreduce(x, op=hvd.Sum), value, ups[RANK]), total, rtol=1e-4, atol=1e-6)
    all_equal(gradients(hvd.allreduce, value, ups[RANK]), total / SIZE, rtol=1e-4, atol=1e-6)
    scaled = gradients(lambda x: hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), value, ups[RANK])
    all_equal(scaled, total / 2, rtol=1e-4, atol=1e-6)
    root = SIZE - 1
    broadcast = gradients(lambda x: hvd.broadcast(x, root), value, ups[RANK])
    all_equal(broadcast, total / SIZE if root == RANK else np.zeros([3, 2]), rtol=1e-4, atol=1e-6)
    # The rows of rank r are 3 r … 3 r + 2 of the gathered tensor.
    rows = [np.random.RandomState(19 + r).randn(3 * SIZE, 2).astype(np.float32) for r in range(SIZE)]
    expected = np.mean(rows, 0)[3 * RANK : 3 * RANK + 3]
    all_equal(gradients(hvd.allgather, value, rows[RANK]), expected, rtol=1e-4, atol=1e-6)
    mine = np.ones([SIZE, 2], np.float32)
    part = np.concatenate([u[:1] for u in ups])
    all_equal(
        gradients(lambda x: hvd.reducescatter(x, op=hvd.Sum), mine, ups[RANK][:1]), SIZE * part, rtol=1e-4, atol=1e-6
    )
    all_equal(gradients(hvd.reducescatter, mine, ups[RANK][:1]), part, rtol=1e-4, atol=1e-6)
    there = np.arange(SIZE * 2, dtype=np.float32).reshape(SIZE, 2)
    wants = [np.random.RandomState(29 + r).randn(SIZE, 2).astype(np.float32) for r in range(SIZE)]
    back = np.stack([wants[to][RANK] for to in range(SIZE)])
    all_equal(gradients(hvd.alltoall, there, wants[RANK]), back, rtol=1e-4, atol=1e-6)
    first, second = tf.constant(value), tf.constant(value * 2)
    with tf.GradientTape() as tape:
        tape.watch([first, second])
        a, b = hvd.grouped_allreduce([first, second], op=hvd.Sum)
        loss = tf.reduce_sum(a * ups[RANK]) + 3 * tf.reduce_sum(b * ups[RANK])
    for found, factor in zip(tape.gradient(loss, [first, second]), (1, 3), strict=True):
        all_equal([found], factor * total, rtol=1e-4, atol=1e-6)


def case_many_in_any_order() -> None:
    """Each rank begins the operations in another order, in a function and in a session, with few threads."""
    order = np.random.RandomState(RANK).permutation(40)

    def many(x: Any) -> Any:
        found = {i: hvd.allreduce(x * float(i), name=f"many.{i}", op=hvd.Sum) for i in order}
        return tf.stack([found[i] for i in range(40)])

    factor = SIZE * (SIZE + 1) / 2
    expected = factor * np.arange(40)[:, None] * np.ones(3)
    mine = np.full(3, RANK + 1, np.float32)
    for _ in range(3):
        all_equal([tf.function(many)(tf.constant(mine))], expected)
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [3])
        result = many(x)
        one = v1.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
        for config in (one, v1.ConfigProto()):
            with v1.Session(config=config) as session:
                for _ in range(3):
                    all_equal([session.run(result, {x: mine})], expected)


def case_one_after_the_other_in_conditions_and_loops() -> None:
    @tf.function
    def repeated(x: tf.Tensor, times: tf.Tensor) -> tf.Tensor:
        for _ in tf.range(times):
            x = hvd.allreduce(x, op=hvd.Sum, name="in a loop")
        return tf.cond(times > 1, lambda: hvd.allreduce(x, name="in a condition"), lambda: x)

    all_equal([repeated(tf.constant(float(RANK + 1)), tf.constant(3))], SIZE * (SIZE + 1) / 2 * SIZE**2)


def case_rows_without_elements() -> None:
    """The number of rows does not follow from the number of bytes."""
    for call in (lambda f, x: f(x), lambda f, x: tf.function(f)(x)):
        assert call(hvd.alltoall, tf.zeros([2 * SIZE, 0])).shape == [2 * SIZE, 0]
        assert call(hvd.alltoall, tf.zeros([0, 3])).shape == [0, 3]
        assert call(hvd.allgather, tf.zeros([RANK + 1, 0, 2])).shape == [SIZE * (SIZE + 1) // 2, 0, 2]
        assert call(hvd.reducescatter, tf.zeros([SIZE, 0])).shape == [1, 0]
        assert call(hvd.allreduce, tf.zeros([2, 0])).shape == [2, 0]
        assert call(lambda x: hvd.broadcast(x, 0), tf.zeros([2, 0])).shape == [2, 0]
        received, counts = call(lambda x: hvd.alltoall(x, [RANK] * SIZE), tf.zeros([RANK * SIZE, 0]))
        assert received.shape == [SIZE * (SIZE - 1) // 2, 0]
        all_equal([counts], range(SIZE))


def case_names_of_modules() -> None:
    """Modules are imported as real scripts import them."""
    from tfdist.horovod.compression import Compression
    from tfdist.horovod.elastic import TensorFlowKerasState
    from tfdist.horovod.functions import broadcast_object, broadcast_variables
    from tfdist.horovod.keras.callbacks import BroadcastGlobalVariablesCallback
    from tfdist.horovod.mpi_ops import Average, Sum, _allreduce, allgather, broadcast, rank, size
    from tfdist.horovod.sync_batch_norm import SyncBatchNormalization

    found = (Compression, broadcast_object, broadcast_variables, SyncBatchNormalization, Average)
    names = ("Compression", "broadcast_object", "broadcast_variables", "SyncBatchNormalization", "Average")
    assert found == tuple(getattr(hvd, name) for name in names)
    assert hvd.mpi_ops.Sum is Sum is hvd.Sum and (rank(), size()) == (RANK, SIZE) and allgather is hvd.allgather
    assert broadcast is hvd.broadcast and TensorFlowKerasState is hvd.elastic.TensorFlowKerasState
    assert BroadcastGlobalVariablesCallback.__name__
    all_equal([_allreduce(tf.constant(2.0))], 2.0 * SIZE)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(hvd.mpi_ops, "nothing")  # noqa: B009


def case_what_does_not_fit() -> None:
    precondition, argument = tf.errors.FailedPreconditionError, tf.errors.InvalidArgumentError
    if SIZE == 1:
        return
    refused(precondition, lambda: hvd.allreduce(tf.ones([2 + RANK])), "shape")
    refused(precondition, lambda: hvd.allreduce(tf.ones([2] * (1 + RANK % 2))), "shape")
    refused(precondition, lambda: hvd.allreduce(tf.ones([2], tf.int32 if RANK else tf.int64)), "dtype")
    refused(precondition, lambda: hvd.allreduce(tf.ones([2]), op=hvd.Max if RANK else hvd.Min, name="o"), "op M")
    refused(precondition, lambda: hvd.allreduce(tf.ones([2]), prescale_factor=1.0 + RANK, name="p"), "prescale")
    refused(precondition, lambda: hvd.allgather(tf.ones([2, 2 + RANK])), "shape")
    refused(precondition, lambda: hvd.allgather(tf.ones([2], tf.int32 if RANK else tf.int64)), "dtype")
    refused(precondition, lambda: hvd.broadcast(tf.ones([2 + RANK]), 0), "shape")
    refused(precondition, lambda: hvd.broadcast(tf.ones([2]), RANK % 2), "root rank")
    refused(precondition, lambda: hvd.alltoall(tf.ones([SIZE, 1 + RANK])), "shape")
    refused(precondition, lambda: hvd.reducescatter(tf.ones([4 + RANK])), "shape")
    refused(precondition, lambda: hvd.grouped_allreduce([tf.ones([2])] * (1 + RANK % 2), name="g"), "tensors")
    other: dict[int, Callable[..., Any]] = {0: hvd.allreduce, 1: hvd.allgather}
    refused(precondition, lambda: other[RANK % 2](tf.ones([2]), name="another operation"), "operation")
    refused(argument, lambda: hvd.broadcast(tf.ones([2]), SIZE + 3), "root_rank")
    refused(argument, lambda: hvd.allgather(tf.constant(1.0)), "scalar")
    refused(argument, lambda: hvd.alltoall(tf.ones([SIZE + 1])), "equally")
    refused(argument, lambda: hvd.allreduce(tf.constant(["a"]), op=hvd.Sum), "strings")
    if not SIZE & (SIZE - 1):
        refused(argument, lambda: hvd.allreduce(tf.constant([1, 2]), op=hvd.Adasum), "floating")
    refused(precondition, lambda: hvd.broadcast_object("x", RANK % 2), "root rank")
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([0]), tf.constant([3, 2]))
    refused(precondition, lambda: hvd.allreduce(tf.ones([3, 2]) if RANK else slices, name="slices of one rank"))
    refused(precondition, lambda: hvd.allreduce(tf.ones([2]), name=f"of rank {RANK}"), "has not been begun")
    said = refused(argument, lambda: hvd.alltoall(tf.ones([4]), splits=[4] * SIZE if RANK == 1 else _first(4)))
    assert "rank 1" in said
    in_function = tf.function(lambda x: hvd.allreduce(x, name="of other shapes"))
    refused(precondition, lambda: in_function(tf.ones([2 + RANK])), "shape")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None])
        y, fine = hvd.allreduce(x, name="in a session"), hvd.allreduce(tf.constant(1.0 + RANK), op=hvd.Sum)
        for _ in range(3):
            with pytest.raises(precondition, match="shape"):
                session.run(y, {x: np.ones(2 + RANK)})
            assert session.run(fine) == SIZE * (SIZE + 1) / 2
            all_equal([session.run(y, {x: np.ones(3)})], np.ones(3))


def _first(rows: int) -> list[int]:
    return [rows] + [0] * (SIZE - 1)


def case_wrong_arguments() -> None:
    x = tf.ones([2])
    refused(ValueError, lambda: hvd.allreduce(x, op=17), "hvd.Average")
    refused(ValueError, lambda: hvd.allreduce(x, average=True, op=hvd.Sum), "both")
    for horovods_own in (tf.errors.InvalidArgumentError, ValueError):
        refused(horovods_own, lambda: hvd.allreduce(x, process_set=99), "99")
    refused(tf.errors.InvalidArgumentError, lambda: hvd.allreduce(x, process_set=hvd.ProcessSet([0])), "unknown")
    hvd.shutdown()
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, lambda: hvd.allreduce(x), hvd.join, hvd.mpi_enabled, hvd.rank_op):
        with pytest.raises(ValueError, match="init"):
            call()
    hvd.init()
    hvd.init()
    all_equal([hvd.allreduce(tf.constant(float(RANK)))], (SIZE - 1) / 2)


def case_a_name_twice_under_way() -> None:
    if SIZE == 1:
        return
    negotiation = state.own(0)
    one = np.ones(1, np.float32)
    last = RANK == SIZE - 1
    inside.everywhere(None)
    if last:  # the others' first ones cannot have ended before
        time.sleep(0.5)
    first = negotiation.begin(Request("allreduce", "a name", tensors_of("allreduce", [one]), op="Sum"), [one])
    if not last:
        with pytest.raises(tf.errors.InvalidArgumentError, match="under way"):
            hvd.allreduce(tf.ones([1]), name="a name")
    assert first.result()[0] == SIZE


def case_process_sets() -> None:
    if SIZE == 1:
        return
    even, odd = [r for r in range(SIZE) if r % 2 == 0], [r for r in range(SIZE) if r % 2]
    sets = [hvd.add_process_set(even), hvd.add_process_set(hvd.ProcessSet(odd))]
    mine, ranks = (sets[0], even) if RANK in even else (sets[1], odd)
    other = sets[1] if RANK in even else sets[0]
    assert mine.size() == len(ranks) and mine.rank() == ranks.index(RANK) and mine.included() and not other.included()
    assert int(hvd.size_op(mine.process_set_id)) == len(ranks)
    assert int(hvd.process_set_included_op(other.process_set_id)) == 0
    for step in range(20):  # each at its own pace
        found = hvd.allreduce(tf.constant([RANK + step]), op=hvd.Sum, process_set=mine)
        all_equal([found], [sum(ranks) + step * len(ranks)])
        all_equal([hvd.allgather(tf.constant([RANK]), process_set=mine)], ranks)
        all_equal([hvd.broadcast(tf.constant(RANK), ranks[-1], process_set=mine)], ranks[-1])
        if RANK in odd:
            hvd.barrier(mine)
    assert hvd.allgather_object({"rank": RANK}, process_set=mine) == [{"rank": r} for r in ranks]
    assert hvd.broadcast_object(RANK, ranks[-1], process_set=mine) == ranks[-1]
    all_equal([hvd.alltoall(tf.repeat(RANK, len(ranks)), process_set=mine)], ranks)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in process set"):
        hvd.allreduce(tf.ones([2]), process_set=other)
    refused(ValueError, lambda: hvd.add_process_set(even), "already")
    refused(ValueError, lambda: hvd.add_process_set([0, SIZE]), "ranks")
    assert not hvd.remove_process_set(hvd.global_process_set)
    for one in sets:
        assert hvd.remove_process_set(one) and one.process_set_id is None and one.size() is None
        assert not hvd.remove_process_set(one)
    refused(tf.errors.InvalidArgumentError, lambda: hvd.allreduce(tf.ones([2]), process_set=mine), "unknown")
    assert hvd.allreduce(tf.constant(1.0), name="join", op=hvd.Sum) == SIZE
    refused(tf.errors.FailedPreconditionError, lambda: hvd.add_process_set([0] if RANK else [1]), "ranks")
    assert hvd.global_process_set.ranks == list(range(SIZE)) and hvd.global_process_set.size() == SIZE


def case_join() -> None:
    for _ in range(2):  # twice, to see that it begins anew
        for step in range(RANK + 1):  # rank r has r + 1 steps
            there = [r for r in range(SIZE) if r >= step]
            found = hvd.allreduce(tf.constant([RANK + 1.0]), op=hvd.Sum, name=f"step {step}")
            all_equal([found], [sum(r + 1 for r in there)])
            mean = hvd.allreduce(tf.constant([RANK + 1.0]), name=f"mean {step}")
            all_equal([mean], [sum(r + 1 for r in there) / SIZE], rtol=1e-6)
        if RANK == SIZE - 1 and SIZE > 1:
            with pytest.raises(tf.errors.FailedPreconditionError, match="join"):
                hvd.allgather(tf.ones([1]))
        assert int(hvd.join()) == SIZE - 1


def case_objects_and_variables() -> None:
    assert hvd.broadcast_object({"from": RANK, "x": "é" * RANK}, SIZE - 1) == {"from": SIZE - 1, "x": "é" * (SIZE - 1)}
    assert hvd.broadcast_object_fn(0)(["of", RANK]) == ["of", 0]
    assert hvd.allgather_object(("x" * RANK, RANK)) == [("x" * r, r) for r in range(SIZE)]
    variables = [tf.Variable(EVERY[RANK]), tf.Variable(RANK, dtype=tf.int64), tf.Variable(RANK == 0)]
    assert hvd.broadcast_variables(variables, root_rank=SIZE - 1) is None
    all_equal([variables[0]], EVERY[-1])
    assert int(variables[1]) == SIZE - 1 and bool(variables[2]) == (SIZE == 1)
    hvd.broadcast_([variables[1]], 0)
    variables[0].assign(EVERY[RANK])
    tf.function(lambda: hvd.broadcast_variables(variables[:1], 0))()
    all_equal([variables[0]], EVERY[0])
    if SIZE > 1:
        other = tf.Variable(tf.zeros([2 + RANK]))
        refused(tf.errors.FailedPreconditionError, lambda: hvd.broadcast_variables([other], 0), "shape")
    refused(RuntimeError, lambda: hvd.broadcast_global_variables(0), "broadcast_variables")
    with tf.Graph().as_default(), v1.Session() as session:
        one, two = v1.get_variable("one", initializer=EVERY[RANK]), v1.get_variable("two", initializer=RANK)
        update = hvd.broadcast_global_variables(SIZE - 1)
        session.run(v1.global_variables_initializer())
        session.run(update)
        all_equal([session.run(one)], EVERY[-1])
        assert session.run(two) == SIZE - 1


def case_a_timeline_is_of_a_whole_job() -> None:
    with captured_log() as lines:
        hvd.start_timeline("/no/timeline.json", mark_cycles=True)
        hvd.allreduce(tf.constant(1.0 + RANK))
        hvd.stop_timeline()
    assert RANK or any("TFDIST_TIMELINE=" in line for line in lines), lines


def case_operations_without_names_after_a_join() -> None:
    """After a join, operations match again although the ranks have run different numbers of operations."""
    for _ in range(2):
        for step in range(RANK + 1):
            there = [r for r in range(SIZE) if r >= step]
            all_equal([hvd.allreduce(tf.constant([RANK + 1.0]), op=hvd.Sum)], [sum(r + 1 for r in there)])
        assert int(hvd.join()) == SIZE - 1


def case_runs_that_fail_leave_nothing_behind() -> None:
    """In every second step one operation has different arguments by rank, while others run or wait for it."""
    if SIZE == 1:
        return

    def build(x: Any, wrong: Any) -> Any:
        first = hvd.allreduce(x, op=hvd.Sum, name="first")
        return hvd.allreduce(first, op=hvd.Sum, name="second"), hvd.allreduce(wrong, op=hvd.Sum, name="wrong")

    in_function = tf.function(build, reduce_retracing=True)
    with tf.Graph().as_default(), v1.Session() as session:
        x, wrong = v1.placeholder(tf.float32, [2]), v1.placeholder(tf.float32, [None])
        fetches = build(x, wrong)

        def by_session(value: np.ndarray, other: np.ndarray) -> Any:
            return session.run(fetches, {x: value, wrong: other})

        def by_function(value: np.ndarray, other: np.ndarray) -> Any:
            with context.eager_mode():
                return [f.numpy() for f in in_function(tf.constant(value), tf.constant(other))]

        for step in range(12):
            value = np.full(2, step + RANK, np.float32)
            other = np.ones(2 + (RANK if step % 2 else 0), np.float32)
            expected = SIZE * (SIZE * step + SIZE * (SIZE - 1) / 2)
            for run in (by_session, by_function):
                if step % 2:
                    with pytest.raises(tf.errors.FailedPreconditionError):
                        run(value, other)
                else:
                    found = run(value, other)
                    all_equal([found[0]], [expected, expected])
                    all_equal([found[1]], [SIZE, SIZE])


def case_two_sessions_of_one_graph() -> None:
    """The session that waits is not the session that has run last."""
    with tf.Graph().as_default():
        x = v1.placeholder(tf.float32, [])
        total, plain = hvd.allreduce(x, op=hvd.Sum), x + 1
        with v1.Session() as waiting, v1.Session() as other:
            found: list[Any] = []
            thread = threading.Thread(target=lambda: found.append(waiting.run(total, {x: RANK + 1.0})))
            if RANK == 0:
                thread.start()
                time.sleep(0.3)
                assert other.run(plain, {x: 1.0}) == 2
            inside.everywhere(None)
            if RANK:
                thread.start()
            thread.join(20)
            assert found == [SIZE * (SIZE + 1) / 2]
            for step in range(12):  # the other session never waits
                assert waiting.run(total, {x: step}) == SIZE * step


def case_two_gradients_through_one_operation() -> None:
    @tf.function
    def both(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = hvd.allreduce(x, op=hvd.Sum)
            one, other = tf.reduce_sum(y), tf.reduce_sum(3 * y)
        return tape.gradient(one, x), tape.gradient(other, x)

    first, second = both(tf.ones([2]))
    all_equal([first], [SIZE, SIZE])
    all_equal([second], [3 * SIZE, 3 * SIZE])


def case_a_barrier_in_a_session() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        barrier = hvd.barrier()
        for _ in range(3):
            session.run(barrier)


def case_ranks_that_are_slow_in_different_places() -> None:
    """The all-reduce of a metric overlaps with a training step. One rank comes late to the first, the others to the
    second."""
    if SIZE == 1:
        return
    variable = tf.Variable(1.0)

    def busy(x: np.ndarray, seconds: float) -> np.ndarray:
        time.sleep(float(seconds))
        return x

    @tf.function
    def step(x: tf.Tensor, before: tf.Tensor, beside: tf.Tensor) -> tf.Tensor:
        metric = hvd.allreduce(tf.numpy_function(busy, [x, beside], tf.float32), op=hvd.Sum, name="metric")
        with tf.GradientTape() as tape:
            loss = variable * tf.ensure_shape(tf.numpy_function(busy, [x, before], tf.float32), [])
        tape = hvd.DistributedGradientTape(tape)
        variable.assign_sub(tape.gradient(loss, variable))
        return metric

    slow, soon = tf.constant(7.0), tf.constant(0.0)
    found = step(tf.constant(RANK + 1.0), slow if RANK else soon, soon if RANK else slow)
    assert float(found) == SIZE * (SIZE + 1) / 2
