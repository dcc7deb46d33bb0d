"""A rank's share of the data."""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.training.data_shard import _tell_dropped, shard

DATASETS = {
    "known": lambda n: tf.data.Dataset.range(n),
    "unknown": lambda n: tf.data.Dataset.range(n).filter(lambda _: True),
}


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> Any:
        return np.ones([2, number])


class Both(NamedTuple):
    x: Any
    y: Any


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
        ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [2, 3], []] * 2)).filter(lambda _: True)
        for elements in (
            data.map(lambda x: {"a": x, "b": (x, (x, {"c": x * 2}))}),
            data.map(lambda x: (x,)),
            data.map(lambda x: Both(x, (x,))),
            ragged,
        ):
            part = shard(elements, 2, 3)
            assert part.element_spec == elements.element_spec
            expected = [one for number, one in enumerate(elements) if number in (2, 5)]
            tf.nest.map_structure(np.testing.assert_array_equal, list(part), expected, expand_composites=True)

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

    def test_structures_are_shared_part_by_part(self) -> None:
        x, y = np.arange(14).reshape(7, 2), tf.range(7) * 10
        named = shard({"x": x, "more": {"y": y, "words": list("abcdefg")}}, 1, 3)
        np.testing.assert_array_equal(named["x"], x[[1, 4]])
        assert named["more"]["y"].numpy().tolist() == [10, 40] and named["more"]["words"] == ["b", "e"]
        for kind in (tuple, list):
            pair = shard(kind([x, y, None, {"y": y}]), 2, 3, "pad")
            assert isinstance(pair, kind) and pair[2] is None
            np.testing.assert_array_equal(pair[0], x[[2, 5, 1]])
            np.testing.assert_array_equal(pair[1], [20, 50, 10])
            np.testing.assert_array_equal(pair[3]["y"], [20, 50, 10])
        both = Both(x, y)
        assert isinstance(shard(both, 0, 3), Both)

    @pytest.mark.parametrize("examples", [[np.float32(k) for k in range(4)], ["a", "b", "c", "d"], [{"x": 1}] * 4])
    def test_a_list_of_examples_is_a_sequence(self, examples: list[object]) -> None:
        assert shard(examples, 1, 2) == examples[1::2]
        pairs = [(np.ones(2), k) for k in range(4)]
        assert shard(pairs, 1, 2) == pairs[1::2]

    @pytest.mark.parametrize(
        ("data", "remainder", "said"),
        [
            ([1, 2], "drop", "at most 2 ranks"),
            (tf.data.Dataset.range(2), "pad", "at most 2 ranks"),
            ([1, 2, 3], "wrap", "'drop' or 'pad'"),
            ({"x": np.ones(9), "y": {"z": np.ones(8)}}, "drop", r"data\['x'\] has 9, data\['y'\]\['z'\] has 8"),
            ((np.ones(9), np.ones(6)), "pad", r"data\[0\] has 9, data\[1\] has 6"),
            ((tf.data.Dataset.range(9), tf.data.Dataset.range(9)), "drop", r"data\[0\] is a dataset: share tf.data"),
            ((np.ones(9), [1] * 9), "drop", "a tuple that contains arrays and list cannot be shared"),
            ({"x": np.ones(9), "y": tf.data.Dataset.range(9)}, "drop", r"data\['y'\] is a dataset: share tf.data"),
            (tf.data.Dataset.range(9).filter(lambda _: True), "pad", "assert_cardinality"),
            (np.ones(9), np.ones(9), "not a ndarray. .* x, y = tfdist.shard"),
            ((k for k in range(9)), "drop", "a generator makes its elements by itself"),
            (iter([1, 2, 3]), "drop", "Share its inputs"),
            (Batches(), "drop", "a Batches makes its elements by itself"),
            (tf.sparse.from_dense(np.eye(9)), "drop", "a SparseTensor cannot be sliced: share tf.data.Dataset"),
            ({1, 2, 3}, "drop", "a set cannot be sliced"),
        ],
    )
    def test_refusals(self, data: object, remainder: str, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            shard(data, 0, 3, remainder)  # type: ignore[arg-type]

    def test_rows_of_unequal_lengths(self) -> None:
        assert shard(tf.ragged.constant([[1], [], [2, 3], [4], [5]]), 1, 2).to_list() == [[], [4]]

    def test_elements_that_are_left_out_are_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        _tell_dropped.cache_clear()
        for data in (list("abcde"), tf.data.Dataset.from_tensor_slices(list("abcdefg"))):
            shard(data, 0, 2)
            told = capsys.readouterr().err
            assert f"the last of {len(data)} elements is left out, so that all 2 ranks have as many" in told
            shard(data, 0, 2)  # reported once: a script may shard each batch
            assert not capsys.readouterr().err
        for _ in range(2):
            shard(tf.data.Dataset.range(9).filter(lambda _: True), 0, 2)
        assert capsys.readouterr().err.count("the length of a dataset is not known") == 1
        shard(range(1001), 0, 2)
        shard(list("abcde"), 0, 2, "pad")
        shard(list("abcd"), 0, 2)
        assert not capsys.readouterr().err
