"""Differences between replicas: rounding errors and larger ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tests.tfdist.transport.thread_ranks import ThreadChannel, on_ranks
from tfdist.replicas import comparison
from tfdist.replicas.comparison import distance
from tfdist.replicas.program import READ, STATISTIC, TRAINED, Replica, digest
from tfdist.transport.errors import DisagreementError


def far(own: np.ndarray, first: np.ndarray, steps: int = 1) -> bool:
    found = distance(own, first, steps)
    return found.relative > found.allowed


W = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)


def test_the_same() -> None:
    for value in (W, np.float32(3), np.array(7, np.int64), np.array([True])):
        assert not far(np.asarray(value), np.asarray(value))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_rounding_is_near_and_an_update_is_not(dtype: Any) -> None:
    value = W.astype(dtype)
    units = float(ml_dtypes.finfo(dtype).eps)
    one = dtype(1)
    assert not far(value * (one + dtype(units)), value)
    assert far(value * (one + dtype(20 * units)), value)


def test_rounding_adds_up_over_the_steps() -> None:
    other = W * np.float32(1 + 3e-6)
    assert far(other, W, steps=1) and not far(other, W, steps=100)
    assert far(W * np.float32(1.001), W, steps=1 << 30)


def test_small_entries_are_measured_by_the_largest() -> None:
    value = np.array([1.0, 1e-9], np.float32)
    assert not far(np.array([1.0, 2e-9], np.float32), value)


def test_what_is_no_fraction_is_the_same_or_not() -> None:
    assert far(np.array(8, np.int64), np.array(7, np.int64))
    assert far(np.array([True, False]), np.array([True, True]))


def test_what_is_not_finite() -> None:
    nan = np.array([1.0, np.nan], np.float32)
    assert not far(nan, nan)
    for other in ([1.0, 2.0], [1.0, np.inf], [1.0, -np.inf]):
        assert far(np.array(other, np.float32), nan)
    assert not far(np.array([np.inf]), np.array([np.inf]))


class Pretended:
    """The variables of a rank, in arrays."""

    complete, identity = True, 0

    def __init__(self, values: dict[str, np.ndarray], kinds: Mapping[str, str] = MappingProxyType({})) -> None:
        self.values = values
        self._kinds = kinds

    def replicas(self) -> list[Replica]:
        kinds = {name: self._kinds.get(name, TRAINED) for name in self.values}
        variables = {n: SimpleNamespace(name=n, shape=tf.TensorShape(v.shape)) for n, v in self.values.items()}
        return [Replica(n, kinds[n], variables[n], f"{v.dtype} {v.shape}") for n, v in self.values.items()]

    def read(self, variables: Sequence[Any]) -> Iterator[np.ndarray]:
        return (self.values[one.name] for one in variables)

    def load(self, values: Iterable[tuple[Any, np.ndarray]]) -> None:
        self.values.update({one.name: value for one, value in values})

    def keep_own(self, variable: Any) -> None:
        del self.values[variable.name]


class Channel(ThreadChannel):
    def broadcast(self, array: np.ndarray, root: int = 0) -> None:
        array[...] = self._everybody(array.copy())[root]


def settled(ranks: Sequence[Pretended], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the error message of each rank; empty: no error."""
    monkeypatch.setattr(comparison, "announce", lambda message: None)

    def one(channel: ThreadChannel) -> str:
        channel.__class__ = Channel
        own: Any = ranks[channel.rank]
        try:
            comparison.settle(channel, own, set(), 3, 5)
        except DisagreementError as error:
            return str(error)
        return ""

    return [str(found) for found in on_ranks(len(ranks), one)]


def test_the_first_that_differs_is_named_with_both_values(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Pretended({"a": W, "b": W.copy(), "c": W}) for _ in range(3)]
    ranks[2].values["b"][1, 2] = 9.0
    said = settled(ranks, monkeypatch)
    assert len(set(said)) == 1
    assert "b, which is trained, is -0.260869563 on rank 0, and 9 on rank 2 at [1, 2], after step 5" in said[0], said
    assert "after step 3 they held the same" in said[0]


def test_what_the_loss_reads_is_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Pretended({"a": W + rank, "code": W + rank}, {"code": READ}) for rank in range(2)]
    said = settled(ranks, monkeypatch)
    assert "code, which the loss reads" in said[0] and "the first of 2 variables that differ" in said[0]


def test_moving_statistics_become_each_ranks_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Pretended({"a": W, "mean": W + rank}, {"mean": STATISTIC}) for rank in range(2)]
    assert settled(ranks, monkeypatch) == ["", ""]
    assert all(rank.values.keys() == {"a"} for rank in ranks)


def test_rounding_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [Pretended({"a": W, "b": W * np.float32(1 + 1.2e-7 * rank)}) for rank in range(3)]
    assert settled(ranks, monkeypatch) == [""] * 3
    for rank in ranks:
        np.testing.assert_array_equal(rank.values["b"], W)


def test_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    said = settled([Pretended({"a": W}), Pretended({"a": W, "b": W})], monkeypatch)
    assert "the ranks train with other variables, first with number 1: rank 0: nothing more; rank 1: trained" in said[0]


def test_fingerprints() -> None:
    one = digest(Pretended({"a": W}))
    assert 0 < one < 1 << 48
    assert one == digest(Pretended({"other name": W.copy()}))
    changed = W.copy()
    changed[0, 0] += 1e-6
    assert len({one, digest(Pretended({"a": changed})), digest(Pretended({"a": W.reshape(6, 4)}))}) == 3
