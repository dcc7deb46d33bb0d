"""The parts that need no ranks: plans, shards, shares, settings."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfdist import agreement, buckets, learning_rate
from tfdist.placement import gpu_of, threads_of
from tfdist.settings import Launch, Settings, SettingsError, launch
from tfdist.shards import shard
from tfdist.world import DisagreementError

MB = 2**20


class TestBuckets:
    def test_order_sizes_and_dtypes(self) -> None:
        sizes = [("float32", 3), ("float64", 1), ("float32", 2), ("float32", 9), ("float32", 1), ("float64", 1)]
        items = [buckets.Item(dtype, size) for dtype, size in sizes]
        assert buckets.plan(items, 6) == [[0], [1, 5], [2], [3], [4]]

    def test_the_first_is_small(self) -> None:
        items = [buckets.Item("float32", 1)] * 12
        assert buckets.plan(items, 8) == [[0], [1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]

    def test_nothing_is_lost(self) -> None:
        random = np.random.RandomState(0)
        items = [buckets.Item(random.choice(["a", "b"]), int(random.randint(0, 9))) for _ in range(200)]
        plan = buckets.plan(items, 20)
        assert sorted(sum(plan, [])) == list(range(200))
        assert all(len({items[i].dtype for i in b}) == 1 for b in plan)
        assert all(len(b) == 1 or sum(items[i].size_bytes for i in b) <= 20 for b in plan)

    def test_parts_are_aligned_and_separate(self) -> None:
        whole, parts = buckets.Buffers().take([3, 0, 17, 1], np.dtype("float64"))
        assert [p.size for p in parts] == [3, 0, 17, 1]
        assert all(p.ctypes.data % buckets.ALIGNMENT_BYTES == 0 for p in parts if p.size)
        for number, part in enumerate(parts):
            part[:] = number + 1
        assert whole.sum() == 3 * 1 + 17 * 3 + 4

    def test_memory_is_used_again_only_when_nobody_holds_it(self) -> None:
        buffers = buckets.Buffers()
        whole, parts = buffers.take([100], np.dtype("float32"))
        address = whole.ctypes.data
        del whole, parts
        again, parts = buffers.take([100], np.dtype("float32"))
        assert again.ctypes.data == address
        held = parts[0].reshape(10, 10)[3:]
        del again, parts
        other, _ = buffers.take([100], np.dtype("float32"))
        assert other.ctypes.data != address
        assert held.shape == (7, 10)


class TestAgreement:
    def test_equal_plans_pass(self) -> None:
        agreement.check([["a", "b"], ["a", "b"]])

    @pytest.mark.parametrize(
        ("plans", "said"),
        [
            ([["w [3]", "b"], ["w [3]", "c"], ["w [3]", "b"]], "at exchange 1: rank 0, 2: b; rank 1: c"),
            ([["w [3]"], ["w [4]"]], "rank 0: w [3]; rank 1: w [4]"),
            ([["w", "b"], ["w"]], "rank 0: b; rank 1: nothing more"),
        ],
    )
    def test_first_difference_is_named(self, plans: list[list[str]], said: str) -> None:
        with pytest.raises(DisagreementError) as caught:
            agreement.check(plans)
        assert said in str(caught.value)

    def test_digests_differ_as_plans_do(self) -> None:
        assert agreement.digest(["a", "b"]) == agreement.digest(["a", "b"])
        assert agreement.digest(["a", "b"]) != agreement.digest(["b", "a"])


DATASETS = {
    "known": lambda n: tf.data.Dataset.range(n),
    "unknown": lambda n: tf.data.Dataset.range(n).filter(lambda _: True),
}


class TestShard:
    @pytest.mark.parametrize("kind", [list, tuple, np.array, "known", "unknown"])
    @pytest.mark.parametrize(("length", "size"), [(12, 1), (12, 3), (14, 3), (14, 4), (5, 5)])
    def test_dropped_remainder(self, kind: object, length: int, size: int) -> None:
        data = DATASETS[kind](length) if isinstance(kind, str) else kind(range(length))  # type: ignore[operator]
        shares = [[int(x) for x in shard(data, rank, size)] for rank in range(size)]
        assert shares == [list(range(length // size * size))[rank::size] for rank in range(size)]

    @pytest.mark.parametrize("kind", [list, np.array, "known"])
    def test_padded_remainder(self, kind: object) -> None:
        data = DATASETS[kind](7) if isinstance(kind, str) else kind(range(7))  # type: ignore[operator]
        shares = [[int(x) for x in shard(data, rank, 3, "pad")] for rank in range(3)]
        assert shares == [[0, 3, 6], [1, 4, 0], [2, 5, 1]]

    def test_structured_elements_of_unknown_number(self) -> None:
        data = tf.data.Dataset.range(7).filter(lambda _: True)
        pairs = shard(data.map(lambda x: (x, -x)), 1, 3)
        assert [(int(a), int(b)) for a, b in pairs] == [(1, -1), (4, -4)]
        named = shard(data.map(lambda x: {"a": x, "b": x * 2}), 2, 3)
        assert [int(e["b"]) for e in named] == [4, 10]

    @pytest.mark.parametrize("kind", ["known", "unknown"])
    def test_in_a_graph(self, kind: str) -> None:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            share = shard(DATASETS[kind](8), 1, 3)
            element = tf.compat.v1.data.make_one_shot_iterator(share).get_next()
            assert [session.run(element), session.run(element)] == [1, 4]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(element)

    def test_infinite(self) -> None:
        assert [int(x) for x in shard(tf.data.Dataset.range(4).repeat(), 1, 2).take(3)] == [1, 3, 1]

    @pytest.mark.parametrize(
        ("data", "remainder", "said"),
        [
            ([1, 2], "drop", "at most 2 ranks"),
            (tf.data.Dataset.range(2), "pad", "at most 2 ranks"),
            ([1, 2, 3], "wrap", "'drop' or 'pad'"),
            (tf.data.Dataset.range(9).filter(lambda _: True), "pad", "assert_cardinality"),
        ],
    )
    def test_refusals(self, data: object, remainder: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            shard(data, 0, 3, remainder)  # type: ignore[arg-type]


class TestShareOfTheMachine:
    @pytest.mark.parametrize(
        ("local_rank", "local_size", "visible", "gpus", "expected"),
        [
            (1, 2, None, 0, None),
            (1, 2, None, 4, "1"),
            (1, 2, "4,6", 8, "6"),
            (1, 2, "3", 8, None),  # the user's choice for each rank
            (0, 1, None, 8, None),  # alone: all of them
            (1, 2, "", 8, None),  # no GPU, by choice
        ],
    )
    def test_gpu(self, local_rank: int, local_size: int, visible: str | None, gpus: int, expected: str | None) -> None:
        assert gpu_of(local_rank, local_size, visible, gpus) == expected

    @pytest.mark.parametrize(
        ("own", "others", "expected"),
        [
            ({0, 1}, [{0, 1}], 1),
            ({0, 1}, [], 2),
            ({0, 1}, [{0, 1}] * 3, 1),
            ({0, 1, 2, 3, 4, 5, 6, 7}, [set(range(8))] * 2, 2),
            ({3}, [{0}, {1}, {2}], 1),
            ({0, 1, 2}, [{3}], 3),
        ],
    )
    def test_threads(self, own: set[int], others: list[set[int]], expected: int) -> None:
        assert threads_of(frozenset(own), [frozenset(own), *map(frozenset, others)]) == expected


class TestSettings:
    def test_defaults_and_values(self) -> None:
        assert Settings.from_environment({}) == Settings()
        assert Settings.from_environment({"TFDIST_BUCKET_MB": "0.5", "HOME": "x"}).bucket_mb == 0.5

    @pytest.mark.parametrize(
        ("variable", "value", "said"),
        [
            ("TFDIST_BUCKET_MB", "-1", "TFDIST_BUCKET_MB='-1'"),
            ("TFDIST_STALL_SECONDS", "soon", "a number above 0"),
            ("TFDIST_STALL_SECONDS", "nan", "a number above 0"),
            ("TFDIST_PIECE_KB", "0", "a number from 1 on"),
            ("TFDIST_BUKET_MB", "1", "the settings are: TFDIST_BUCKET_MB"),
        ],
    )
    def test_refusals(self, variable: str, value: str, said: str) -> None:
        with pytest.raises(SettingsError, match=said):
            Settings.from_environment({variable: value})

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            ({}, None),
            ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}, None),  # inside a batch script, not started by srun
            ({"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"}, Launch(3, 2, 2)),
            ({"PMI_SIZE": "3", "PMI_RANK": "2", "MPI_LOCALRANKID": "0"}, Launch(3, 2, 0)),
            ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, Launch(2, 1, 1)),
            ({"PMIX_RANK": "1"}, Launch(None, 1, 1)),
        ],
    )
    def test_launchers(self, environment: dict[str, str], expected: Launch | None) -> None:
        assert launch(environment) == expected


class TestLearningRate:
    def test_refusals(self) -> None:
        with pytest.raises(ValueError, match="'linear', 'sqrt'"):
            learning_rate.scaled(0.1, 2, "cubic", 0)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="warmup_steps=-1"):
            learning_rate.scaled(0.1, 2, "linear", -1)
